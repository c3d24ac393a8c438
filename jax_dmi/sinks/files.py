# SPDX-License-Identifier: Apache-2.0
"""Files that grow by whole messages: on a local disk, or in an object store."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import errno
import os
from typing import Protocol

from pyarrow import fs

from jax_dmi import format as run_format
from jax_dmi.sinks import ipc

_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")


class SegmentFile(Protocol):
    """A file that grows by whole messages and is sealed in the end.

    Attributes:
      size: Bytes of the whole messages in the file; once sealed, of the file.
      messages: Number of these messages.
      keeps_unsealed: Whether they stay readable when the file cannot be sealed.
    """

    size: int
    messages: int
    keeps_unsealed: bool

    def append(self, messages: Sequence[ipc.Message]) -> None:
        """Appends messages.

        Raises:
          OSError: ``messages`` tells how many came through; nothing may be
            appended any more.
        """

    def seal(self) -> None:
        """Ends the stream behind the last whole message, and closes the file.

        Raises:
          OSError: The end is missing, and all that comes before unless
            ``keeps_unsealed``. The file is closed.
        """

    def discard(self) -> None:
        """Closes the file and takes it away; never raises."""


class LocalFile:
    """A file of the operating system; what was appended is visible at once."""

    keeps_unsealed = True

    def __init__(self, path: str) -> None:
        """Creates the file.

        Raises:
          FileExistsError: There is one.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o666)
        self._path = path
        self.size = 0
        self.messages = 0

    def append(self, messages: Sequence[ipc.Message]) -> None:
        """Appends messages with as few system calls as there can be."""
        end = self.size
        try:
            pending = [buffer for message in messages for buffer in message.buffers]
            while pending:
                count = os.pwritev(self._fd, pending[:_MOST_BUFFERS], end)
                if not count:
                    raise OSError(errno.EIO, "nothing was written", self._path)
                end += count
                pending = _behind(pending, count)
        finally:
            for message in messages:
                if self.size + message.size > end:
                    break
                self.size += message.size
                self.messages += 1

    def seal(self) -> None:
        """Cuts a torn message off and ends the stream."""
        try:
            try:
                # Over a torn message where there is one: on a full disk, that is
                # the only place for it.
                os.pwrite(self._fd, run_format.END_OF_STREAM, self.size)
                end = self.size + len(run_format.END_OF_STREAM)
            except OSError:
                os.ftruncate(self._fd, self.size)
                raise
            os.ftruncate(self._fd, end)
            self.size = end
        finally:
            os.close(self._fd)

    def discard(self) -> None:
        """Closes and deletes the file."""
        os.close(self._fd)
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _behind(buffers: list, count: int) -> list:
    """Returns what is left of the buffers behind ``count`` bytes."""
    for i, buffer in enumerate(buffers):
        size = len(buffer)
        if count < size:
            rest = [memoryview(buffer)[count:]] if count else [buffer]
            return rest + buffers[i + 1 :]
        count -= size
    return []


class ObjectFile:
    """An object of a store: visible when sealed, and then as a whole."""

    keeps_unsealed = False

    def __init__(self, filesystem: fs.FileSystem, path: str) -> None:
        self._fs = filesystem
        self._path = path
        self._stream = filesystem.open_output_stream(path)
        self.size = 0
        self.messages = 0

    def append(self, messages: Sequence[ipc.Message]) -> None:
        """Hands messages to the store."""
        for message in messages:
            for buffer in message.buffers:
                self._stream.write(buffer)
            self.size += message.size
            self.messages += 1

    def seal(self) -> None:
        """Ends the stream; a store cannot cut a torn message off."""
        try:
            if self._stream.tell() == self.size:
                self._stream.write(run_format.END_OF_STREAM)
                self.size += len(run_format.END_OF_STREAM)
        finally:
            self._stream.close()

    def discard(self) -> None:
        """Closes and deletes the object."""
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._fs.delete_file(self._path)
