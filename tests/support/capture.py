# SPDX-License-Identifier: Apache-2.0
"""Runs a function under capture and returns what was recorded, in plain data."""

from __future__ import annotations

import collections
from collections.abc import Callable
import dataclasses
import itertools
import json
import struct
from typing import Any
import warnings

import jax
import numpy as np

from jax_dmi import format as run_format
from jax_dmi import monitor as capture_monitor
from jax_dmi import sinks
from jax_dmi import spec as capture_spec

_calls = itertools.count()


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """One record.

    Attributes:
      name: Name of its site.
      labels: All labels by name, step and layer included.
      payload: The value.
      device: Id of the device.
      site: Description of the site.
      layout: Description of the layout; None on a single device.
      boundary: Boundaries its device had passed since the capture began.
    """

    name: str
    labels: dict[str, int | float]
    payload: np.ndarray
    device: int
    site: dict
    layout: dict | None
    boundary: int


@dataclasses.dataclass(frozen=True)
class Captured:
    """What one call recorded.

    Attributes:
      out: What it returned.
      records: The records; those of one device in its order.
      boundaries: Number of boundaries passed, by device, where there were any.
      never_lowered: Sites that were traced and reached no program.
    """

    out: Any
    records: list[Recorded]
    boundaries: dict[int, int]
    never_lowered: list[capture_spec.Site]

    @property
    def counts(self) -> dict[str, int]:
        return dict(collections.Counter(r.name for r in self.records))


class _Collector(sinks.NullSink):
    """A sink that keeps all records."""

    def __init__(self):
        self.records: list[Recorded] = []

    def write(self, batch):
        # Python has no time of nanoseconds.
        for row in batch.record_batch.drop_columns("time").to_pylist():
            self.records.append(_recorded(row, batch))

    def write_many(self, batches):
        for batch in batches:
            self.write(batch)


def counted(
    fn: Callable,
    *args: Any,
    before: Callable | None = None,
    same_spec: bool = False,
    **settings: Any,
) -> Captured:
    """Calls ``fn(*args)`` under a Monitor and waits for its records.

    Args:
      fn: Function to call; usually jitted.
      *args: Its arguments.
      before: Called first under the same capture; what it records is dropped.
      same_spec: Whether to share programs, and the account of lost records, with
        other calls of the same settings.
      **settings: Settings of the Monitor.
    """
    if not same_spec:
        # A pattern that matches nothing makes a spec that no other call has.
        settings["select"] = (*settings.get("select", ("*",)), f"no {next(_calls)}")
    sink = _Collector()
    options = {"ring_bytes": "4MiB", "linger": 0.01, **settings}
    monitor = capture_monitor.Monitor(sink=sink, **options)
    with warnings.catch_warnings():
        # Lost records are part of the result.
        warnings.filterwarnings("ignore", message=".*reached no program")
        with monitor:
            if before is not None:
                jax.block_until_ready(before())
                monitor.flush()
                sink.records.clear()
            out = jax.block_until_ready(fn(*args))
            monitor.flush()
            passed = {d.id: len(monitor.boundaries(d)) for d in jax.local_devices()}
    stats = monitor.stats()
    assert stats.recorded == stats.written and not stats.pending, stats
    return Captured(
        out=out,
        records=sink.records,
        boundaries={device: n for device, n in passed.items() if n},
        never_lowered=list(stats.never_lowered),
    )


def _recorded(row: dict, batch: sinks.Batch) -> Recorded:
    site = json.loads(batch.sites[row["site"]])
    layout = batch.layouts.get(row["layout"])
    layout = None if layout is None else json.loads(layout)
    shape = site["shape"] if layout is None else layout["shard_shape"]
    payload = np.frombuffer(row["payload"], np.uint8).copy()
    labels = {name: row[name] for name in ("step", "layer") if row[name] is not None}
    free = [entry for entry in site["labels"] if entry[0] not in ("step", "layer")]
    for (name, kind), word in zip(free, row["labels"]):
        bits = struct.pack("<Q", word)
        labels[name] = struct.unpack("<d" if kind == "float" else "<q", bits)[0]
    return Recorded(
        name=site["name"],
        labels=labels,
        payload=run_format.decode(payload, site["dtype"], shape),
        device=batch.device,
        site=site,
        layout=layout,
        boundary=row["boundary"],
    )
