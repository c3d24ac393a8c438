# SPDX-License-Identifier: Apache-2.0
"""A series: the records of one name as arrays."""

from __future__ import annotations

from collections.abc import Iterator
import functools
import operator
from typing import Any

import numpy as np

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import records
from jax_dmi.read import frames
from jax_dmi.read import loading
from jax_dmi.read import payloads
from jax_dmi.read import rows as run_rows
from jax_dmi.read import shards


class Series:
    """The records of one name, by step, layer and sequence.

    All methods count them in that order, so ``series.numpy(i)``, ``series.steps[i]``
    and ``series.stack()[i]`` are of the same record. Those without a step or a layer
    come first.

    Example:
      >>> series = run["block/resid"]
      >>> len(series), series.layers.max()
      (800, 3)
      >>> series.stack(layer=2).shape        # [steps, *shape]
      (200, 8, 64, 128)

    Attributes:
      name: Their name.
    """

    def __init__(self, name: str, loaded: loading.Loaded, chosen: np.ndarray) -> None:
        """Takes the numbers of its rows in the run, in the order of the run."""
        self.name = name
        self._loaded = loaded
        self._in_order_of_run = chosen

    @functools.cached_property
    def _rows(self) -> run_rows.Rows:
        rows = self._loaded.rows.take(self._in_order_of_run)
        keys = (rows.has_step, rows.step, rows.has_layer, rows.layer, rows.seq)
        return rows.take(run_rows.sorted_by((*keys, rows.process, rows.device)))

    def __len__(self) -> int:
        return len(self._in_order_of_run)

    def __repr__(self) -> str:
        kinds, _ = frames.shards(self._rows, self._loaded.descriptions)
        arrays = sorted({_array(site.dtype, shard.shape) for site, shard in kinds})
        return f"<Series {self.name!r}: {len(self)} records of {' and '.join(arrays)}>"

    def __iter__(self) -> Iterator[np.ndarray]:
        return (record.numpy() for record in self.records())

    def records(self) -> Iterator[records.Record]:
        """Yields the records with all their labels."""
        for begin in range(0, len(self), 1024):
            rows = slice(begin, begin + 1024)
            yield from self._loaded.records(self._rows.take(rows))

    @property
    def steps(self) -> np.ndarray:
        """int64[n], the step of each record; masked where it has none."""
        return _masked(self._rows.step, self._rows.has_step)

    @property
    def layers(self) -> np.ndarray:
        """int64[n], the layer of each record; masked where it has none."""
        return _masked(self._rows.layer, self._rows.has_layer)

    def record(self, i: int) -> records.Record:
        """Returns record ``i``, from the end if negative, with all its labels.

        Raises:
          DmiIndexError: There is no such record.
        """
        try:
            number = range(len(self))[operator.index(i)]
        except IndexError:
            raise errors.DmiIndexError(
                f"i={i} is not within the {len(self)} records of {self.name!r}; the"
                " first is 0, the last is -1."
            ) from None
        except TypeError:
            raise errors.DmiTypeError(f"i={i!r} is no index; use an int.") from None
        rows = self._rows.take(slice(number, number + 1))
        return next(self._loaded.records(rows))

    def numpy(self, i: int) -> np.ndarray:
        """Returns the array of record ``i``; it may be a read-only view."""
        return self.record(i).numpy()

    def jax(self, i: int) -> Any:
        """Returns the array of record ``i`` as a ``jax.Array``."""
        return self.record(i).jax()

    def global_array(
        self,
        step: int | None = None,
        layer: int | None = None,
        occurrence: int | None = None,
        spec: Any = None,
    ) -> np.ndarray:
        """Returns one whole array, put together from what its devices recorded.

        Example:
          >>> run["product"].global_array(step=3)
          >>> run["inside/shard_map"].global_array(step=3, spec=P("data", None))

        Args:
          step: Its step; None for any.
          layer: Its layer; None for any.
          occurrence: Which of those with one step and layer, from 0 in the order of
            time, or from -1 backwards; None for any.
          spec: For records inside ``shard_map``, how it splits the array: a
            ``PartitionSpec`` or its parts, per dimension the name of a mesh axis, a
            tuple of names, or None. Of other records the place of every shard is
            known, and it is not looked at.

        Returns:
          The array, without padding.

        Raises:
          DmiValueError: None or several arrays are meant, which the message lists;
            or ``spec`` is missing or does not fit.
          RunError: The run lacks a shard.
        """
        chosen = self._rows.where(None, step, layer)
        rows = self._rows.take(chosen)
        return shards.global_array(self.name, self._loaded, rows, occurrence, spec)

    # --- Stacks --------------------------------------------------------------

    def stack(
        self,
        step: run_rows.Filter | None = None,
        layer: run_rows.Filter | None = None,
        device: run_rows.Filter | None = None,
    ) -> np.ndarray:
        """Returns records in one array, by step, layer and sequence.

        Of a replicated value that several devices recorded, it takes the first
        replica unless ``device`` is given.

        Args:
          step: A step, or a range or collection of steps.
          layer: A layer, or a range or collection of layers.
          device: A device id, or a collection of them.

        Returns:
          ``[n, *shape]``: a read-only view of the file where one holds them at equal
          distances, else a new array.

        Raises:
          DmiValueError: The records are shards of larger arrays, for which there is
            ``global_array``, or differ in shape or type.
        """
        rows = self._rows
        chosen = rows.where(None, step, layer, device)
        if len(chosen) < len(rows):
            rows = rows.take(chosen)
        return self._stack(self._of_one_shard(rows, device is not None))

    def batches(self, n: int) -> Iterator[np.ndarray]:
        """Yields records as arrays ``[<= n, *shape]``, as ``stack`` has them.

        Takes memory only for what was yielded and is still referenced.

        Args:
          n: Records per array; the last one may be shorter.

        Raises:
          DmiValueError: As ``stack``.
        """
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise errors.DmiValueError(f"n={n!r} cannot be used; use an int >= 1.")
        rows = self._of_one_shard(self._rows, False)
        self._check_alike(rows)
        return (self._stack(rows.take(slice(i, i + n))) for i in range(0, len(rows), n))

    def _of_one_shard(self, rows: run_rows.Rows, by_device: bool) -> run_rows.Rows:
        """Returns rows without further replicas, if they are of whole arrays."""
        if by_device or not rows.layout.any():
            return rows
        kinds, which = frames.shards(rows, self._loaded.descriptions)
        for number in np.unique(rows.layout[rows.layout != 0]).tolist():
            layout = self._loaded.descriptions.layouts[number]
            count = sum(replica == 0 for replica in layout.replica.values())
            if count > 1:
                raise errors.DmiValueError(
                    f"{self.name!r} was recorded as {count} shards on the devices"
                    f" {sorted(layout.replica)}; use global_array for a whole array,"
                    " or stack(device=...) for the shards of one device."
                )
        first = np.array([shard.replica == 0 for _, shard in kinds], bool)[which]
        return rows if first.all() else rows.take(first)

    def _check_alike(self, rows: run_rows.Rows) -> None:
        kinds, _ = frames.shards(rows, self._loaded.descriptions)
        arrays = {_array(site.dtype, shard.shape) for site, shard in kinds}
        if len(arrays) > 1:
            raise errors.DmiValueError(
                f"{self.name!r} has records of different arrays:"
                f" {', '.join(sorted(arrays))}; choose by step=, layer= or device=, or"
                " go through them with run.select."
            )

    def _stack(self, rows: run_rows.Rows) -> np.ndarray:
        loaded = self._loaded
        if not len(rows):
            kinds, _ = frames.shards(self._rows, loaded.descriptions)
            site, shard = kinds[0]
            return np.empty((0, *shard.shape), run_format.dtype_of(site.dtype))
        self._check_alike(rows)
        kinds, _ = frames.shards(rows, loaded.descriptions)
        if len({shard.stored_shape for _, shard in kinds}) > 1:
            found = [record.numpy() for record in loaded.records(rows)]
            return np.stack(found)
        site, shard = kinds[0]
        size = run_format.payload_bytes(site.dtype, shard.stored_shape)
        if (rows.size != size).any():
            raise errors.RunError(
                f"payloads of {self.name!r} have a wrong size; run.verify() tells more."
            )
        data = payloads.stack(loaded.files, rows.file, rows.place, size)
        return _arrays(data, site.dtype, shard)


def _arrays(data: np.ndarray, dtype: str, shard: records.Shard) -> np.ndarray:
    """Returns uint8[n, size] payloads as arrays [n, *shape]."""
    rows, shape = len(data), shard.stored_shape
    kind = run_format.dtype_of(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype in run_format.PACKED:
        # Every payload is unpacked with what its last byte has too many.
        per_byte = 8 // run_format.bits_of(dtype)
        flat = np.ascontiguousarray(data).reshape(-1)
        wide = run_format.decode(flat, dtype, (rows, data.shape[1] * per_byte))
        values = np.ascontiguousarray(wide[:, :count])
    elif not count:
        values = np.empty((rows, 0), kind)
    else:
        if data.ctypes.data % kind.alignment or data.strides[0] % kind.alignment:
            data = data.copy()
        values = data.view(kind)
    values = values.reshape(rows, *shape)
    return values[(slice(None), *(slice(0, extent) for extent in shard.shape))]


def _array(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _masked(values: np.ndarray, present: np.ndarray) -> np.ndarray:
    if present.all():
        return values.copy()
    return np.ma.MaskedArray(values.copy(), mask=~present)
