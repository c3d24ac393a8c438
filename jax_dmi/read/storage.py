# SPDX-License-Identifier: Apache-2.0
"""Where a run is: a local directory, or a place that ``pyarrow.fs`` knows."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import json
import os
import re
import shutil
import tempfile
from typing import Any
from typing import Protocol
import urllib.parse

import pyarrow as pa
from pyarrow import fs

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi.read import mapped
from jax_dmi.read import segments

_SEGMENT = re.compile(r"process-(\d{1,9})/device-(\d{1,9})/segment-(\d{6,12})\.arrow")
_PROCESS = re.compile(r"process-(\d{1,9})")


class Storage(Protocol):
    """The files of a run; names are relative to it."""

    def names(self) -> Iterator[str]:
        """Yields the names of all files that may belong to a run.

        Raises:
          OSError: The place cannot be read.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """Returns the content of a small file, None if there is no such file."""
        ...

    def open(self, name: str) -> mapped.File:
        """Opens a segment.

        Raises:
          OSError: It cannot be read.
        """
        ...

    def keep(self, name: str, content: pa.Table) -> None:
        """Writes a table that saves time later, if that is possible here."""
        ...


class Local:
    """A directory."""

    def __init__(self, root: str) -> None:
        self._root = root

    def names(self) -> Iterator[str]:
        """Yields the names of files, three levels deep."""
        for process in _entries(self._root):
            if not process.is_dir():
                yield process.name
            elif _PROCESS.fullmatch(process.name):
                for device in _entries(process.path):
                    if device.is_dir():
                        prefix = f"{process.name}/{device.name}"
                        for file in _entries(device.path):
                            yield f"{prefix}/{file.name}"
                    else:
                        yield f"{process.name}/{device.name}"

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file."""
        try:
            with open(os.path.join(self._root, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def open(self, name: str) -> mapped.File:
        """Maps a file."""
        return mapped.open_file(os.path.join(self._root, name))

    def keep(self, name: str, content: pa.Table) -> None:
        """Writes a file that has its name only once it is complete."""
        folder, base = os.path.split(os.path.join(self._root, name))
        draft = os.path.join(folder, f".{base}.{os.getpid()}")
        try:
            open(draft, "xb").close()
            with pa.OSFile(draft, "wb") as file:
                with pa.ipc.new_file(file, content.schema) as writer:
                    writer.write_table(content)
            os.replace(draft, os.path.join(folder, base))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft)


def _entries(path: str) -> list[os.DirEntry]:
    with os.scandir(path) as found:
        return list(found)


class Remote:
    """A place of ``pyarrow.fs``, whose segments are copied to read them.

    The copies are on the local disk, without a name, and go with their arrays.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def names(self) -> Iterator[str]:
        """Yields the names of files."""
        selector = fs.FileSelector(self._root, recursive=True)
        for info in self._filesystem.get_file_info(selector):
            if info.type == fs.FileType.File:
                yield info.path[len(self._root) :].lstrip("/")

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file."""
        try:
            with self._filesystem.open_input_stream(f"{self._root}/{name}") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def open(self, name: str) -> mapped.File:
        """Copies a file and maps the copy."""
        source = self._filesystem.open_input_stream(f"{self._root}/{name}")
        with source, tempfile.NamedTemporaryFile(prefix="jax_dmi-") as copy:
            shutil.copyfileobj(source, copy, 1 << 22)
            copy.flush()
            return dataclasses.replace(mapped.open_file(copy.name), version=None)

    def keep(self, name: str, content: pa.Table) -> None:
        """Does nothing: only who writes a run writes to a store."""


def connect(path: str) -> Storage:
    """Returns the storage at a path or URI.

    Raises:
      DmiValueError: pyarrow does not understand the URI.
      RunError: There is no such place.
    """
    if "://" not in path:
        return Local(os.path.abspath(path))
    try:
        filesystem, root = fs.FileSystem.from_uri(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise errors.DmiValueError(
            f"path={shown(path)!r} is no path and no URI that pyarrow.fs knows: {error}"
        ) from None
    if isinstance(filesystem, fs.LocalFileSystem):
        return Local(root)
    return Remote(filesystem, root)


def shown(path: str) -> str:
    """Returns an address for a message: without keys and passwords."""
    if "://" not in path:
        return path
    parts = urllib.parse.urlsplit(path)
    place = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, place, parts.path, "", ""))


def owner(name: str) -> segments.Owner | None:
    """Returns whose segment a file is, None for any other file."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    process, device, number = map(int, match.groups())
    # Only the name that a sink gives: no other number of digits.
    if name != run_format.segment_path(process, device, number):
        return None
    return segments.Owner(process, device, number)


def process(name: str) -> int | None:
    """Returns whose directory a file is in, None for one of nobody."""
    folder, slash, _ = name.partition("/")
    match = _PROCESS.fullmatch(folder)
    if match is None or not slash:
        return None
    number = int(match[1])
    return number if folder == run_format.process_dir(number) else None


def read_json(storage: Storage, name: str) -> dict[str, Any] | None:
    """Returns the object in a JSON file, None if there is no such file.

    Raises:
      ValueError: The file is damaged.
    """
    content = storage.read(name)
    if content is None:
        return None
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found
