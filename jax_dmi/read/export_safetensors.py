# SPDX-License-Identifier: Apache-2.0
"""Exports records to safetensors: a tensor each.

The format is a size, a JSON header and the bytes. It is written here because the
library takes all tensors of a file at once; what it reads back is the same.
"""

from __future__ import annotations

import json
import pathlib
import struct

import numpy as np

from jax_dmi import format as run_format
from jax_dmi.read import export
from jax_dmi.read import frames
from jax_dmi.read import payloads
from jax_dmi.read import rows as run_rows

# Readers refuse headers of more than 100 MB; a record takes some hundred bytes.
_MOST_RECORDS = 1 << 17

_DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}


def write(
    source: export.Source, folder: pathlib.Path, limit: int
) -> list[pathlib.Path]:
    """Writes ``records-<n>.safetensors``.

    A tensor is named ``<name>@step=3,layer=1``, as far as it has these; with the
    device if several have the name, and the sequence number if several records
    have the same of all that.
    """
    name_of = _Names(source)
    paths = []
    for shard in export.shards_of(source.sizes(), limit, _MOST_RECORDS):
        paths.append(folder / f"records-{len(paths):05d}.safetensors")
        _write(source.take(shard).dense(), name_of, paths[-1])
    return paths


def _write(source: export.Source, name_of: _Names, path: pathlib.Path) -> None:
    # Large elements first, so that all of them are aligned.
    kinds, which = frames.shards(source.rows, source.descriptions)
    itemsize = [run_format.dtype_of(site.dtype).itemsize for site, _ in kinds]
    order = np.lexsort((which, -np.array(itemsize, np.int64)[which]))
    rows, which = source.rows.take(order), which[order]
    ends = np.cumsum(rows.size)
    header: dict[str, dict] = {}
    others: dict[str, str] = {}
    columns = zip(which.tolist(), (ends - rows.size).tolist(), ends.tolist())
    for i, (kind, begin, end) in enumerate(columns):
        site, shard = kinds[kind]
        name = name_of(rows, i, site.name)
        dtype, shape = _stored(site.dtype, shard.shape)
        if dtype != _DTYPES.get(site.dtype):
            others[name] = site.dtype
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    about = {"format": "np"}
    if others:
        about["jax_dmi.dtypes"] = json.dumps(others)
    text = json.dumps({"__metadata__": about, **header}, separators=(",", ":"))
    encoded = text.encode() + b" " * (-len(text.encode()) % 8)
    with export.new_file(path) as file:
        export.write_all(file, struct.pack("<Q", len(encoded)) + encoded)
        for part in payloads.chunks(source.files, rows.file, rows.place, rows.size):
            export.write_all(file, part)


def _stored(dtype: str, shape: tuple[int, ...]) -> tuple[str, list[int]]:
    """Returns type and shape in the file.

    What the format does not know is kept as numbers of the same value, or if it
    has none of these, as its bits; the metadata name the type.
    """
    if dtype in _DTYPES:
        return _DTYPES[dtype], list(shape)
    if dtype == "complex128":
        return "F64", [*shape, 2]
    return ("I8" if dtype.startswith("int") else "U8"), list(shape)


class _Names:
    """Names tensors, so that no two are the same."""

    def __init__(self, source: export.Source) -> None:
        rows = source.rows
        names = sorted({site.name for site in source.descriptions.sites.values()})
        number = {name: i for i, name in enumerate(names)}
        ids = {k: number[s.name] for k, s in source.descriptions.sites.items()}
        site, which = np.unique(rows.site, return_inverse=True)
        name = np.array([ids[int(k)] for k in site], np.int64)[which]
        keys = [name, rows.has_step, rows.step, rows.has_layer, rows.layer]
        self._by_device = self._doubled(names, name, [name, rows.device], True)
        self._by_seq = self._doubled(names, name, [*keys, rows.device], False)

    @staticmethod
    def _doubled(
        names: list[str], name: np.ndarray, keys: list[np.ndarray], distinct: bool
    ) -> set[str]:
        """Returns names that have several distinct, or several equal keys."""
        if not len(name):
            return set()
        order = np.lexsort(keys[::-1])
        equal = np.ones(len(name) - 1, bool)
        for key in keys:
            equal &= key[order][1:] == key[order][:-1]
        same_name = name[order][1:] == name[order][:-1]
        found = same_name & ~equal if distinct else equal
        return {names[i] for i in np.unique(name[order][1:][found])}

    def __call__(self, rows: run_rows.Rows, i: int, name: str) -> str:
        parts = []
        if rows.flags[i] & run_format.HAS_STEP:
            parts.append(f"step={rows.step[i]}")
        if rows.flags[i] & run_format.HAS_LAYER:
            parts.append(f"layer={rows.layer[i]}")
        if name in self._by_device:
            parts.append(f"device={rows.device[i]}")
        if name in self._by_seq:
            parts.append(f"seq={rows.seq[i]}")
        return f"{name}@{','.join(parts)}" if parts else name
