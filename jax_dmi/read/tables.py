# SPDX-License-Identifier: Apache-2.0
"""Runs as Arrow tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jax_dmi import records as run_records

if TYPE_CHECKING:
    from jax_dmi.read import run as run_room

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
    ]
)


def sites(run: run_room.Run) -> pa.Table:
    """Returns one row per site that has records, by name."""
    index = run.index
    sizes = payload_sizes(run)
    rows = []
    for number in np.unique(index.site):
        site = run.site(number)
        mine = index.site == number
        steps = index.step[mine & index.has_step]
        rows.append(
            {
                "name": site.name,
                "kind": site.kind,
                "dtype": site.dtype,
                "shape": site.shape,
                "labels": [label for label, _ in site.labels],
                "source": site.source,
                "records": int(mine.sum()),
                "bytes": int(sizes[mine].sum()),
                "devices": np.unique(index.device[mine]).tolist(),
                "first_step": int(steps.min()) if len(steps) else None,
                "last_step": int(steps.max()) if len(steps) else None,
            }
        )
    rows.sort(key=lambda row: (row["name"], row["shape"]))
    return pa.Table.from_pylist(rows, schema=_SITES)


def payload_sizes(run: run_room.Run) -> np.ndarray:
    """Returns int64[n], the payload size of every row in bytes."""
    index = run.index
    sizes = np.empty(len(index), np.int64)
    for batch in range(len(index.batches)):
        mine = index.batch == batch
        sizes[mine] = index.payloads(batch).sizes[index.row[mine]]
    return sizes


def records(run: run_room.Run, payload: bool) -> pa.Table:
    """Returns one row per record, see ``Run.table``."""
    index = run.index
    numbers, place = np.unique(index.site, return_inverse=True)
    found = [run.site(number) for number in numbers]

    def described(values: list, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(pa.array(place))

    shards, replicas = _shards(run)
    columns = {
        "process": pa.array(index.process),
        "device": pa.array(index.device),
        "seq": pa.array(index.seq),
        "name": described([s.name for s in found], pa.string()),
        "kind": described([s.kind for s in found], pa.string()),
        "step": pa.array(index.step, mask=~index.has_step),
        "layer": pa.array(index.layer, mask=~index.has_layer),
        "labels": _labels(run, place, found),
        "dtype": described([s.dtype for s in found], pa.string()),
        "shape": shards,
        "replica": replicas,
        "boundary": pa.array(index.boundary),
        # Microseconds: Python has no type for finer times.
        "time": pa.array(index.time // 1000).cast(pa.timestamp("us", "UTC")),
        "bytes": pa.array(payload_sizes(run)),
    }
    if payload:
        columns["payload"] = _payloads(run)
    return pa.table(columns)


def _shards(run: run_room.Run) -> tuple[pa.Array, pa.Array]:
    index = run.index
    keys = np.stack([index.site, index.layout, index.device.astype(np.uint64)])
    kinds, place = np.unique(keys, axis=1, return_inverse=True)
    shapes, replicas = [], []
    for number, layout, device in kinds.T:
        shard = run.descriptions.shard(int(number), int(layout), int(device))
        shapes.append(shard.shape)
        replicas.append(shard.replica)
    place = pa.array(place.reshape(-1))
    return (
        pa.array(shapes, pa.list_(pa.int64())).take(place),
        pa.array(replicas, pa.int64()).take(place),
    )


def _labels(run: run_room.Run, place: np.ndarray, found: list) -> pa.Array:
    kind = pa.map_(pa.string(), pa.float64())
    if not any(site.labels for site in found):
        return pa.array([[]] * len(place), kind)
    values = []
    for i, site in enumerate(place.reshape(-1)):
        names = found[site].labels
        words = run.index.words(i) if names else ()
        values.append(list(run_records.label_values(found[site], words).items()))
    return pa.array(values, kind)


def _payloads(run: run_room.Run) -> pa.Array:
    index = run.index
    chunks = [
        batch.column("payload").cast(pa.large_binary()) for batch in index.batches
    ]
    joined = pa.chunked_array(chunks, pa.large_binary())
    starts = np.cumsum([0, *(batch.num_rows for batch in index.batches)])[:-1]
    if not len(index):
        return pa.array([], pa.large_binary())
    order = starts[index.batch] + index.row
    if np.array_equal(order, np.arange(len(order))):
        return joined.combine_chunks()
    return joined.take(pa.array(order)).combine_chunks()
