# SPDX-License-Identifier: Apache-2.0
"""A series: the records of one name as arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import records
from jax_dmi.read import index as run_index
from jax_dmi.read import shards

if TYPE_CHECKING:
    from jax_dmi.read import run as run_room

Filter = int | range | Collection[int]


class Series:
    """The records of one name, ordered by process, device and sequence.

    Example:
      >>> series = run["block/resid"]
      >>> len(series), series.layers.max()
      >>> series.stack(layer=2)        # [steps, *shape]
    """

    def __init__(self, run: run_room.Run, name: str, rows: np.ndarray) -> None:
        self.name = name
        self._run = run
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<Series {self.name!r}: {len(self)} records of {self._kinds()}>"

    def _kinds(self) -> str:
        sites = {self._run.site(n) for n in np.unique(self._run.index.site[self._rows])}
        kinds = {f"{s.dtype}[{','.join(map(str, s.shape))}]" for s in sites}
        return " and ".join(sorted(kinds))

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.numpy(i) for i in range(len(self)))

    @property
    def steps(self) -> np.ndarray:
        """int64[n], the step of each record; -1 where it has none."""
        index = self._run.index
        return np.where(index.has_step[self._rows], index.step[self._rows], -1)

    @property
    def layers(self) -> np.ndarray:
        """int64[n], the layer of each record; -1 where it has none."""
        index = self._run.index
        return np.where(index.has_layer[self._rows], index.layer[self._rows], -1)

    def record(self, i: int) -> records.Record:
        """Returns record ``i`` with all its labels."""
        return self._run.record(int(self._rows[i]))

    def numpy(self, i: int) -> np.ndarray:
        """Returns the array of record ``i``, read-only."""
        return self.record(i).numpy()

    def jax(self, i: int) -> Any:
        """Returns the array of record ``i`` as a ``jax.Array``."""
        return self.record(i).jax()

    def batches(self, n: int) -> Iterator[np.ndarray]:
        """Yields arrays [<= n, *shape] of consecutive records, in order.

        Only the arrays that were yielded and are still referenced take memory.

        Args:
          n: Records per array; the last one may be shorter.
        """
        if n < 1:
            raise errors.DmiValueError(f"n={n} is too small; use at least 1.")
        for begin in range(0, len(self), n):
            yield self._stack(self._rows[begin : begin + n])

    def stack(
        self,
        step: Filter | None = None,
        layer: Filter | None = None,
        device: Filter | None = None,
    ) -> np.ndarray:
        """Returns [n, *shape], the records by step, layer and sequence.

        A read-only view of the file where the records lie in it one after the
        other, a new array otherwise.

        Args:
          step: A step, or a range or collection of steps.
          layer: A layer, or a range or collection of layers.
          device: A device id, or a collection.

        Raises:
          DmiValueError: The records are shards of larger arrays, for which there is
            ``global_array``, or differ in shape or dtype.
        """
        rows = self._filtered(step, layer, device)
        index = self._run.index
        keys = (index.seq[rows], index.layer[rows], index.step[rows])
        return self._stack(rows[np.lexsort(keys)])

    def _filtered(self, step: Any, layer: Any, device: Any) -> np.ndarray:
        index, rows = self._run.index, self._rows
        keep = np.ones(len(rows), bool)
        if step is not None:
            keep &= index.has_step[rows] & run_index.is_among(index.step[rows], step)
        if layer is not None:
            keep &= index.has_layer[rows] & run_index.is_among(index.layer[rows], layer)
        if device is not None:
            keep &= run_index.is_among(index.device[rows], device)
        return rows[keep]

    def _stack(self, rows: np.ndarray) -> np.ndarray:
        if not len(rows):
            site = self._run.site(self._run.index.site[self._rows[0]])
            return np.empty((0, *site.shape), run_format.dtype_of(site.dtype))
        self._check_stackable(rows)
        shard, dtype = self._kind_of(int(rows[0]))
        if shard.shape != shard.stored_shape or dtype in run_format.PACKED:
            return np.stack([self._run.record(int(i)).numpy() for i in rows])
        data = gather(
            self._run, rows, run_format.payload_bytes(dtype, shard.stored_shape)
        )
        kind = run_format.dtype_of(dtype)
        return data.view(kind).reshape(len(rows), *shard.shape)

    def _kind_of(self, i: int) -> tuple[records.Shard, str]:
        index, described = self._run.index, self._run.descriptions
        site = int(index.site[i])
        shard = described.shard(site, int(index.layout[i]), int(index.device[i]))
        return shard, self._run.site(site).dtype

    def _check_stackable(self, rows: np.ndarray) -> None:
        index = self._run.index
        pairs = np.unique(np.stack([index.site[rows], index.layout[rows]]), axis=1)
        kinds = set()
        for number, layout_number in pairs.T:
            site, layout = self._run.site(number), self._run.layout(layout_number)
            devices = np.unique(
                index.device[rows][
                    (index.site[rows] == number) & (index.layout[rows] == layout_number)
                ]
            )
            if layout is not None and len(devices) > 1:
                raise errors.DmiValueError(
                    f"{self.name!r} was recorded in shards on devices"
                    f" {devices.tolist()}; use global_array, or device= for one of"
                    " them."
                )
            for device in devices:
                shard = self._run.descriptions.shard(
                    int(number), int(layout_number), int(device)
                )
                kinds.add((site.dtype, shard.shape))
        if len(kinds) > 1:
            listed = sorted(f"{dtype}{list(shape)}" for dtype, shape in kinds)
            raise errors.DmiValueError(
                f"{self.name!r} has records of different kinds: {', '.join(listed)};"
                " choose by step=, layer= or device=."
            )

    def global_array(
        self,
        step: int | None = None,
        layer: int | None = None,
        occurrence: int | None = None,
        spec: Any = None,
    ) -> np.ndarray:
        """Returns the whole array of one record, put together from its shards.

        Args:
          step: Its step; None for any.
          layer: Its layer; None for any.
          occurrence: Which one of several with the same step and layer; None if
            there is only one.
          spec: For records inside ``shard_map``, the ``PartitionSpec`` of the array
            there, or what it is made of: per dimension an axis name, a tuple of
            names, or None.

        Raises:
          DmiValueError: No record or several pass the filters, a shard is missing,
            or ``spec`` is needed or does not fit.
        """
        rows = self._filtered(step, layer, None)
        return shards.global_array(self._run, self.name, rows, occurrence, spec)


def gather(run: run_room.Run, rows: np.ndarray, size: int) -> np.ndarray:
    """Returns uint8[n, size], the payloads of rows that all have this size.

    A view where one batch holds them at equal distances.
    """
    index = run.index
    batch_of, row_of = index.batch[rows], index.row[rows]
    breaks = np.flatnonzero(np.diff(batch_of)) + 1
    runs = zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True)
    out = None
    for begin, end in runs:
        payloads = index.payloads(int(batch_of[begin]))
        chosen = row_of[begin:end]
        _check(payloads, chosen, size)
        block = _equidistant(payloads, chosen, size)
        if block is not None and end - begin == len(rows):
            return block
        if out is None:
            out = np.empty((len(rows), size), np.uint8)
        if block is not None:
            out[begin:end] = block
        else:
            for i, row in zip(range(begin, end), chosen, strict=True):
                out[i] = payloads[int(row)]
    assert out is not None
    return out


def _check(payloads: Any, chosen: np.ndarray, size: int) -> None:
    wrong = (payloads.sizes[chosen] != size) | ~payloads.sound[chosen]
    if wrong.any():
        raise errors.RunError("a payload has a wrong size or place; see verify()")


def _equidistant(payloads: Any, chosen: np.ndarray, size: int) -> np.ndarray | None:
    """Returns a strided view of payloads at equal distances, else None."""
    offsets = payloads.offsets[chosen]
    if size == 0 or offsets[0] < 0:
        return None
    distance = size if len(chosen) == 1 else int(offsets[1] - offsets[0])
    if distance < size or (np.diff(offsets) != distance).any():
        return None
    view = np.lib.stride_tricks.as_strided(
        payloads.data[offsets[0] :],
        (len(chosen), size),
        (distance, 1),
        writeable=False,
    )
    return view
