# SPDX-License-Identifier: Apache-2.0
"""Exports records to NumPy files: the records of a name stacked in one array.

    index.json                       files, names, types and shapes
    block_resid-5f1c0a37-00000.npy   [n, *shape]
    block_resid-5f1c0a37-00000.rows.npy   [n], step, layer and so on of each

NumPy's format does not know the types of ``ml_dtypes``. Their files hold unsigned
integers of the same width: ``np.load(file).view(ml_dtypes.bfloat16)``, with the
type that the index names.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from typing import Any

import numpy as np

from jax_dmi import format as run_format
from jax_dmi.read import export
from jax_dmi.read import frames
from jax_dmi.read import payloads
from jax_dmi.read import rows as run_rows

_MOST_RECORDS = 1 << 24
# Rows made dense at once.
_PART_BYTES = 64 << 20
_PART_RECORDS = 1 << 16

_ROW = np.dtype(
    [
        ("process", np.int32),
        ("device", np.int32),
        ("seq", np.uint64),
        ("has_step", np.bool_),
        ("step", np.int64),
        ("has_layer", np.bool_),
        ("layer", np.int64),
        ("boundary", np.uint64),
        ("time_ns", np.int64),
    ]
)


def write(
    source: export.Source, folder: pathlib.Path, limit: int
) -> list[pathlib.Path]:
    """Writes an array per name, type and shape, by step, layer and sequence."""
    kinds, which = frames.shards(source.rows, source.descriptions)
    groups: dict[tuple, list[int]] = {}
    for i, (site, shard) in enumerate(kinds):
        groups.setdefault((site.name, site.dtype, shard.shape), []).append(i)
    paths: list[pathlib.Path] = []
    entries = []
    for (name, dtype, shape), members in sorted(groups.items()):
        chosen = np.flatnonzero(np.isin(which, members))
        part = source.take(chosen).rows
        order = np.lexsort(
            (
                part.device,
                part.seq,
                part.layer,
                part.has_layer,
                part.step,
                part.has_step,
            )
        )
        mine = source.take(chosen[order])
        stem = _stem(name, dtype, shape)
        sizes = mine.sizes()
        for k, shard in enumerate(export.shards_of(sizes, limit, _MOST_RECORDS)):
            path = folder / f"{stem}-{k:05d}.npy"
            entry = _write(mine.take(shard), dtype, shape, path)
            entries.append({"name": name, **entry})
            paths.append(path)
    with export.new_file(folder / "index.json") as file:
        export.write_all(file, json.dumps(entries, indent=1).encode() + b"\n")
    return paths


def _write(
    source: export.Source, dtype: str, shape: tuple[int, ...], path: pathlib.Path
) -> dict[str, Any]:
    stored = _stored(dtype)
    rows = path.with_suffix(".rows.npy")
    whole = (len(source.rows), *shape)
    with export.new_file(path) as file:
        header = {"descr": stored.str, "fortran_order": False, "shape": whole}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in export.shards_of(source.sizes(), _PART_BYTES, _PART_RECORDS):
            part = source.take(piece).dense()
            where = (part.rows.file, part.rows.place, part.rows.size)
            for data in payloads.chunks(part.files, *where):
                export.write_all(file, data)
    with export.new_file(rows) as file:
        np.lib.format.write_array(file, _labels(source.rows))
    return {
        "file": path.name,
        "rows": rows.name,
        "dtype": dtype,
        "stored_dtype": stored.name,
        "shape": list(whole),
    }


def _stored(dtype: str) -> np.dtype:
    kind = run_format.dtype_of(dtype)
    # 1 is a type of NumPy itself.
    if kind.isbuiltin == 1:
        return kind
    return np.dtype(f"u{kind.itemsize}")


def _labels(rows: run_rows.Rows) -> np.ndarray:
    found = np.empty(len(rows), _ROW)
    for field in _ROW.names or ():
        found[field] = getattr(rows, "time" if field == "time_ns" else field)
    return found


def _stem(name: str, dtype: str, shape: tuple[int, ...]) -> str:
    """Returns a file name that is unique, and safe whatever the name holds."""
    text = json.dumps([name, dtype, shape])
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', name)[:100]}-{digest}"
