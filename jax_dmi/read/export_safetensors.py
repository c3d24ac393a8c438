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
from jax_dmi import records
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
    encoded = _header(kinds, which, rows, name_of)
    with export.new_file(path) as file:
        export.write_all(file, struct.pack("<Q", len(encoded)) + encoded)
        for part in payloads.chunks(source.files, rows.file, rows.place, rows.size):
            export.write_all(file, part)


def _header(
    kinds: list[tuple[run_format.SiteInfo, records.Shard]],
    which: np.ndarray,
    rows: run_rows.Rows,
    name_of: _Names,
) -> bytes:
    """Returns the header of tensors that lie one behind the other."""
    stored = [_stored(site.dtype, shard.shape) for site, shard in kinds]
    ends = np.cumsum(rows.size)
    names = name_of([kinds[k][0].name for k in which.tolist()], rows)
    # Text, because there may be very many.
    about = [
        f'"dtype":{json.dumps(dtype)},"shape":{json.dumps(shape)},"data_offsets":'
        for dtype, shape in stored
    ]
    columns = zip(names, which.tolist(), (ends - rows.size).tolist(), ends.tolist())
    entries = [
        f"{json.dumps(name)}:{{{about[kind]}[{begin},{end}]}}"
        for name, kind, begin, end in columns
    ]
    others = {
        name: kinds[kind][0].dtype
        for name, kind in zip(names, which.tolist())
        if kinds[kind][0].dtype not in _DTYPES
    }
    metadata = {"format": "np"}
    if others:
        metadata["jax_dmi.dtypes"] = json.dumps(others)
    entries.insert(0, f'"__metadata__":{json.dumps(metadata)}')
    text = f"{{{','.join(entries)}}}".encode()
    return text + b" " * (-len(text) % 8)


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

    def __call__(self, names: list[str], rows: run_rows.Rows) -> list[str]:
        """Returns the names of the tensors of rows, given those of their sites."""
        several = np.array([name in self._by_device for name in names], bool)
        doubled = np.array([name in self._by_seq for name in names], bool)
        parts = zip(
            _told("step", rows.step, rows.has_step),
            _told("layer", rows.layer, rows.has_layer),
            _told("device", rows.device, several),
            _told("seq", rows.seq, doubled),
        )
        suffixes = [",".join(filter(None, found)) for found in parts]
        return [f"{n}@{suffix}" if suffix else n for n, suffix in zip(names, suffixes)]


def _told(label: str, values: np.ndarray, used: np.ndarray) -> list[str]:
    columns = zip(values.tolist(), used.tolist())
    return [f"{label}={value}" if tells else "" for value, tells in columns]
