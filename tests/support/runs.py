# SPDX-License-Identifier: Apache-2.0
"""Writes runs out of plain records, as a capture does."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from jax_dmi import _native
from jax_dmi import format as run_format
from jax_dmi import sinks
from support import batches

_KINDS = {bool: "bool", int: "int", float: "float"}


@dataclasses.dataclass(frozen=True, eq=False)
class Rec:
    """One record to write.

    Attributes:
      value: The array; what is written of types below a byte is packed.
      name: Name of the site.
      step: Its step.
      layer: Its layer.
      labels: Its other labels.
      device: Id of its device.
      layout: Description of its layout, None for a single device.
      shape: Shape that the site has; that of ``value`` by default.
      time_ns: Its time; its number on the device by default.
      checksum: Whether it has a checksum.
    """

    value: np.ndarray
    name: str = "x"
    step: int | None = None
    layer: int | None = None
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    device: int = 0
    layout: str | None = None
    shape: tuple[int, ...] | None = None
    time_ns: int | None = None
    checksum: bool = True

    def site(self) -> str:
        """Returns the description of the site."""
        labels = [["step", "int"], ["layer", "int"]]
        labels += [[key, _KINDS[type(value)]] for key, value in self.labels.items()]
        shape = self.value.shape if self.shape is None else self.shape
        return batches.site(self.name, shape, self.value.dtype.name, labels=labels)

    def payload(self) -> np.ndarray:
        """Returns uint8[n], the value as stored."""
        bits = run_format.bits_of(self.value.dtype.name)
        raw = np.frombuffer(np.ascontiguousarray(self.value).tobytes(), np.uint8)
        if bits >= 8:
            return raw
        count = 8 // bits
        low = np.concatenate(
            [raw & (2**bits - 1), np.zeros(-raw.size % count, np.uint8)]
        )
        shifted = low.reshape(-1, count) << (bits * np.arange(count, dtype=np.uint8))
        return np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8)


def _words(record: Rec) -> np.ndarray:
    words = np.zeros(run_format.LABELS, np.uint64)
    for i, value in enumerate(record.labels.values()):
        kind = np.float64 if isinstance(value, float) else np.int64
        words[i] = np.array([value], kind).view(np.uint64)[0]
    return words


def batch(records: Sequence[Rec], first_seq: int) -> sinks.Batch:
    """Returns the batch of consecutive records of one device."""
    rows = len(records)
    texts = [record.site() for record in records]
    layouts = [record.layout for record in records]
    native = batches.lease(
        [record.payload() for record in records],
        sites=[batches.id_of(text) for text in texts],
        first_seq=first_seq,
        device=records[0].device,
    )
    native.layout = np.array(
        [0 if text is None else batches.id_of(text) for text in layouts], np.uint64
    )
    flags = np.full(rows, 0, np.uint32)
    for field, flag in (("step", run_format.HAS_STEP), ("layer", run_format.HAS_LAYER)):
        given = [getattr(record, field) for record in records]
        present = np.array([value is not None for value in given], bool)
        setattr(native, field, np.array([value or 0 for value in given], np.int64))
        setattr(native, f"{field}_valid", np.packbits(present, bitorder="little"))
        flags |= np.where(present, np.uint32(flag), np.uint32(0))
    checked = np.array([record.checksum for record in records], bool)
    flags |= np.where(checked, np.uint32(run_format.HAS_CRC), np.uint32(0))
    native.flags, native.crc = flags, np.where(checked, native.crc, np.uint32(0))
    native.labels = np.concatenate([_words(record) for record in records])
    native.boundary = native.seq // np.uint64(2)
    times = [record.time_ns for record in records]
    native.time = np.array(
        [seq if time is None else time for seq, time in zip(native.seq, times)],
        np.int64,
    )
    columns = ("seq", "site", "layout", "step", "layer", "labels", "boundary", "time")
    sizes = np.array([record.payload().size for record in records], np.uint64)
    native.check = _native.row_checks(
        *(getattr(native, name) for name in columns), native.flags, native.crc, sizes
    )
    described = {batches.id_of(t): t for t in layouts if t is not None}
    return batches.wrap(native, {batches.id_of(t): t for t in texts}, described)


class Writer:
    """Writes a run of one process, or the part of it that one process writes.

    Attributes:
      written: Every record that was written, by device and sequence number.
    """

    def __init__(self, path: pathlib.Path | str, *, info: Any = None, **options: Any):
        self.path = path
        self.written: dict[tuple[int, int], Rec] = {}
        self._sink = sinks.ArrowSink(path, **options)
        self._sink.open(info or batches.run_info())
        self._next: dict[int, int] = {}

    def write(self, *records: Rec) -> None:
        """Writes a batch."""
        device = records[0].device
        first = self._next.get(device, 0)
        self._sink.write(batch(records, first))
        for i, record in enumerate(records):
            self.written[device, first + i] = record
        self._next[device] = first + len(records)

    def skip(self, count: int, device: int = 0) -> None:
        """Leaves numbers out, as if their records were lost."""
        self._next[device] = self._next.get(device, 0) + count

    def flush(self) -> None:
        """Makes everything visible."""
        self._sink.flush()

    def seal(self) -> None:
        """Ends the current segments."""
        self._sink._seal_all()

    def close(self, dropped: Mapping[str, Mapping[str, int]] | None = None) -> None:
        """Ends the run."""
        recorded = {str(device): count for device, count in self._next.items()}
        self._sink.note_accounting({"recorded": recorded, "dropped": dropped or {}})
        self._sink.close()


def write(
    path: pathlib.Path | str, *groups: Iterable[Rec], **options: Any
) -> dict[tuple[int, int], Rec]:
    """Writes a closed run with a batch per group; returns its records."""
    writer = Writer(path, **options)
    for group in groups:
        writer.write(*group)
    writer.close()
    return writer.written


def spmd(
    shape: Sequence[int],
    index: Mapping[int, Sequence[Sequence[int]]],
    replicas: Mapping[int, int] | None = None,
    padded: Sequence[int] | None = None,
) -> str:
    """Describes a layout by what part each device holds."""
    devices = sorted(index)
    extents = [[stop - start for start, stop in index[d]] for d in devices]
    return json.dumps(
        {
            "devices": devices,
            "global_shape": list(shape),
            "kind": "spmd",
            "mesh_names": ["d"],
            "mesh_shape": [len(devices)],
            "shard_shape": list(padded or [max(e) for e in zip(*extents)]),
            "spec": None,
            "shards": {
                str(d): {"index": index[d], "replica": (replicas or {}).get(d, 0)}
                for d in devices
            },
            "varying": [],
        }
    )


def manual(
    block: Sequence[int],
    mesh: Mapping[str, int],
    index: Mapping[int, Sequence[Sequence[int]]] | None = None,
    replicas: Mapping[int, int] | None = None,
) -> str:
    """Describes a layout inside ``shard_map``, on devices 0, 1, ..."""
    devices = list(range(int(np.prod(list(mesh.values())))))
    return json.dumps(
        {
            "devices": devices,
            "global_shape": None,
            "kind": "manual",
            "mesh_names": list(mesh),
            "mesh_shape": list(mesh.values()),
            "shard_shape": list(block),
            "spec": None,
            "shards": {
                str(d): {
                    "index": None if index is None else index[d],
                    "replica": (replicas or {}).get(d, 0),
                }
                for d in devices
            },
            "varying": list(mesh),
        }
    )
