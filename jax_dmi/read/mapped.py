# SPDX-License-Identifier: Apache-2.0
"""The bytes of a file of a run: mapped into memory, or read straight from it."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import os

import numpy as np
import pyarrow as pa

# A small file is read, which is faster than mapping it.
_SMALL = 1 << 18


@dataclasses.dataclass(frozen=True, eq=False)
class File:
    """A file as it was when it was opened; what is appended later is not seen.

    Attributes:
      path: Path of the file, on a local disk.
      data: uint8[size], its bytes, read-only and aligned to 16.
      identity: What tells it from another file that takes its path later.
      version: What tells its content from another one; None if nothing does.
    """

    path: str
    data: np.ndarray
    identity: tuple[int, int]
    version: tuple[int, ...] | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[int | None]:
        """Opens a file descriptor; None if the file is no longer there."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            yield fd if _identity(os.fstat(fd)) == self.identity else None
        finally:
            os.close(fd)


def open_file(path: str) -> File:
    """Maps a file.

    Raises:
      OSError: It cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_size < _SMALL:
            data = _aligned(os.pread(fd, _SMALL, 0))
        else:
            data = _map(path)
    finally:
        os.close(fd)
    data.flags.writeable = False
    version = (*_identity(status), status.st_size, status.st_mtime_ns)
    return File(path, data, _identity(status), version)


def _map(path: str) -> np.ndarray:
    # Python's own mmap keeps a descriptor for as long as the mapping lives, of
    # which a run of many segments needs too many.
    with pa.memory_map(path) as file:
        return np.frombuffer(file.read_buffer(), np.uint8)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return (status.st_dev, status.st_ino)


def _aligned(content: bytes) -> np.ndarray:
    """Returns a copy that starts at a multiple of 64, as in a mapped file."""
    room = np.empty(len(content) + 64, np.uint8)
    begin = -room.ctypes.data % 64
    copy = room[begin : begin + len(content)]
    copy[:] = np.frombuffer(content, np.uint8)
    return copy


def in_memory(data: np.ndarray) -> File:
    """Returns bytes that are in no file: uint8[n]."""
    return File("", data, (0, 0))
