# SPDX-License-Identifier: Apache-2.0
"""Brings payloads of one size together in one array.

How depends on where they lie: equal distances are one strided copy, or none at
all; scattered small ones are gathered in blocks; large ones are read from the file
straight into their place, which spares mapping their pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import os

import numpy as np
import pyarrow as pa

from jax_dmi import errors
from jax_dmi.read import mapped

# A read costs about as much as copying so many bytes from pages not mapped yet.
_READ_BYTES = 16 << 10
# Payloads at one distance that make a strided copy worth its while.
_FEW = 16
# What is gathered at once, so that it stays in the cache.
_CHUNK_BYTES = 1 << 20
# The most that one read returns, and the distance of buffers, rounded down.
_MOST_BYTES = 1 << 30
_LAST_OFFSET = 2 * _MOST_BYTES - 1
# What a view of Arrow holds itself.
_INLINE = 12
# A type with so many bytes, by which they are moved.
_BLOCKS = tuple(np.dtype(f"V{size}") for size in (64, 32, 16, 8, 4, 2, 1))


def stack(
    files: Sequence[mapped.File], file: np.ndarray, place: np.ndarray, size: int
) -> np.ndarray:
    """Returns payloads, one per row.

    Args:
      files: The files.
      file: int[n], the file of each payload.
      place: int64[n], where each begins in its file; must lie inside.
      size: Bytes of every payload.

    Returns:
      uint8[n, size]: a read-only view where one file holds them at equal
      distances, else a new array.

    Raises:
      RunError: A file is shorter than it was.
    """
    view = _view(files, file, place, size)
    if view is not None:
        return view
    out = np.empty((len(place), size), np.uint8)
    copy(files, file, place, out)
    return out


def copy(
    files: Sequence[mapped.File], file: np.ndarray, place: np.ndarray, out: np.ndarray
) -> None:
    """Copies payloads into the rows of ``out``: uint8[n, size], contiguous."""
    changes = np.flatnonzero(file[1:] != file[:-1]) + 1
    bounds = [0, *changes.tolist(), len(place)]
    for begin, end in itertools.pairwise(bounds):
        if begin < end:
            _copy(files[file[begin]], place[begin:end], out[begin:end])


def _copy(source: mapped.File, place: np.ndarray, out: np.ndarray) -> None:
    size = out.shape[1]
    if not size:
        return
    distance = np.diff(place)
    changes = np.flatnonzero(distance[1:] != distance[:-1]) + 1
    if size >= _READ_BYTES or (distance == size).all():
        _read(source, place, out)
    elif len(changes) * _FEW <= len(place):
        # A distance belongs to the payload before it, so a change begins a run one
        # payload later.
        bounds = [0, *(changes + 1).tolist(), len(place)]
        for begin, end in itertools.pairwise(bounds):
            out[begin:end] = _strided(source.data, place[begin:end], size)
    else:
        _gather(source.data, place, out)


def _view(
    files: Sequence[mapped.File], file: np.ndarray, place: np.ndarray, size: int
) -> np.ndarray | None:
    if not len(place) or not size or (file != file[0]).any():
        return None
    distance = np.diff(place)
    if len(distance) and (distance[0] < size or (distance != distance[0]).any()):
        return None
    return _strided(files[file[0]].data, place, size)


def _strided(data: np.ndarray, place: np.ndarray, size: int) -> np.ndarray:
    """Returns uint8[n, size], payloads at equal distances as a view."""
    distance = int(place[1] - place[0]) if len(place) > 1 else size
    return np.lib.stride_tricks.as_strided(
        data[place[0] :], (len(place), size), (distance, 1), writeable=False
    )


def _read(source: mapped.File, place: np.ndarray, out: np.ndarray) -> None:
    """Reads from the file, what lies side by side at once."""
    size = out.shape[1]
    most = max(1, _MOST_BYTES // size)
    breaks = np.flatnonzero(np.diff(place) != size) + 1
    bounds = [0, *breaks.tolist(), len(place)]
    target = out.reshape(-1).data
    with source.opened() as fd:
        for begin, end in itertools.pairwise(bounds):
            for first in range(begin, end, most):
                last = min(first + most, end)
                part = target[first * size : last * size]
                _fill(source, fd, int(place[first]), part)


def _fill(source: mapped.File, fd: int | None, at: int, part: memoryview) -> None:
    if fd is None:
        part[:] = source.data.data[at : at + len(part)]
        return
    done = os.preadv(fd, (part,), at)
    while done < len(part):
        more = os.preadv(fd, (part[done:],), at + done)
        if not more:
            raise errors.RunError(
                f"{source.path!r} was cut while it was read; open the run again."
            )
        done += more


def _gather(data: np.ndarray, place: np.ndarray, out: np.ndarray) -> None:
    """Copies scattered payloads by the largest blocks that they all begin at."""
    size = out.shape[1]
    low = int(np.bitwise_or.reduce(place)) | _BLOCKS[0].itemsize
    block = next(b for b in _BLOCKS if low % b.itemsize == 0)
    # Blocks reach behind a payload, which must not be behind the file.
    whole = data.size // block.itemsize * block.itemsize
    blocks = data[:whole].view(block)
    count = -(-size // block.itemsize)
    inside = place + count * block.itemsize <= whole
    for i in np.flatnonzero(~inside).tolist():
        out[i] = data[place[i] : place[i] + size]
    chosen = np.flatnonzero(inside)
    step = max(1, _CHUNK_BYTES // size)
    for i in range(0, len(chosen), step):
        rows = chosen[i : i + step]
        index = (place[rows] // block.itemsize)[:, None] + np.arange(count)
        taken = blocks.take(index).view(np.uint8).reshape(len(rows), -1)
        out[rows] = taken[:, :size]


def chunks(
    files: Sequence[mapped.File], file: np.ndarray, place: np.ndarray, size: np.ndarray
) -> Iterator[np.ndarray]:
    """Yields payloads of any size, one behind the other, about a megabyte at once.

    Args:
      files: The files.
      file: int[n], the file of each payload.
      place: int64[n], where each begins in its file; must lie inside.
      size: int64[n], bytes of each.

    Yields:
      uint8[m], valid until the next one is asked for.

    Raises:
      RunError: A file is shorter than it was.
    """
    room = np.empty(_CHUNK_BYTES, np.uint8)
    changes = np.flatnonzero(size[1:] != size[:-1]) + 1
    for begin, end in itertools.pairwise([0, *changes.tolist(), len(size)]):
        each = int(size[begin]) if begin < end else 0
        if not each:
            continue
        if each > room.size:
            room = np.empty(each, np.uint8)
        step = room.size // each
        for i in range(begin, end, step):
            rows = slice(i, min(i + step, end))
            out = room[: (rows.stop - i) * each]
            copy(files, file[rows], place[rows], out.reshape(-1, each))
            yield out


def binary_views(
    files: Sequence[mapped.File], file: np.ndarray, place: np.ndarray, size: np.ndarray
) -> pa.Array:
    """Returns payloads as an array of Arrow's ``binary_view``, without copying.

    Args:
      files: The files.
      file: int[n], the file of each payload.
      place: int64[n], where each begins in its file; must lie inside.
      size: int64[n], bytes of each.
    """
    views = np.zeros((len(place), 4), np.int32)
    views[:, 0] = size
    buffers: list[pa.Buffer] = []
    # An offset has 31 bits: a long file is several buffers, which overlap as far
    # as the largest payload needs.
    window = np.where(size > _INLINE, place // _MOST_BYTES, 0)
    for number in np.unique(file).tolist():
        mine = file == number
        data = files[number].data
        for first in np.unique(window[mine]).tolist():
            rows = mine & (window == first)
            begin = first * _MOST_BYTES
            views[rows, 2] = len(buffers)
            views[rows, 3] = np.where(size[rows] > _INLINE, place[rows] - begin, 0)
            buffers.append(pa.py_buffer(data[begin : begin + _LAST_OFFSET]))
            # What reaches over the end of that gets a buffer of its own.
            over = rows & (place - begin + size > _LAST_OFFSET)
            for i in np.flatnonzero(over & (size > _INLINE)).tolist():
                views[i, 2:] = len(buffers), 0
                buffers.append(pa.py_buffer(data[place[i] : place[i] + size[i]]))
        _fill_in(views, np.flatnonzero(mine), data, place, size)
    return pa.Array.from_buffers(
        pa.binary_view(), len(place), [None, pa.py_buffer(views), *buffers]
    )


def _fill_in(
    views: np.ndarray,
    rows: np.ndarray,
    data: np.ndarray,
    place: np.ndarray,
    size: np.ndarray,
) -> None:
    """Puts short payloads, and the beginning of longer ones, into their views."""
    inline = size[rows] <= _INLINE
    for chosen, count in ((rows[inline], _INLINE), (rows[~inline], 4)):
        within = np.arange(count)
        at = np.minimum(place[chosen][:, None] + within, max(0, data.size - 1))
        values = np.where(within < size[chosen][:, None], data[at], np.uint8(0))
        target = views[chosen].view(np.uint8)
        target[:, 4 : 4 + count] = values
        if count == _INLINE:
            views[chosen] = target.view(np.int32)
        else:
            views[chosen, 1] = target.view(np.int32)[:, 1]
