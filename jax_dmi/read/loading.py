# SPDX-License-Identifier: Apache-2.0
"""Loads a run: finds its segments and puts their rows together."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
from typing import Any
import weakref

import numpy as np

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import records
from jax_dmi.read import mapped
from jax_dmi.read import rows as run_rows
from jax_dmi.read import segments
from jax_dmi.read import sidecar
from jax_dmi.read import storage as run_storage
from jax_dmi.read import stream


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
    """The content of a run.

    Attributes:
      header: Content of the run's own file; {} if that is lost.
      rows: All sound rows, by process, device and sequence.
      descriptions: Sites and layouts of the rows.
      files: What ``rows.file`` counts.
      segments: The same as segments.
    """

    header: dict[str, Any]
    rows: run_rows.Rows
    descriptions: records.Descriptions
    files: Sequence[mapped.File]
    segments: Sequence[segments.Segment]

    def records(self, rows: run_rows.Rows) -> Iterator[records.Record]:
        """Yields the records of rows; not for too many at once."""
        columns = [
            getattr(rows, name).tolist()
            for name in ("seq", "site", "layout", "step", "layer")
        ]
        later = [getattr(rows, name).tolist() for name in ("boundary", "time", "flags")]
        where = zip(rows.file.tolist(), rows.place.tolist(), rows.size.tolist())
        owners = zip(rows.process.tolist(), rows.device.tolist())
        fields = zip(*columns, rows.labels, *later)
        for row, (file, place, size), owner in zip(fields, where, owners):
            payload = self.files[file].data[place : place + size]
            yield records.build(self.descriptions, row, payload, *owner)


def load(path: str) -> Loaded:
    """Loads a run.

    Raises:
      RunError: There is none, or one of another version.
    """
    storage, names = find(path)
    try:
        header = run_storage.read_json(storage, run_format.RUN_FILE) or {}
    except (ValueError, OSError):
        # Segments can be read without it; `verify` tells.
        header = {}
    check_version(path, header)
    found = []
    every = set(names)
    for name in names:
        owner = run_storage.owner(name)
        if owner is not None:
            try:
                found.append(_read(storage, owner, name, every))
            except OSError as error:
                raise errors.RunError(
                    f"{name} of {run_storage.shown(path)!r} cannot be read: {error}"
                ) from error
    nonce = agreed_nonce(header, [segment.schema for segment in found])
    found = [s for s in found if is_of_run(s, nonce)]
    found.sort(key=lambda segment: segment.owner)
    return assemble(header, found)


def find(path: str) -> tuple[run_storage.Storage, list[str]]:
    """Returns the storage of a run, and the names of its files.

    Raises:
      RunError: There is no run.
    """
    shown = run_storage.shown(path)
    storage = run_storage.connect(path)
    try:
        names = list(storage.names())
    except (FileNotFoundError, NotADirectoryError):
        raise errors.RunError(f"{shown!r} is no directory; name that of a run.") from (
            None
        )
    except OSError as error:
        raise errors.RunError(f"{shown!r} cannot be read: {error}") from error
    is_run = run_format.RUN_FILE in names
    if not is_run and not any(run_storage.owner(name) for name in names):
        raise errors.RunError(f"{shown!r} holds no run; name the directory of one.")
    return storage, names


def check_version(path: str, header: dict[str, Any]) -> None:
    """Raises unless this version can read a run.

    Raises:
      RunError: The run has another version.
    """
    version = header.get("format", run_format.VERSION)
    if isinstance(version, int) and version != run_format.VERSION:
        raise errors.RunError(
            f"{run_storage.shown(path)!r} has format {version}, and this version of"
            f" jax_dmi reads {run_format.VERSION}; read it with the one that wrote it."
        )


def agreed_nonce(
    header: dict[str, Any], schemas: Sequence[dict[bytes, bytes] | None]
) -> bytes | None:
    """Returns the nonce of the run, None if it is not known.

    One that no segment has is damaged: what would be left of the run otherwise?
    """
    nonce = header.get("nonce")
    if not isinstance(nonce, str):
        return None
    encoded = nonce.encode(errors="replace")
    known = {schema.get(run_format.META_NONCE) for schema in schemas if schema}
    return encoded if encoded in known or not known else None


def is_of_run(segment: segments.Segment, nonce: bytes | None) -> bool:
    """Whether a segment belongs to the run it lies in, as far as that is known."""
    if segment.schema is None or nonce is None:
        return True
    return segment.schema.get(run_format.META_NONCE) == nonce


def assemble(header: dict[str, Any], found: Sequence[segments.Segment]) -> Loaded:
    """Puts segments together."""
    descriptions = records.Descriptions()
    for segment in found:
        descriptions.add(segment.sites, segment.layouts)
    rows = run_rows.of_segments(found)
    known = described(rows.site, rows.layout, descriptions)
    if not known.all():
        rows = rows.take(known)
    files = [segment.file for segment in found]
    return Loaded(header, rows, descriptions, files, found)


def described(
    site: np.ndarray, layout: np.ndarray, descriptions: records.Descriptions
) -> np.ndarray:
    """Returns bool[n], of which rows both ids are described."""
    sites = np.array(list(descriptions.sites), np.uint64)
    layouts = np.array([0, *descriptions.layouts], np.uint64)
    return np.isin(site, sites) & np.isin(layout, layouts)


# Segments of open runs, by what tells whether a file is still the same.
_cache: weakref.WeakValueDictionary[tuple, segments.Segment]
_cache = weakref.WeakValueDictionary()


def _read(
    storage: run_storage.Storage, owner: segments.Owner, name: str, names: set[str]
) -> segments.Segment:
    file = storage.open(name)
    key = (file.path, file.version, owner)
    found = _cache.get(key) if file.version else None
    if found is None:
        if sidecar.name_of(name) in names:
            schema = stream.schema(file.data)
            found = sidecar.load(storage, schema, owner, name, file)
        if found is None:
            found = segments.read(segments.scan(owner, name, file))
            if sidecar.is_worth_it(found):
                sidecar.save(storage, found)
        if file.version:
            _cache[key] = found
    return found
