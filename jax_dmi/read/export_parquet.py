# SPDX-License-Identifier: Apache-2.0
"""Exports records to Parquet: a row each, with all labels and the bytes."""

from __future__ import annotations

import contextlib
import pathlib
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jax_dmi.read import export
from jax_dmi.read import frames

_GROUP_BYTES = 64 << 20
_GROUP_RECORDS = 1 << 18
_MOST_RECORDS = 1 << 24
# Columns with few distinct values.
_DICTIONARIES = ["name", "kind", "dtype"]


def write(
    source: export.Source, folder: pathlib.Path, limit: int
) -> list[pathlib.Path]:
    """Writes ``records-<n>.parquet``, by process, device and sequence."""
    labels = frames.label_types(source.rows, source.descriptions)
    sizes = source.sizes()
    paths = []
    for shard in export.shards_of(sizes, limit, _MOST_RECORDS):
        paths.append(folder / f"records-{len(paths):05d}.parquet")
        with export.new_file(paths[-1]) as file:
            _write(source.take(shard), sizes[shard], labels, file)
    return paths


def _write(
    source: export.Source,
    sizes: np.ndarray,
    labels: dict[str, np.dtype],
    file: BinaryIO,
) -> None:
    with contextlib.ExitStack() as opened:
        writer = None
        for group in export.shards_of(sizes, _GROUP_BYTES, _GROUP_RECORDS):
            part = source.take(group).dense()
            table = frames.frame(part.rows, part.descriptions, part.files, labels)
            if writer is None:
                writer = opened.enter_context(_writer(file, table.schema))
            writer.write_table(table, row_group_size=len(table))


def _writer(file: BinaryIO, schema: pa.Schema) -> pq.ParquetWriter:
    names = [name for name in schema.names if name != "payload"]
    return pq.ParquetWriter(
        file,
        schema,
        # Arrays of numbers get no smaller, and other readers know neither views
        # nor our dictionaries.
        compression="none",
        store_schema=False,
        use_dictionary=_DICTIONARIES,  # pyright: ignore[reportArgumentType]
        write_statistics=names,  # pyright: ignore[reportArgumentType]
    )
