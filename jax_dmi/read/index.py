# SPDX-License-Identifier: Apache-2.0
"""The index of a run: every row's columns, without its payload."""

from __future__ import annotations

from collections.abc import Collection, Sequence
import dataclasses
import functools

import numpy as np
import pyarrow as pa

from jax_dmi import format as run_format
from jax_dmi.read import segments


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
    """Columns of all rows, ordered by process, device and sequence.

    Attributes:
      process: int64[n].
      device: int64[n].
      batch: int64[n], number of the batch in ``batches``.
      row: int64[n], row inside the batch.
      seq: uint64[n].
      site: uint64[n].
      layout: uint64[n].
      step: int64[n], 0 where absent.
      has_step: bool[n].
      layer: int64[n], 0 where absent.
      has_layer: bool[n].
      boundary: uint64[n].
      time: int64[n], UTC in ns.
      batches: The batches that rows refer to.
    """

    process: np.ndarray
    device: np.ndarray
    batch: np.ndarray
    row: np.ndarray
    seq: np.ndarray
    site: np.ndarray
    layout: np.ndarray
    step: np.ndarray
    has_step: np.ndarray
    layer: np.ndarray
    has_layer: np.ndarray
    boundary: np.ndarray
    time: np.ndarray
    batches: Sequence[pa.RecordBatch]

    def __len__(self) -> int:
        return len(self.seq)

    @functools.cached_property
    def _payloads(self) -> dict[int, segments.Payloads]:
        return {}

    def payloads(self, batch: int) -> segments.Payloads:
        """Returns where the payloads of a batch lie."""
        if batch not in self._payloads:
            self._payloads[batch] = segments.payloads(self.batches[batch])
        return self._payloads[batch]

    def words(self, i: int) -> np.ndarray:
        """Returns uint64[4], the raw label words of a row."""
        labels = self.batches[self.batch[i]].column("labels").values
        begin = int(self.row[i]) * run_format.LABELS
        return labels.slice(begin, run_format.LABELS).to_numpy()

    def where(
        self,
        sites: Collection[int] | None = None,
        step: int | range | Collection[int] | None = None,
        layer: int | range | Collection[int] | None = None,
        device: int | Collection[int] | None = None,
    ) -> np.ndarray:
        """Returns int64[m], the rows that pass every filter, in order."""
        keep = np.ones(len(self), bool)
        if sites is not None:
            keep &= np.isin(self.site, np.fromiter(sites, np.uint64))
        if step is not None:
            keep &= self.has_step & is_among(self.step, step)
        if layer is not None:
            keep &= self.has_layer & is_among(self.layer, layer)
        if device is not None:
            keep &= is_among(self.device, device)
        return np.flatnonzero(keep)


def is_among(
    values: np.ndarray, wanted: int | range | Collection[int]
) -> np.ndarray:
    """Returns bool[n], which values are the number, in the range or collection."""
    if isinstance(wanted, (int, np.integer)):
        return values == wanted
    if isinstance(wanted, range) and wanted.step == 1:
        return (values >= wanted.start) & (values < wanted.stop)
    return np.isin(values, np.fromiter(wanted, np.int64))


def build(found: Sequence[segments.Segment]) -> Index:
    """Makes the index of the whole batches of some segments."""
    batches = [batch for segment in found for batch in segment.batches]
    counts = np.array([batch.num_rows for batch in batches], np.int64)
    total = int(counts.sum())
    owners = [(s.process, s.device) for s in found for _ in s.batches]
    process, device = np.array(owners, np.int64).reshape(-1, 2).T
    table = pa.Table.from_batches(batches, run_format.SCHEMA)

    def column(name: str, dtype: type) -> np.ndarray:
        values = table.column(name)
        if values.null_count:
            values = values.fill_null(0)
        return values.to_numpy().astype(dtype, copy=False)

    starts = np.cumsum(counts) - counts
    flags = column("flags", np.uint32)
    columns = Index(
        process=np.repeat(process, counts),
        device=np.repeat(device, counts),
        batch=np.repeat(np.arange(len(batches)), counts),
        row=np.arange(total) - np.repeat(starts, counts),
        seq=column("seq", np.uint64),
        site=column("site", np.uint64),
        layout=column("layout", np.uint64),
        step=column("step", np.int64),
        has_step=flags & run_format.HAS_STEP != 0,
        layer=column("layer", np.int64),
        has_layer=flags & run_format.HAS_LAYER != 0,
        boundary=column("boundary", np.uint64),
        time=table.column("time").cast(pa.int64()).to_numpy(),
        batches=batches,
    )
    return _ordered(columns)


def _ordered(index: Index) -> Index:
    """Sorts the rows where they are not in order already, as they mostly are."""
    order = np.lexsort((index.seq, index.device, index.process))
    if np.array_equal(order, np.arange(len(order))):
        return index
    changed = {
        field.name: getattr(index, field.name)[order]
        for field in dataclasses.fields(index)
        if field.name != "batches"
    }
    return dataclasses.replace(index, **changed)
