# SPDX-License-Identifier: Apache-2.0
"""Records: what a row of a batch and its descriptions amount to."""

from __future__ import annotations

import json
import threading

import ml_dtypes
import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import records
from support import batches


def records_of(batch, copy=True, **where):
    """The records of a batch, as a sink would see them."""
    descriptions = records.Descriptions()
    descriptions.add(batch.sites, batch.layouts)
    return list(
        records.of_batch(
            batch.record_batch,
            descriptions,
            process=where.pop("process", 0),
            device=batch.device,
            copy=copy,
            **where,
        )
    )


def described(site, value, layout=None, labels=(), device=0):
    """One record of a site and layout given as text."""
    native = batches.lease([value], sites=[batches.id_of(site)], device=device)
    layouts = {}
    if layout is not None:
        native.layout[:] = batches.id_of(layout)
        layouts = {batches.id_of(layout): layout}
    native.labels[: len(labels)] = labels
    sites = {batches.id_of(site): site}
    return records_of(batches.wrap(native, sites, layouts))[0]


def layout(kind="spmd", shape=(6, 4), shard=(4, 4), index=None, **extra):
    """A layout of two devices."""
    index = index or {"0": [[0, 4], [0, 4]], "1": [[4, 6], [0, 4]]}
    parts = {
        "devices": [0, 1],
        "global_shape": shape,
        "kind": kind,
        "mesh_names": ["a"],
        "mesh_shape": [2],
        "shard_shape": shard,
        "shards": {d: {"index": i, "replica": 0} for d, i in index.items()},
        "spec": [["a"], []],
        "varying": [],
    }
    return json.dumps(parts | extra, sort_keys=True, separators=(",", ":"))


def test_a_record_holds_the_columns_of_its_row():
    values = [np.arange(6, dtype=np.float32).reshape(2, 3) + i for i in range(3)]
    batch = batches.batch(values, "block/resid", first_seq=5, device=3)
    found = records_of(batch, process=2)
    assert [r.seq for r in found] == [5, 6, 7]
    record = found[1]
    assert (record.name, record.process, record.device) == ("block/resid", 2, 3)
    assert (record.step, record.layer, record.labels) == (6, None, {})
    assert (record.boundary, record.replica, record.time_ns) == (0, 0, 1)
    assert (record.dtype, record.shape) == (np.float32, (2, 3))
    assert record.global_shape == (2, 3)
    assert record.index == (slice(None), slice(None))
    np.testing.assert_array_equal(record.numpy(), values[1])


@pytest.mark.parametrize(
    "dtype",
    [
        np.bool_,
        np.int8,
        np.uint16,
        np.int64,
        np.float16,
        np.float64,
        np.complex64,
        np.complex128,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5)])
def test_every_type_and_shape_comes_back_bit_by_bit(dtype, shape):
    value = np.asarray(np.arange(int(np.prod(shape))).reshape(shape), dtype)
    (record,) = records_of(batches.batch([value]))
    found = record.numpy()
    assert (found.dtype, found.shape) == (value.dtype, shape)
    assert found.tobytes() == value.tobytes()
    assert found.flags.aligned


def test_types_below_a_byte_get_an_element_per_byte():
    packed = np.array([0x21, 0x43, 0x05], np.uint8)
    record = described(batches.site("x", (5,), "uint4"), packed)
    assert record.dtype == ml_dtypes.uint4
    np.testing.assert_array_equal(record.numpy().astype(int), [1, 2, 3, 4, 5])


def test_labels_come_back_as_the_types_they_had():
    site = batches.site(
        "x",
        (1,),
        labels=[
            ["temp", "float"],
            ["step", "int"],
            ["big", "uint"],
            ["on", "bool"],
            ["shift", "int"],
        ],
    )
    words = np.array([0, 2**64 - 1, 1, 2**64 - 7], np.uint64)
    words[0] = np.array([0.5]).view(np.uint64)[0]
    record = described(site, np.zeros(1, np.float32), labels=words)
    assert record.labels == {"temp": 0.5, "big": 2**64 - 1, "on": True, "shift": -7}
    assert [type(v) for v in record.labels.values()] == [float, int, bool, int]


def test_the_padding_of_an_uneven_shard_is_cut_off():
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    site = batches.site("x", (6, 4))
    record = described(site, value, layout(), device=1)
    assert (record.shape, record.global_shape) == ((2, 4), (6, 4))
    assert record.index == (slice(4, 6), slice(None))
    np.testing.assert_array_equal(record.numpy(), value[:2])


def test_inside_shard_map_the_place_is_unknown():
    value = np.arange(8, dtype=np.float32).reshape(2, 4)
    site = batches.site("x", (2, 4))
    manual = layout("manual", None, (2, 4), {"0": None, "1": None}, spec=None)
    record = described(site, value, manual)
    assert (record.shape, record.global_shape, record.index) == ((2, 4), None, None)
    np.testing.assert_array_equal(record.numpy(), value)


def test_copies_do_not_share_memory_with_the_batch():
    value = np.arange(100, dtype=np.float32)
    batch = batches.batch([value])
    (kept,) = records_of(batch)
    (view,) = records_of(batch, copy=False)
    memory = np.frombuffer(batch.record_batch.column("payload").buffers()[2], np.uint8)
    assert not np.shares_memory(kept.numpy(), memory)
    assert np.shares_memory(view.numpy(), memory)


def test_only_the_wanted_sites_become_records():
    values = [np.zeros(4, np.float32)] * 3
    batch = batches.batch(values, ["a", "b", "a"])
    wanted = batches.id_of(batches.site("a", (4,)))
    found = records_of(batch, wants=lambda site: site == wanted)
    assert [(r.name, r.seq) for r in found] == [("a", 0), ("a", 2)]


def test_a_slice_of_a_batch_holds_its_own_rows():
    values = [np.full(n, n, np.float32) for n in (1, 2, 30, 4, 50)]
    batch = batches.batch(values, first_seq=10)
    descriptions = records.Descriptions()
    descriptions.add(batch.sites, batch.layouts)
    part = batch.record_batch.slice(1, 3)
    found = list(records.of_batch(part, descriptions, process=0, device=0))
    assert [r.seq for r in found] == [11, 12, 13]
    for record, value in zip(found, values[1:4]):
        np.testing.assert_array_equal(record.numpy(), value)


def test_a_payload_that_does_not_fit_says_which_record():
    site = batches.site("x", (5,))
    record = described(site, np.zeros(4, np.float32))
    with pytest.raises(errors.RunError, match=r"x float32\[5\].*16 bytes"):
        record.numpy()


def test_jax_gets_a_copy_and_not_on_a_sink_thread():
    value = np.arange(6, dtype=np.int32)
    (record,) = records_of(batches.batch([value]))
    found = record.jax()
    assert type(found).__module__.startswith("jax")
    np.testing.assert_array_equal(found, value)
    with records.jax_forbidden():
        with pytest.raises(errors.StateError, match="numpy"):
            record.jax()
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(record.jax()))
        thread.start()
        thread.join(60)
        assert len(elsewhere) == 1
    assert record.jax() is not None


def test_descriptions_that_cannot_be_read_are_refused():
    descriptions = records.Descriptions()
    with pytest.raises(ValueError, match="not a site"):
        descriptions.add({1: "{}"}, {})
    with pytest.raises(ValueError, match="not a layout"):
        descriptions.add({}, {1: "[]"})
    with pytest.raises(KeyError):
        descriptions.shard(1, 0, 0)


def test_the_repr_tells_records_apart():
    (record,) = records_of(batches.batch([np.zeros((2, 3), np.float32)], "a/b"))
    assert repr(record) == "Record(a/b float32[2,3], step=0, device=0, seq=0)"
