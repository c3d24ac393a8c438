# SPDX-License-Identifier: Apache-2.0
"""Rows as Arrow columns, with everything spelled out that rows hold as ids."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from jax_dmi import format as run_format
from jax_dmi import records
from jax_dmi.read import mapped
from jax_dmi.read import payloads
from jax_dmi.read import rows as run_rows


def frame(
    rows: run_rows.Rows,
    descriptions: records.Descriptions,
    files: Sequence[mapped.File] | None = None,
    labels: Mapping[str, np.dtype] | None = None,
) -> pa.Table:
    """Returns one row per record.

    Args:
      rows: The records.
      descriptions: Their sites and layouts.
      files: The files, to have the payloads too: a column of ``binary_view``,
        without copying.
      labels: What ``label_types`` told of a larger set of rows, of which these are
        a part; by default of these rows.

    Returns:
      A table of process, device, replica, seq, name, kind, step, layer, labels (a
      struct; only if there are any), boundary, time, time_ns, dtype, shape,
      global_shape, bytes and, if asked for, payload. Names, kinds and dtypes are
      dictionaries.
    """
    found, site = _distinct(rows.site)
    sites = [descriptions.sites[int(number)] for number in found]
    blocks, block = shards(rows, descriptions)
    if labels is None:
        labels = _label_types(sites)
    columns = {
        "process": pa.array(rows.process),
        "device": pa.array(rows.device),
        "replica": _taken([s.replica for _, s in blocks], pa.int32(), block),
        "seq": pa.array(rows.seq),
        "name": _named([s.name for s in sites], site),
        "kind": _named([s.kind for s in sites], site),
        "step": pa.array(rows.step, mask=~rows.has_step),
        "layer": pa.array(rows.layer, mask=~rows.has_layer),
        **({"labels": _labels(rows, sites, site, labels)} if labels else {}),
        "boundary": pa.array(rows.boundary),
        "time": pa.array(rows.time // 1000).cast(pa.timestamp("us", "UTC")),
        "time_ns": pa.array(rows.time),
        "dtype": _named([s.dtype for s in sites], site),
        "shape": _taken([s.shape for _, s in blocks], _SHAPE, block),
        "global_shape": _taken([s.global_shape for _, s in blocks], _SHAPE, block),
        "bytes": pa.array(rows.size),
    }
    if files is not None:
        columns["payload"] = payloads.binary_views(
            files, rows.file, rows.place, rows.size
        )
    return pa.table(columns)


_SHAPE = pa.list_(pa.int64())


_SITES = pa.schema(
    [
        ("name", pa.string()),
        ("kind", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("labels", pa.list_(pa.string())),
        ("source", pa.string()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("devices", pa.list_(pa.int64())),
        ("first_step", pa.int64()),
        ("last_step", pa.int64()),
        ("id", pa.uint64()),
    ]
)


def sites(rows: run_rows.Rows, descriptions: records.Descriptions) -> pa.Table:
    """Returns one row per site that has records, by name and shape."""
    found, members = _grouped(rows.site)
    entries = []
    for number, chosen in zip(found.tolist(), members):
        site = descriptions.sites[number]
        steps = rows.step[chosen][rows.has_step[chosen]]
        entries.append(
            {
                "name": site.name,
                "kind": site.kind,
                "dtype": site.dtype,
                "shape": site.shape,
                "labels": [label for label, _ in site.labels],
                "source": site.source,
                "records": len(chosen),
                "bytes": int(rows.size[chosen].sum()),
                "devices": np.unique(rows.device[chosen]).tolist(),
                "first_step": int(steps.min()) if len(steps) else None,
                "last_step": int(steps.max()) if len(steps) else None,
                "id": number,
            }
        )
    entries.sort(key=lambda entry: (entry["name"], entry["shape"], entry["id"]))
    return pa.Table.from_pylist(entries, schema=_SITES)


def by_name(
    rows: run_rows.Rows, descriptions: records.Descriptions
) -> dict[str, np.ndarray]:
    """Returns int64[n], the numbers of its rows in order, for every name, sorted."""
    parts: dict[str, list[np.ndarray]] = {}
    found, members = _grouped(rows.site)
    for number, chosen in zip(found.tolist(), members):
        parts.setdefault(descriptions.sites[number].name, []).append(chosen)
    return {
        name: of_name[0] if len(of_name) == 1 else np.sort(np.concatenate(of_name))
        for name, of_name in sorted(parts.items())
    }


def _grouped(values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the distinct values, and where each of them stands, in order."""
    found, which = _distinct(values)
    if len(found) < 1 << 16:
        # Two bytes are sorted by radix, in a tenth of the time.
        which = which.astype(np.uint16)
    order = np.argsort(which, kind="stable")
    counts = np.bincount(which, minlength=len(found))
    return found, np.split(order, np.cumsum(counts)[:-1]) if len(found) else []


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct values, and int32[n], which one each value is."""
    # By hashing: sorting a million ids takes ten times as long.
    encoded = pa.array(values).dictionary_encode()
    return encoded.dictionary.to_numpy(), encoded.indices.to_numpy()


def shards(
    rows: run_rows.Rows, descriptions: records.Descriptions
) -> tuple[list[tuple[run_format.SiteInfo, records.Shard]], np.ndarray]:
    """Tells the kinds of rows apart.

    Returns:
      What there is: a site, and what a device holds of it; and int64[n], which of
      it each row is.
    """
    keys = [_distinct(column) for column in (rows.site, rows.layout, rows.device)]
    code = np.zeros(len(rows), np.int64)
    for values, which in keys:
        code = code * len(values) + which
    codes, which = _distinct(code)
    found = []
    for rest in codes.tolist():
        at = []
        for values, _ in reversed(keys):
            rest, i = divmod(rest, len(values))
            at.insert(0, int(values[i]))
        site, layout, device = at
        shard = descriptions.shard(site, layout, device)
        found.append((descriptions.sites[site], shard))
    return found, which.astype(np.int64)


def _named(values: list[str], which: np.ndarray) -> pa.Array:
    """Returns a dictionary of strings; equal ones are one entry."""
    distinct = list(dict.fromkeys(values))
    number = {value: i for i, value in enumerate(distinct)}
    entries = np.array([number[value] for value in values], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(entries[which], pa.int32()), pa.array(distinct, pa.string())
    )


def _taken(values: list, kind: pa.DataType, which: np.ndarray) -> pa.Array:
    return pa.array(values, kind).take(pa.array(which))


def label_types(
    rows: run_rows.Rows, descriptions: records.Descriptions
) -> dict[str, np.dtype]:
    """Returns the labels that rows have, and a type that holds all its values."""
    found, _ = _distinct(rows.site)
    return _label_types([descriptions.sites[int(number)] for number in found])


def _label_types(sites: Sequence[run_format.SiteInfo]) -> dict[str, np.dtype]:
    types: dict[str, np.dtype] = {}
    for site in sites:
        for name, kind in site.labels:
            mine = _LABEL_TYPES.get(kind, np.dtype(np.uint64))
            types[name] = np.result_type(types.get(name, mine), mine)
    return types


def _labels(
    rows: run_rows.Rows,
    sites: Sequence[run_format.SiteInfo],
    which: np.ndarray,
    types: Mapping[str, np.dtype],
) -> pa.Array:
    """Returns a struct with a field per label, null where a site has no such."""
    fields = []
    for name, dtype in types.items():
        values = np.zeros(len(rows), dtype)
        absent = np.ones(len(rows), bool)
        for number, site in enumerate(sites):
            for place, (label, kind) in enumerate(site.labels):
                if label == name:
                    mine = which == number
                    words = rows.labels[mine, place]
                    values[mine] = records.label_column(words, kind)
                    absent[mine] = False
        fields.append(pa.array(values, mask=absent))
    return pa.StructArray.from_arrays(fields, list(types))


_LABEL_TYPES = {
    "int": np.dtype(np.int64),
    "uint": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
    "float": np.dtype(np.float64),
}
