# SPDX-License-Identifier: Apache-2.0
"""The place of a run: a local directory, or a prefix of an object store.

Both create what must be created once, replace what changes as a whole, and make
the files of segments. All names are relative to the run and made by
``jax_dmi.format`` out of numbers: nothing a user named becomes part of a path.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import os
import secrets
from typing import Protocol
import urllib.parse

from pyarrow import fs

from jax_dmi import errors
from jax_dmi.sinks import files

# Stores that have no directories of their own.
_FLAT = ("s3", "gcs", "abfs")


class Storage(Protocol):
    """What a run needs of the place where it is.

    Attributes:
      seals_on_flush: Whether data is visible to readers only in a sealed file.
    """

    seals_on_flush: bool

    def prepare(self) -> None:
        """Makes the run's directory, unless it is there."""

    def exists(self, name: str) -> bool:
        """Whether a file or directory is there."""
        ...

    def make_folder(self, name: str) -> None:
        """Creates a directory; raises FileExistsError if it is there."""

    def create(self, name: str, data: bytes) -> None:
        """Creates a whole file; raises FileExistsError if it is there."""

    def replace(self, name: str, data: bytes) -> None:
        """Writes a whole file; readers see the old one or the new one."""

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        ...

    def remove(self, name: str) -> None:
        """Deletes a file."""

    def segment(self, name: str) -> files.SegmentFile:
        """Creates the file of a segment, and its directory."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Makes files survive a power failure."""


class LocalStorage:
    """A directory of a file system of this machine."""

    seals_on_flush = False

    def __init__(self, root: str) -> None:
        self._root = root

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def prepare(self) -> None:
        """Makes the directory and those above it."""
        os.makedirs(self._root, exist_ok=True)

    def exists(self, name: str) -> bool:
        """Whether a file or directory is there; a dangling link is."""
        return os.path.lexists(self._path(name))

    def make_folder(self, name: str) -> None:
        """Creates a directory exclusively."""
        os.mkdir(self._path(name))

    def create(self, name: str, data: bytes) -> None:
        """Creates a file exclusively, which appears with all its content."""
        draft = self._draft(name, data)
        try:
            os.link(draft, self._path(name))
        except FileExistsError:
            raise
        except OSError:
            # A file system without hard links: exclusive, though a reader may
            # see the beginning of the file for a moment.
            with open(self._path(name), "xb") as file:
                file.write(data)
        finally:
            os.unlink(draft)

    def replace(self, name: str, data: bytes) -> None:
        """Renames a new file over the old one."""
        draft = self._draft(name, data)
        try:
            os.replace(draft, self._path(name))
        except OSError:
            os.unlink(draft)
            raise

    def _draft(self, name: str, data: bytes) -> str:
        folder, base = os.path.split(self._path(name))
        draft = os.path.join(folder, f".{base}.{secrets.token_hex(6)}")
        try:
            with open(draft, "wb") as file:
                file.write(data)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        return draft

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        with open(self._path(name), "rb") as file:
            return file.read()

    def remove(self, name: str) -> None:
        """Deletes a file."""
        os.unlink(self._path(name))

    def segment(self, name: str) -> files.LocalFile:
        """Creates a file exclusively."""
        path = self._path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return files.LocalFile(path)

    def sync(self, names: Iterable[str]) -> None:
        """Forces files, and the directories that name them, to the disk."""
        paths = {self._path(name) for name in names}
        folders = {os.path.dirname(path) for path in paths}
        folders |= {os.path.dirname(folder) for folder in folders} | {self._root}
        for path in sorted(paths) + sorted(folders):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


class ObjectStorage:
    """A prefix of an object store, or of any other file system of pyarrow.

    Such a store cannot create exclusively. Two runs that take one name within the
    moment between looking and writing are not told apart.
    """

    seals_on_flush = True

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _make_folders(self, path: str) -> None:
        if self._fs.type_name not in _FLAT:
            self._fs.create_dir(path, recursive=True)

    def prepare(self) -> None:
        """Makes the directory where the file system has such."""
        self._make_folders(self._root)

    def exists(self, name: str) -> bool:
        """Whether an object, or any below the name, is there."""
        info = self._fs.get_file_info(self._path(name))
        return info.type != fs.FileType.NotFound

    def make_folder(self, name: str) -> None:
        """Creates a directory, or nothing where there are none."""
        self._refuse_existing(name)
        self._make_folders(self._path(name))

    def _refuse_existing(self, name: str) -> None:
        if self.exists(name):
            raise FileExistsError(f"{name} exists")

    def create(self, name: str, data: bytes) -> None:
        """Creates an object."""
        self._refuse_existing(name)
        self.replace(name, data)

    def replace(self, name: str, data: bytes) -> None:
        """Writes an object, which replaces the old one as a whole."""
        with self._fs.open_output_stream(self._path(name)) as stream:
            stream.write(data)

    def read(self, name: str) -> bytes:
        """Returns the content of an object."""
        with self._fs.open_input_stream(self._path(name)) as stream:
            return stream.read()

    def remove(self, name: str) -> None:
        """Deletes an object."""
        self._fs.delete_file(self._path(name))

    def segment(self, name: str) -> files.ObjectFile:
        """Creates an object."""
        path = self._path(name)
        self._make_folders(os.path.dirname(path))
        return files.ObjectFile(self._fs, path)

    def sync(self, names: Iterable[str]) -> None:
        """Does nothing: what a store took is kept."""


# --- Addresses ---------------------------------------------------------------


def connect(uri: str) -> Storage:
    """Returns the storage at a path or ``pyarrow.fs`` URI.

    Raises:
      DmiValueError: pyarrow does not understand the URI.
    """
    if not is_uri(uri):
        return LocalStorage(uri)
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (ValueError, NotImplementedError) as error:
        raise errors.DmiValueError(
            f"run={shown(uri)!r} is no path and no URI that pyarrow.fs knows: {error}"
        ) from None
    if isinstance(filesystem, fs.LocalFileSystem):
        return LocalStorage(path)
    return ObjectStorage(filesystem, path)


def is_uri(uri: str) -> bool:
    """Whether an address is a URI rather than a path."""
    return "://" in uri


def absolute(uri: str) -> str:
    """Returns an address that means the same in every working directory."""
    return uri if is_uri(uri) else os.path.abspath(uri)


def numbered(uri: str, number: int) -> str:
    """Returns the address of the next candidate for a run: ``<run>-2``, ..."""
    if not is_uri(uri):
        return f"{uri}-{number}"
    parts = urllib.parse.urlsplit(uri)
    path = f"{parts.path.rstrip('/')}-{number}"
    return urllib.parse.urlunsplit(parts._replace(path=path))


def shown(uri: str) -> str:
    """Returns an address for a message: without keys and passwords."""
    if not is_uri(uri):
        return uri
    parts = urllib.parse.urlsplit(uri)
    place = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, place, parts.path, "", ""))


def reason(error: OSError) -> str:
    """Returns what the system said, without the path, which the caller names."""
    return error.strerror or str(error) or type(error).__name__
