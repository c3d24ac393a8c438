# SPDX-License-Identifier: Apache-2.0
"""Encodes batches as messages of an Arrow IPC stream, without copying.

pyarrow can write a stream too, but it takes back the interpreter lock for every
batch, which a busy main thread makes slow. The schema is fixed, so the encoding of
a batch differs from the next one only in a few numbers: here a message is a list of
buffers for one ``writev``, and nothing is called that gives up the lock.

    ff ff ff ff | size | flatbuffer Message, padded | buffers, each padded

Everything starts at a multiple of 64 bytes, so that a memory map can be viewed as
an array of any dtype. The layout of the flatbuffer is that of ``Message.fbs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import struct
from typing import NamedTuple

import pyarrow as pa

from jax_dmi import format as run_format

ALIGNMENT = 64
_CONTINUATION = b"\xff\xff\xff\xff"
_ZEROS = bytes(ALIGNMENT)

# Message, its vtable, RecordBatch and its vtable, up to the first vector. The
# offsets in a vtable count from the start of the table, those in a table from the
# place they stand.
_HEAD = struct.Struct("<I 7H xx i hBx I q I 7H xx i q I I I")
_METADATA_V5 = 4
_RECORD_BATCH = 3
# Where the tables start, and the vectors behind them.
_MESSAGE = 20
_BATCH = 60
_VECTORS = 84


class Message(NamedTuple):
    """A message: buffers to write one after the other, and their size."""

    buffers: list
    size: int


def _padding(size: int) -> int:
    return -size % ALIGNMENT


def encode_schema(schema: pa.Schema) -> bytes:
    """Returns the message that starts a stream."""
    message = schema.serialize().to_pybytes()
    return _framed(message[8:])


def encode(batch: pa.RecordBatch, metadata: Mapping[bytes, str]) -> Message:
    """Returns the message of a batch.

    Args:
      batch: Records, of the columns of ``format.SCHEMA``.
      metadata: Custom metadata of the message.
    """
    if any(column.offset for column in batch.columns):
        batch = _compacted(batch)
    nodes, columns = _flatten(batch)
    buffers: list = [b""]
    places = []
    size = 0
    for buffer in columns:
        length = 0 if buffer is None else len(buffer)
        places += (size, length)
        if length:
            buffers.append(buffer)
            padding = _padding(length)
            if padding:
                buffers.append(_ZEROS[:padding])
            size += length + padding
    variadic = len(batch.column("payload").buffers()) - 2
    buffers[0] = _framed(
        _message(batch.num_rows, nodes, places, variadic, size, metadata)
    )
    return Message(buffers, len(buffers[0]) + size)


def _compacted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copies a slice, whose buffers start before its rows."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def _framed(flatbuffer: bytes) -> bytes:
    padding = _padding(len(flatbuffer) + 8)
    size = struct.pack("<I", len(flatbuffer) + padding)
    return _CONTINUATION + size + flatbuffer + _ZEROS[:padding]


def _flatten(batch: pa.RecordBatch) -> tuple[list[int], list]:
    """Returns (length, null count) of every array, and the buffers of all."""
    rows = batch.num_rows
    nodes: list[int] = []
    buffers: list = []
    for field, column in zip(run_format.SCHEMA, batch.columns, strict=True):
        nulls = column.null_count if field.nullable else 0
        nodes += (rows, nulls)
        validity, *values = column.buffers()
        buffers.append(memoryview(validity)[: -(-rows // 8)] if nulls else None)
        if field.name == "labels":
            nodes += (rows * run_format.LABELS, 0)
        buffers += values
    return nodes, buffers


def _message(
    rows: int,
    nodes: Sequence[int],
    places: Sequence[int],
    variadic: int,
    body: int,
    metadata: Mapping[bytes, str],
) -> bytes:
    # A count stands right before a multiple of 8, where its values start.
    at_nodes = _VECTORS
    at_places = at_nodes + 8 + 8 * len(nodes)
    at_variadic = at_places + 8 + 8 * len(places)
    at_metadata = at_variadic + 12
    head = _HEAD.pack(
        _MESSAGE,
        *(14, 24, 4, 6, 8, 12, 20 if metadata else 0),
        _MESSAGE - 4,
        *(_METADATA_V5, _RECORD_BATCH, _BATCH - 28, body),
        at_metadata - 40 if metadata else 0,
        *(14, 24, 4, 12, 16, 0, 20),
        _BATCH - 44,
        *(rows, at_nodes - 72, at_places - 76, at_variadic - 80),
    )
    return b"".join(
        (
            head,
            struct.pack(f"<I{len(nodes)}q", len(nodes) // 2, *nodes),
            struct.pack(f"<4xI{len(places)}q", len(places) // 2, *places),
            struct.pack("<4xIq", 1, variadic),
            _key_values(metadata) if metadata else b"",
        )
    )


def _key_values(metadata: Mapping[bytes, str]) -> bytes:
    """Returns a vector of KeyValue tables."""
    tables = b""
    places = []
    first = 4 + 4 * len(metadata)
    for key, value in metadata.items():
        strings = (_string(key), _string(value.encode()))
        places.append(first + len(tables) + 8)
        table = struct.pack("<4H i I I", 8, 12, 4, 8, 8, 8, 4 + len(strings[0]))
        tables += table + b"".join(strings)
    offsets = [place - 4 - 4 * i for i, place in enumerate(places)]
    return struct.pack(f"<I{len(offsets)}I", len(offsets), *offsets) + tables


def _string(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text + bytes(4 - len(text) % 4)
