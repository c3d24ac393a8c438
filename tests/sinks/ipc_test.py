# SPDX-License-Identifier: Apache-2.0
"""The encoding of batches is the one that Arrow reads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from jax_dmi import format as run_format
from jax_dmi.sinks import ipc
from support import batches

_VALUES = {
    "one row": [np.arange(100, dtype=np.float32)],
    "nine rows": [np.full(i * 7, i, np.float32) for i in range(9)],
    "all inline": [np.arange(3, dtype=np.float32)] * 3,
    "empty values": [np.zeros((0, 4), np.float32)] * 2,
    "aligned": [np.arange(16, dtype=np.float32)] * 64,
}


def _stream(parts) -> bytes:
    schema = run_format.segment_schema(0, 1, 2, "nonce")
    messages = [ipc.encode(batch, metadata) for batch, metadata in parts]
    body = b"".join(bytes(b) for message in messages for b in message.buffers)
    assert len(body) == sum(message.size for message in messages)
    return ipc.encode_schema(schema) + body + run_format.END_OF_STREAM


def _read(parts):
    with pa.ipc.open_stream(pa.py_buffer(_stream(parts))) as reader:
        assert reader.schema.metadata[run_format.META_SEGMENT] == b"2"
        return list(reader.iter_batches_with_custom_metadata())


@pytest.mark.parametrize("name", _VALUES)
def test_arrow_reads_what_was_encoded(name):
    batch = batches.batch(_VALUES[name]).record_batch
    ((found, metadata),) = _read([(batch, {})])
    found.validate(full=True)
    assert found.equals(batch)
    assert metadata is None


@pytest.mark.parametrize("text", ["", "a", "{}{", "é" * 1001])
def test_metadata_survives(text):
    batch = batches.batch(_VALUES["nine rows"]).record_batch
    wanted = {run_format.META_SITES: text, run_format.META_LAYOUTS: text + "x"}
    parts = [(batch, wanted), (batch, {}), (batch, {run_format.META_SITES: text})]
    found = _read(parts)
    assert all(read.equals(batch) for read, _ in found)
    assert dict(found[0][1]) == {k: v.encode() for k, v in wanted.items()}
    assert found[1][1] is None
    assert dict(found[2][1]) == {run_format.META_SITES: text.encode()}


def test_valid_and_missing_labels_survive():
    native = batches.lease([np.arange(9)] * 11, sites=[1] * 11)
    native.layer = np.arange(11)
    native.layer_valid = np.array([0b10101010, 0b101], np.uint8)
    batch = run_format.record_batch(native)
    ((found, _),) = _read([(batch, {})])
    assert found.column("layer").to_pylist() == batch.column("layer").to_pylist()
    assert found.column("layer").null_count == 5


def test_buffers_of_a_file_start_at_multiples_of_64():
    batch = batches.batch(_VALUES["nine rows"]).record_batch
    stream = pa.py_buffer(_stream([(batch, {}), (batch, {})]))
    for found in pa.ipc.open_stream(stream):
        for column in found.columns:
            for buffer in filter(None, column.buffers()):
                assert (buffer.address - stream.address) % 64 == 0 or not buffer.size


def test_payloads_are_not_copied():
    batch = batches.batch([np.zeros(1 << 20, np.uint8)]).record_batch
    payload = batch.column("payload").buffers()[2]
    assert payload.address in [
        b.address for b in ipc.encode(batch, {}).buffers if isinstance(b, pa.Buffer)
    ]


def test_a_slice_holds_its_own_rows():
    batch = batches.batch(_VALUES["nine rows"]).record_batch
    for part in (batch.slice(3, 4), batch.slice(0, 2), batch.slice(8)):
        ((found, _),) = _read([(part, {})])
        found.validate(full=True)
        assert found.equals(part)
