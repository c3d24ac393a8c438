# SPDX-License-Identifier: Apache-2.0
"""Sinks for tests: one that keeps records in memory, one that can be stopped."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np

from jax_dmi import format as run_format

_COLUMNS = ["seq", "site", "layout", "step", "layer", "boundary", "payload"]


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """One record, copied."""

    name: str
    device: int
    seq: int
    step: int | None
    layer: int | None
    boundary: int
    value: np.ndarray


class MemorySink:
    """Keeps a copy of every record.

    Attributes:
      records: What was written, in order.
      closed: Whether it was closed.
    """

    def __init__(self):
        self.records: list[Kept] = []
        self.closed = False

    def open(self, run_info):
        self.run_info = run_info

    def write(self, batch):
        sites = {i: run_format.parse_site(text) for i, text in batch.sites.items()}
        layouts = {
            i: run_format.parse_layout(text) for i, text in batch.layouts.items()
        }
        for row in batch.record_batch.select(_COLUMNS).to_pylist():
            site = sites[row["site"]]
            layout = layouts.get(row["layout"])
            shape = site.shape if layout is None else layout.shard_shape
            payload = np.frombuffer(bytes(row["payload"]), np.uint8)
            value = run_format.decode(payload, site.dtype, shape)
            self.records.append(
                Kept(
                    site.name,
                    batch.device,
                    row["seq"],
                    row["step"],
                    row["layer"],
                    row["boundary"],
                    value,
                )
            )

    def flush(self):
        pass

    def close(self):
        self.closed = True


class GateSink(MemorySink):
    """Writes only while its gate is open, and raises what it is told to.

    Attributes:
      gate: Set to let writes through.
      entered: Set once a write has begun.
      errors: Raised one per write before anything is kept; None raises nothing.
    """

    def __init__(self, *, opened: bool = False, errors=()):
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.errors = list(errors)
        if opened:
            self.gate.set()

    def write(self, batch):
        self.entered.set()
        self.gate.wait()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        super().write(batch)
