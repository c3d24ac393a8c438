# SPDX-License-Identifier: Apache-2.0
"""``Record``: one array that a program recorded, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import threading
from typing import Any

import numpy as np
import pyarrow as pa

from jax_dmi import errors
from jax_dmi import format as run_format

Label = int | float | bool
Index = tuple[slice, ...]

# Where a view of Arrow's binary_view keeps short values.
INLINE_BYTES = 12
INLINE_BEGIN = 4

_WORD_TYPES = {"int": np.int64, "uint": np.uint64, "bool": np.bool_, "float": float}


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Record:
    """One array, as one device recorded it.

    Example:
      >>> for record in run.select("block/resid", step=range(10)):
      ...     print(record.step, record.layer, record.numpy().mean())

    Attributes:
      name: Full name of the site.
      seq: Number of the record on its device, from 0.
      step: Its step, or None.
      layer: Its layer, or None.
      labels: Other labels by name.
      device: Global id of the device that recorded it.
      process: Number of the process that recorded it.
      replica: Which copy of its block the device holds.
      boundary: Boundaries the program had passed on the device.
      time_ns: UTC time in nanoseconds since 1970.
      dtype: Element type; below a byte one of ``ml_dtypes``.
      shape: Shape of the recorded block, without padding.
      global_shape: Shape of the whole array; None inside ``shard_map``.
      index: Where the block lies in the whole array, as ``jax.Shard.index``; None
        inside ``shard_map``.
      stored_shape: Shape of the payload, with padding.
      payload: uint8[n], the bytes as stored, in row-major order.
    """

    name: str
    seq: int
    step: int | None
    layer: int | None
    labels: dict[str, Label]
    device: int
    process: int
    replica: int
    boundary: int
    time_ns: int
    dtype: np.dtype
    shape: tuple[int, ...]
    global_shape: tuple[int, ...] | None
    index: Index | None
    stored_shape: tuple[int, ...]
    payload: np.ndarray

    def __repr__(self) -> str:
        where = [f"device={self.device}", f"seq={self.seq}"]
        if self.layer is not None:
            where.insert(0, f"layer={self.layer}")
        if self.step is not None:
            where.insert(0, f"step={self.step}")
        where += (f"{key}={value}" for key, value in self.labels.items())
        shape = ",".join(map(str, self.shape))
        return f"Record({self.name} {self.dtype.name}[{shape}], {', '.join(where)})"

    def numpy(self) -> np.ndarray:
        """Returns the array: dtype ``dtype``, shape ``shape``.

        It may be a read-only view of the file of the run; types below a byte get
        one element per byte.

        Raises:
          RunError: The stored bytes do not fit the array; ``verify`` tells more.
        """
        try:
            whole = decode(self.payload, self.dtype.name, self.stored_shape)
        except ValueError as error:
            raise errors.RunError(
                f"{self!r} is damaged: {error}; run.verify() tells what else is."
            ) from error
        return trim(whole, self.shape)

    def jax(self) -> Any:
        """Returns a copy of the array as a ``jax.Array`` on the default device.

        Raises:
          StateError: A sink calls it: the program that waits for the sink may hold
            what JAX needs.
          RunError: As ``numpy``.
        """
        return to_jax(self.numpy())


# --- Arrays ------------------------------------------------------------------

_thread = threading.local()


@contextlib.contextmanager
def jax_forbidden() -> Iterator[None]:
    """Makes ``.jax()`` raise on this thread: for sinks that run the user's code."""
    before = getattr(_thread, "forbidden", False)
    _thread.forbidden = True
    try:
        yield
    finally:
        _thread.forbidden = before


def to_jax(value: np.ndarray) -> Any:
    """Returns a copy of an array as a ``jax.Array``.

    Raises:
      StateError: A sink calls it.
    """
    if getattr(_thread, "forbidden", False):
        raise errors.StateError(
            ".jax() on the sink thread can deadlock; use .numpy() there."
        )
    import jax.numpy as jnp

    return jnp.array(value)


def decode(payload: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """As ``format.decode``; copies what is not aligned for its type."""
    if payload.ctypes.data % run_format.dtype_of(dtype).alignment:
        payload = payload.copy()
    return run_format.decode(payload, dtype, shape)


def trim(value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Returns the part of a padded block that is inside the whole array."""
    if value.shape == tuple(shape):
        return value
    return value[tuple(slice(0, extent) for extent in shape)]


# --- What the ids of a row stand for -----------------------------------------


@dataclasses.dataclass(frozen=True)
class Shard:
    """What one device holds of the array of a site.

    Attributes:
      stored_shape: Shape of the payload, padding included.
      shape: Shape without padding.
      global_shape: Shape of the whole array, None where unknown.
      index: Place in the whole array, None where unknown.
      replica: Which copy of the block it is.
      is_whole: Whether the block is the whole array.
    """

    stored_shape: tuple[int, ...]
    shape: tuple[int, ...]
    global_shape: tuple[int, ...] | None
    index: Index | None
    replica: int
    is_whole: bool


class Descriptions:
    """Sites and layouts by id.

    Attributes:
      sites: Sites by id.
      layouts: Layouts by id; a single device, id 0, is not among them.
    """

    def __init__(self) -> None:
        self.sites: dict[int, run_format.SiteInfo] = {}
        self.layouts: dict[int, run_format.LayoutInfo] = {}
        self._shards: dict[tuple[int, int, int], Shard] = {}

    def add(self, sites: Mapping[int, str], layouts: Mapping[int, str]) -> None:
        """Adds descriptions.

        Raises:
          ValueError: One cannot be read.
        """
        for number, text in sites.items():
            if number not in self.sites:
                self.sites[number] = run_format.parse_site(text)
        for number, text in layouts.items():
            if number not in self.layouts:
                self.layouts[number] = run_format.parse_layout(text)

    def shard(self, site: int, layout: int, device: int) -> Shard:
        """Returns what a device holds of a site.

        Raises:
          KeyError: An id is not described.
        """
        key = (site, layout, device)
        found = self._shards.get(key)
        if found is None:
            info = self.layouts[layout] if layout else None
            found = self._shards[key] = shard_of(self.sites[site], info, device)
        return found


def shard_of(
    site: run_format.SiteInfo, layout: run_format.LayoutInfo | None, device: int
) -> Shard:
    """Returns what a device holds of a site."""
    if layout is None:
        shape = site.shape
        return Shard(shape, shape, shape, (slice(None),) * len(shape), 0, True)
    stored = layout.shard_shape
    extents = layout.index.get(device)
    replica = layout.replica.get(device, 0)
    # Extents inside a partly manual shard_map count within its block: good for
    # cutting off the padding only.
    shape = stored
    if extents is not None and len(extents) == len(stored):
        shape = tuple(
            max(0, min(stop - start, size))
            for (start, stop), size in zip(extents, stored)
        )
    whole = layout.global_shape
    if layout.kind != "spmd" or whole is None or extents is None:
        return Shard(stored, shape, None, None, replica, False)
    index = tuple(
        slice(None) if start == 0 and stop == size else slice(start, stop)
        for (start, stop), size in zip(extents, whole)
    )
    return Shard(stored, shape, whole, index, replica, shape == whole)


def label_values(
    site: run_format.SiteInfo, words: Sequence[int] | np.ndarray
) -> dict[str, Label]:
    """Returns the labels of a record.

    Args:
      site: Its site.
      words: uint64[4], the words of the row.
    """
    return {
        name: label_column(np.array([word], np.uint64), kind)[0].item()
        for (name, kind), word in zip(site.labels, words)
    }


def label_column(words: np.ndarray, kind: str) -> np.ndarray:
    """Returns uint64[n] words of a label as values of its type."""
    dtype = _WORD_TYPES.get(kind, np.uint64)
    return words.astype(bool) if dtype is np.bool_ else words.view(dtype)


# --- Records of a batch ------------------------------------------------------


def of_batch(
    batch: pa.RecordBatch,
    descriptions: Descriptions,
    *,
    process: int,
    device: int,
    copy: bool = True,
    wants: Callable[[int], bool] | None = None,
) -> Iterator[Record]:
    """Yields the records of a batch that a sink got.

    Args:
      batch: Rows of ``format.SCHEMA``.
      descriptions: Sites and layouts of the rows.
      process: Number of the process.
      device: Id of the device.
      copy: Whether records own their bytes; without, they are valid as long as
        the batch.
      wants: Tells of a site id whether its records are wanted; None wants all.

    Yields:
      A record per row.
    """
    for row, payload in zip(_rows(batch), payloads(batch)):
        if wants is not None and not wants(row[1]):
            continue
        payload = payload.copy() if copy else payload
        yield build(descriptions, row, payload, process, device)


def build(
    descriptions: Descriptions,
    row: tuple,
    payload: np.ndarray,
    process: int,
    device: int,
) -> Record:
    """Returns the record of a row.

    Args:
      descriptions: Sites and layouts.
      row: seq, site, layout, step, layer, labels, boundary, time and flags.
      payload: uint8[n].
      process: Number of the process.
      device: Id of the device.
    """
    seq, site_id, layout, step, layer, words, boundary, time, flags = row
    site = descriptions.sites[site_id]
    shard = descriptions.shard(site_id, layout, device)
    return Record(
        site.name,
        seq,
        step if flags & run_format.HAS_STEP else None,
        layer if flags & run_format.HAS_LAYER else None,
        label_values(site, words) if site.labels else {},
        device,
        process,
        shard.replica,
        boundary,
        time,
        run_format.dtype_of(site.dtype),
        shard.shape,
        shard.global_shape,
        shard.index,
        shard.stored_shape,
        payload,
    )


def _rows(batch: pa.RecordBatch) -> Iterator[tuple]:
    """Yields (seq, site, layout, step, layer, words, boundary, time, flags)."""

    def values(name: str) -> list:
        column = batch.column(name)
        if name in ("step", "layer"):
            column = column.fill_null(0)
        if name == "time":
            column = column.cast(pa.int64())
        return column.to_numpy(zero_copy_only=False).tolist()

    labels = batch.column("labels").flatten().to_numpy()
    return zip(
        *(values(name) for name in ("seq", "site", "layout", "step", "layer")),
        labels.reshape(-1, run_format.LABELS),
        *(values(name) for name in ("boundary", "time", "flags")),
    )


def payloads(batch: pa.RecordBatch) -> Iterator[np.ndarray]:
    """Yields the payload of every row of a trusted batch, as a view: uint8[n]."""
    column = batch.column("payload")
    _, views, *data = column.buffers()
    inline = np.frombuffer(views, np.uint8)
    fields = inline.view(np.int32).reshape(-1, 4)
    buffers = [np.frombuffer(part, np.uint8) for part in data]
    for row in range(column.offset, column.offset + len(column)):
        size, _, buffer, begin = fields[row].tolist()
        if size <= INLINE_BYTES:
            begin = 16 * row + INLINE_BEGIN
            yield inline[begin : begin + size]
        else:
            yield buffers[buffer][begin : begin + size]
