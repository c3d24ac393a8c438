# SPDX-License-Identifier: Apache-2.0
"""The columns of a segment of many small batches, kept beside it.

Finding a hundred thousand batches takes a while, so who opened such a segment keeps
its columns, without the payloads, in ``segment-000000.index.arrow``: an Arrow IPC
file, which is mapped. It is used for a segment of the same run and size only, and
only if nothing in it has changed; ``verify`` does not look at it.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from jax_dmi import _native
from jax_dmi import format as run_format
from jax_dmi.read import mapped
from jax_dmi.read import segments
from jax_dmi.read import storage as run_storage

# Below, reading the segment itself is as fast.
_MANY_BATCHES = 4096
_FEW_ROWS = 64

_VERSION = 1

# What reading a damaged file may raise.
_DAMAGE = (
    pa.ArrowException,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)
_ABOUT = b"dmi.index"
_SUFFIX = ".index.arrow"


def name_of(segment: str) -> str:
    """Returns the name of the sidecar of a segment."""
    return segment.removesuffix(".arrow") + _SUFFIX


def is_worth_it(segment: segments.Segment) -> bool:
    """Whether a segment is slow to read, and will not change any more."""
    batches = segment.batches
    slow = batches >= _MANY_BATCHES and segment.records < _FEW_ROWS * batches
    whole = segment.closed and not (segment.gaps or segment.bad or segment.unfit)
    return slow and whole and segment.schema is not None


def save(storage: run_storage.Storage, segment: segments.Segment) -> None:
    """Writes the sidecar of a segment, where that is possible."""
    table = pa.table(
        {name: _as_arrow(values) for name, values in segment.columns.items()}
    )
    about = {
        "version": _VERSION,
        "size": segment.file.data.size,
        "schema": _text(segment.schema or {}),
        "check": segment.check,
        "batches": segment.batches,
        "sites": {str(number): text for number, text in segment.sites.items()},
        "layouts": {str(number): text for number, text in segment.layouts.items()},
    }
    about["crc"] = _crc(segment.columns, about)
    table = table.replace_schema_metadata({_ABOUT: json.dumps(about)})
    storage.keep(name_of(segment.name), table)


def load(
    storage: run_storage.Storage,
    scanned_schema: dict[bytes, bytes] | None,
    owner: segments.Owner,
    name: str,
    file: mapped.File,
) -> segments.Segment | None:
    """Returns a segment out of its sidecar, None if there is none that fits.

    Args:
      storage: The run.
      scanned_schema: Metadata of the segment's schema.
      owner: Whose the segment is.
      name: Name of the segment.
      file: Its bytes.
    """
    try:
        kept = storage.open(name_of(name))
        table = pa.ipc.open_file(pa.py_buffer(kept.data)).read_all()
        table.validate(full=True)
        about = json.loads((table.schema.metadata or {})[_ABOUT])
        crc = about.pop("crc")
        right = (
            about["version"] == _VERSION
            and about["size"] == file.data.size
            and about["schema"] == _text(scanned_schema or {})
        )
        columns = {key: _as_numpy(table, key) for key in segments.KEPT}
        if not right or _crc(columns, about) != crc:
            return None
        return segments.Segment(
            owner=owner,
            name=name,
            file=file,
            schema=scanned_schema,
            columns=columns,
            sites={int(key): text for key, text in about["sites"].items()},
            layouts={int(key): text for key, text in about["layouts"].items()},
            unfit=[],
            bad=[],
            wrong_validity=[],
            gaps=[],
            closed=True,
            ends_in_zeros=False,
            batches=int(about["batches"]),
            records=len(table),
            check=int(about["check"]),
        )
    except _DAMAGE:
        return None


def _text(schema: dict[bytes, bytes]) -> dict[str, str]:
    return {key.hex(): value.hex() for key, value in schema.items()}


def _crc(columns: dict[str, np.ndarray], about: dict[str, Any]) -> int:
    text = json.dumps(about, sort_keys=True).encode()
    crc = _native.crc32c(np.frombuffer(text, np.uint8))
    for name in sorted(columns):
        values = np.ascontiguousarray(columns[name])
        crc = _native.crc32c(values.reshape(-1).view(np.uint8), crc)
    return crc


def _as_arrow(values: np.ndarray) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _as_numpy(table: pa.Table, name: str) -> np.ndarray:
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.FixedSizeListArray):
        values = column.flatten().to_numpy().reshape(-1, run_format.LABELS)
    else:
        values = column.to_numpy()
    if values.dtype != segments.empty_column(name).dtype:
        raise ValueError(f"{name} has the wrong type")
    return values
