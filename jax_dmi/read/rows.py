# SPDX-License-Identifier: Apache-2.0
"""The rows of a run: every record without its payload, as columns."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
import dataclasses

import numpy as np

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi.read import segments

Filter = int | range | Collection[int]


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Columns of equal length.

    Attributes:
      process: int32[n].
      device: int32[n].
      seq: uint64[n], number of the record on its device.
      site: uint64[n], id of the site.
      layout: uint64[n], id of the layout, 0 for a single device.
      step: int64[n], 0 where absent.
      layer: int64[n], 0 where absent.
      labels: uint64[n, 4], words of the other labels.
      boundary: uint64[n], boundaries passed.
      time: int64[n], UTC in ns.
      flags: uint32[n], see ``format``.
      crc: uint32[n], crc32c of the payload where the flags say so.
      file: int32[n], number of the file that holds the payload.
      place: int64[n], where the payload begins in it.
      size: int64[n], bytes of the payload.
    """

    process: np.ndarray
    device: np.ndarray
    seq: np.ndarray
    site: np.ndarray
    layout: np.ndarray
    step: np.ndarray
    layer: np.ndarray
    labels: np.ndarray
    boundary: np.ndarray
    time: np.ndarray
    flags: np.ndarray
    crc: np.ndarray
    file: np.ndarray
    place: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def has_step(self) -> np.ndarray:
        """bool[n], which rows have a step."""
        return (self.flags & run_format.HAS_STEP) != 0

    @property
    def has_layer(self) -> np.ndarray:
        """bool[n], which rows have a layer."""
        return (self.flags & run_format.HAS_LAYER) != 0

    def take(self, rows: np.ndarray | slice) -> Rows:
        """Returns some of the rows, by number or mask."""
        return Rows(**{name: getattr(self, name)[rows] for name in COLUMNS})

    def where(
        self,
        sites: Collection[int] | None = None,
        step: Filter | None = None,
        layer: Filter | None = None,
        device: Filter | None = None,
    ) -> np.ndarray:
        """Returns int64[m], the numbers of the rows that pass every filter."""
        keep = np.ones(len(self), bool)
        if sites is not None:
            keep &= np.isin(self.site, np.fromiter(sites, np.uint64))
        if step is not None:
            keep &= self.has_step & is_among(self.step, step, "step")
        if layer is not None:
            keep &= self.has_layer & is_among(self.layer, layer, "layer")
        if device is not None:
            keep &= is_among(self.device, device, "device")
        return np.flatnonzero(keep)


COLUMNS = tuple(field.name for field in dataclasses.fields(Rows))


def of_segments(found: Sequence[segments.Segment]) -> Rows:
    """Returns the rows of segments; ``file`` counts these."""
    counts = np.array([len(segment) for segment in found], np.int64)

    def owners(values: list[int]) -> np.ndarray:
        return np.repeat(np.array(values, np.int32), counts)

    columns: dict[str, np.ndarray] = {
        "process": owners([segment.owner.process for segment in found]),
        "device": owners([segment.owner.device for segment in found]),
        "file": owners(list(range(len(found)))),
    }
    for name in COLUMNS:
        if name not in columns:
            parts = [segment.columns[name] for segment in found] or [_none(name)]
            columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return ordered(Rows(**columns))


def _none(name: str) -> np.ndarray:
    empty = segments.empty_column(name)
    return empty.reshape(0, run_format.LABELS) if name == "labels" else empty


def ordered(rows: Rows) -> Rows:
    """Returns the rows by process, device and sequence, each record once.

    A batch stands twice if a sink wrote it once more because it did not learn that
    it had been written.
    """
    if len(rows) < 2:
        return rows
    order = sorted_by((rows.process, rows.device, rows.seq))
    if (order[1:] < order[:-1]).any():
        rows = rows.take(order)
    again = (
        (rows.seq[1:] == rows.seq[:-1])
        & (rows.device[1:] == rows.device[:-1])
        & (rows.process[1:] == rows.process[:-1])
    )
    if again.any():
        rows = rows.take(np.flatnonzero(np.append(True, ~again)))
    return rows


def sorted_by(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Returns int64[n], the order that sorts by the keys, the first one first."""
    later = np.zeros(max(0, len(keys[0]) - 1), bool)
    same = ~later
    for key in keys:
        later |= same & (key[1:] > key[:-1])
        same &= key[1:] == key[:-1]
    # Mostly there is nothing to do, and to see that is much faster than to sort.
    if (later | same).all():
        return np.arange(len(keys[0]))
    return np.lexsort(tuple(keys)[::-1])


def is_among(values: np.ndarray, wanted: Filter, argument: str) -> np.ndarray:
    """Returns bool[n], which values are the number, in the range or collection.

    Raises:
      DmiTypeError: ``wanted`` is something else.
    """
    if isinstance(wanted, (int, np.integer)):
        return values == wanted
    if isinstance(wanted, range) and wanted.step == 1:
        return (values >= wanted.start) & (values < wanted.stop)
    try:
        return np.isin(values, np.fromiter(wanted, np.int64))
    except (TypeError, ValueError, OverflowError):
        raise errors.DmiTypeError(
            f"{argument}={wanted!r} is not understood; give an int, a range or a"
            " collection of ints."
        ) from None
