# SPDX-License-Identifier: Apache-2.0
"""The records of a name: their order, and stacks of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import read
from jax_dmi.read import payloads
from support import runs
from support.runs import Rec

_DTYPES = (
    *("bool", "int8", "uint16", "int32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2", "int4", "uint4", "int2", "float4_e2m1fn"),
)


def _array(i: int, shape=(3, 5), dtype="float32") -> np.ndarray:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.random.default_rng(i).integers(-2, 2, shape)
    return np.abs(values).astype(kind) if dtype.startswith("u") else values.astype(kind)


def test_records_count_by_step_layer_and_sequence(tmp_path):
    # As a backward pass records: layers fall while the numbers rise.
    labels = [(step, layer) for step in (1, 0) for layer in (2, 1, 0)]
    records = [Rec(_array(i), step=s, layer=k) for i, (s, k) in enumerate(labels)]
    runs.write(tmp_path / "run", records[:4], records[4:])
    series = read.open_run(tmp_path / "run")["x"]
    order = sorted(range(6), key=lambda i: labels[i])
    assert series.steps.tolist() == [0, 0, 0, 1, 1, 1]
    assert series.layers.tolist() == [0, 1, 2, 0, 1, 2]
    expected = np.stack([records[i].value for i in order])
    np.testing.assert_array_equal(series.stack(), expected)
    np.testing.assert_array_equal(np.stack(list(series)), expected)
    for i in (0, 3, -1):
        np.testing.assert_array_equal(series.numpy(i), expected[i])
    for i in (6, -7):
        with pytest.raises(errors.DmiIndexError, match=f"^i={i} .* 6 records of 'x'"):
            series.numpy(i)
    for i in (1.0, "1", slice(2)):
        with pytest.raises(errors.DmiTypeError, match="^i="):
            series.numpy(i)


def test_missing_steps_are_masked_and_come_first(tmp_path):
    runs.write(tmp_path / "run", [Rec(_array(0), step=5), Rec(_array(1))])
    series = read.open_run(tmp_path / "run")["x"]
    assert series.steps.tolist() == [None, 5]
    assert series.layers.tolist() == [None, None]
    np.testing.assert_array_equal(series.numpy(0), _array(1))


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (7,), (), (0, 4), (64, 8)])
def test_every_type_survives(tmp_path, dtype, shape):
    values = [_array(i, shape, dtype) for i in range(5)]
    other = Rec(_array(9, (11,)), "other")
    runs.write(
        tmp_path / "run",
        [Rec(values[0], step=0), other, other, Rec(values[1], step=1)],
        [Rec(value, step=2 + i) for i, value in enumerate(values[2:])],
    )
    series = read.open_run(tmp_path / "run")["x"]
    stacked = series.stack()
    assert stacked.dtype == values[0].dtype
    assert stacked.shape == (5, *shape)
    for i, value in enumerate(values):
        assert series.numpy(i).tobytes() == value.tobytes()
        assert stacked[i].tobytes() == value.tobytes()
    assert [len(part) for part in series.batches(2)] == [2, 2, 1]


def test_filters(tmp_path):
    records = [Rec(_array(i), step=i // 2, layer=i % 2) for i in range(8)]
    records.append(Rec(_array(8), layer=0))
    runs.write(tmp_path / "run", records)
    series = read.open_run(tmp_path / "run")["x"]

    def found(**filters):
        return [part.tobytes() for part in series.stack(**filters)]

    values = [record.value.tobytes() for record in records]
    assert found(step=1) == values[2:4]
    assert found(step=np.int64(1), layer=1) == values[3:4]
    assert found(step=range(1, 3)) == values[2:6]
    assert found(step=range(0, 4, 3)) == values[:2] + values[6:8]
    assert found(step=[0, 3], layer={0}) == [values[0], values[6]]
    assert found(layer=0) == [values[8], *values[0:8:2]]
    assert series.stack(step=77).shape == (0, 3, 5)
    assert found(device=0) == [values[8], *values[:8]]
    assert not found(device=[1, 2])
    with pytest.raises(errors.DmiTypeError, match="step="):
        series.stack(step="one")


def test_a_stack_of_equal_distances_is_no_copy(tmp_path):
    records = [Rec(_array(i, (16,)), "ab"[i % 2], step=i) for i in range(20)]
    runs.write(tmp_path / "run", records)
    stacked = read.open_run(tmp_path / "run")["a"].stack()
    assert not stacked.flags.owndata
    assert not stacked.flags.writeable
    for i, value in enumerate(stacked):
        np.testing.assert_array_equal(value, records[2 * i].value)


@pytest.mark.parametrize("size", [1, 3, 4, 100, 1 << 12, 1 << 14, (1 << 15) + 4])
def test_scattered_payloads_come_together(tmp_path, size):
    rng = np.random.default_rng(size)
    writer = runs.Writer(tmp_path / "run", segment_bytes=1 << 18)
    for _ in range(6):
        names = rng.choice(["a", "b"], 9)
        extent = {"a": size, "b": 77}
        writer.write(
            *(Rec(rng.integers(0, 256, extent[n], np.uint8), n) for n in names)
        )
    writer.close()
    series = read.open_run(tmp_path / "run")["a"]
    expected = [r.value for r in writer.written.values() if r.name == "a"]
    np.testing.assert_array_equal(series.stack(), np.stack(expected))
    for part, value in zip(np.concatenate(list(series.batches(4))), expected):
        np.testing.assert_array_equal(part, value)


def test_a_file_that_is_gone_is_read_from_memory(tmp_path):
    value = np.arange(1 << 16, dtype=np.uint8)
    runs.write(tmp_path / "run", [Rec(value), Rec(value[:9], "y"), Rec(value)])
    run = read.open_run(tmp_path / "run")
    next((tmp_path / "run").rglob("*.arrow")).unlink()
    files = run._loaded.files
    out = np.empty((1, value.size), np.uint8)
    rows = run["x"]._rows
    payloads.copy(files, rows.file[1:], rows.place[1:], out)
    np.testing.assert_array_equal(out[0], value)


def test_different_arrays_do_not_stack(tmp_path):
    runs.write(tmp_path / "run", [Rec(_array(0), step=0), Rec(_array(0, (2,)), step=1)])
    series = read.open_run(tmp_path / "run")["x"]
    with pytest.raises(errors.DmiValueError, match=r"float32\[2\], float32\[3,5\]"):
        series.stack()
    with pytest.raises(errors.DmiValueError):
        series.batches(1)
    assert series.stack(step=1).shape == (1, 2)
    assert "float32[2] and float32[3,5]" in repr(series)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_a_bad_batch_size_is_named(tmp_path, n):
    runs.write(tmp_path / "run", [Rec(_array(0))])
    with pytest.raises(errors.DmiValueError, match="n="):
        read.open_run(tmp_path / "run")["x"].batches(n)


def test_further_replicas_are_left_out_unless_asked_for(tmp_path):
    layout = runs.spmd((3, 5), {0: [[0, 3], [0, 5]], 1: [[0, 3], [0, 5]]}, {1: 1})
    writer = runs.Writer(tmp_path / "run")
    for device in (0, 1):
        writer.write(
            *(Rec(_array(i), step=i, device=device, layout=layout) for i in range(3))
        )
    writer.close()
    series = read.open_run(tmp_path / "run")["x"]
    assert len(series) == 6
    assert series.stack().shape == (3, 3, 5)
    assert series.stack(device=[0, 1]).shape == (6, 3, 5)
    np.testing.assert_array_equal(series.stack(device=1), series.stack())


def test_shards_do_not_stack(tmp_path):
    layout = runs.spmd((6, 5), {0: [[0, 3], [0, 5]], 1: [[3, 6], [0, 5]]})
    writer = runs.Writer(tmp_path / "run")
    for device in (0, 1):
        writer.write(Rec(_array(device), device=device, layout=layout, shape=(6, 5)))
    writer.close()
    series = read.open_run(tmp_path / "run")["x"]
    with pytest.raises(errors.DmiValueError, match="global_array"):
        series.stack()
    with pytest.raises(errors.DmiValueError, match="global_array"):
        series.batches(1)
    np.testing.assert_array_equal(series.stack(device=1)[0], _array(1))


def test_a_jax_array_is_a_copy(tmp_path):
    runs.write(tmp_path / "run", [Rec(_array(0, dtype="bfloat16"))])
    found = read.open_run(tmp_path / "run")["x"].jax(0)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(np.asarray(found), _array(0, dtype="bfloat16"))
