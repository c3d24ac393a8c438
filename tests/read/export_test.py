# SPDX-License-Identifier: Apache-2.0
"""Exports: every record comes back from every format, as it was."""

from __future__ import annotations

import json
import pathlib

import ml_dtypes
import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors
import safetensors.numpy

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import read
from jax_dmi.read import export
from jax_dmi.read import export_safetensors
from support import runs
from support.runs import Rec

_DTYPES = (
    *("bool", "int8", "uint16", "int64", "float16", "float32", "float64"),
    *("complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e8m0fnu", "float8_e3m4", "int4", "uint4", "float4_e2m1fn"),
)


def _values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.random.default_rng(seed).integers(0, 2, shape)
    return (1 + values).astype(kind)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[pathlib.Path, list[Rec]]:
    """A run of every type in odd sizes, in several batches, and its records."""
    path = tmp_path_factory.mktemp("runs") / "run"
    records = [
        Rec(_values(dtype, shape, i), f"{dtype}/{len(shape)}", step=i, layer=k)
        for i in range(3)
        for dtype in _DTYPES
        for k, shape in enumerate([(3, 5), (7,), (), (0, 2), (33, 31)])
    ]
    runs.write(path, *(records[i : i + 40] for i in range(0, len(records), 40)))
    return path, records


def _run(written) -> read.Run:
    return read.open_run(written[0])


def test_parquet_has_every_record(written, tmp_path):
    _, records = written
    paths = _run(written).export(tmp_path / "out", "parquet", shard_bytes="64KiB")
    assert [p.name for p in paths] == [
        f"records-{i:05d}.parquet" for i in range(len(paths))
    ]
    assert len(paths) > 2
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert len(rows) == len(records)
    for row, record in zip(rows, records):
        assert row["name"] == record.name
        assert (row["step"], row["layer"]) == (record.step, record.layer)
        kind = run_format.dtype_of(row["dtype"])
        value = np.frombuffer(row["payload"], kind).reshape(row["shape"])
        assert value.tobytes() == record.value.tobytes()


def test_parquet_keeps_labels_that_a_part_does_not_have(tmp_path, monkeypatch):
    monkeypatch.setattr("jax_dmi.read.export_parquet._GROUP_RECORDS", 1)
    labels = [{}, {"t": 0.5}, {"u": 3}, {"t": 2, "u": 1}]
    records = [
        Rec(np.zeros(9), f"x{i}", labels=label) for i, label in enumerate(labels)
    ]
    runs.write(tmp_path / "run", records)
    (path,) = read.open_run(tmp_path / "run").export(tmp_path / "out", "parquet")
    assert pq.read_metadata(path).num_row_groups == 4
    found = pq.read_table(path).column("labels").to_pylist()
    assert found == [{"t": label.get("t"), "u": label.get("u")} for label in labels]


def test_safetensors_has_every_record(written, tmp_path):
    _, records = written
    paths = _run(written).export(tmp_path / "out", "safetensors", shard_bytes=65536)
    assert len(paths) > 2
    found: dict[str, tuple[dict, str]] = {}
    for path in paths:
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        others = json.loads(header["__metadata__"].get("jax_dmi.dtypes", "{}"))
        for name, tensor in safetensors.deserialize(data):
            assert name not in found
            found[name] = (tensor, others.get(name, ""))
    assert len(found) == len(records)
    for record in records:
        key = f"{record.name}@step={record.step},layer={record.layer}"
        tensor, other = found[key]
        value, dtype = record.value, record.value.dtype.name
        assert bytes(tensor["data"]) == value.tobytes()
        known = export_safetensors._DTYPES.get(dtype)
        assert other == ("" if known else dtype)
        if known:
            assert tensor["dtype"] == known
            assert tuple(tensor["shape"]) == value.shape


def test_safetensors_is_read_by_its_library(tmp_path):
    values = {
        "a/b@step=0": np.arange(6, dtype=np.float32).reshape(2, 3),
        "c": np.arange(3, dtype=np.int8),
        "d@layer=2": np.ones((2,), np.complex64),
    }
    runs.write(
        tmp_path / "run",
        [
            Rec(values["a/b@step=0"], "a/b", step=0),
            Rec(values["c"], "c"),
            Rec(values["d@layer=2"], "d", layer=2),
            Rec(np.full(5, 2, ml_dtypes.bfloat16), "e"),
        ],
    )
    (path,) = read.open_run(tmp_path / "run").export(tmp_path / "out", "safetensors")
    with safetensors.safe_open(path, "flax") as file:
        for name, value in values.items():
            np.testing.assert_array_equal(file.get_tensor(name), value)
        assert file.get_tensor("e").dtype == ml_dtypes.bfloat16


def test_no_two_tensors_have_one_name(tmp_path):
    writer = runs.Writer(tmp_path / "run")
    for device in (0, 1):
        writer.write(
            *(
                Rec(np.full(3, i), "twice", step=i // 2, device=device)
                for i in range(4)
            ),
            Rec(np.zeros(3), "both", step=0, device=device),
        )
    writer.write(
        Rec(np.zeros(3), "once"), Rec(np.zeros(3), "seq"), Rec(np.ones(3), "seq")
    )
    writer.close()
    (path,) = read.open_run(tmp_path / "run").export(tmp_path / "out", "safetensors")
    found = sorted(safetensors.numpy.load_file(path))
    expected = [
        *(f"both@step=0,device={d}" for d in (0, 1)),
        "once",
        "seq@seq=6",
        "seq@seq=7",
        *(f"twice@step={i // 2},device={d},seq={i}" for d in (0, 1) for i in range(4)),
    ]
    assert found == sorted(expected)


def test_npy_has_every_record(written, tmp_path):
    _, records = written
    paths = _run(written).export(tmp_path / "out", "npy", shard_bytes=2000)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert [entry["file"] for entry in index] == [p.name for p in paths]
    count = 0
    for entry, path in zip(index, paths):
        kind = run_format.dtype_of(entry["dtype"])
        stacked = np.load(path)
        assert stacked.dtype.name == entry["stored_dtype"]
        assert list(stacked.shape) == entry["shape"]
        rows = np.load(tmp_path / "out" / entry["rows"])
        for value, row in zip(stacked, rows):
            record = records[int(row["seq"])]
            assert (record.name, record.step) == (entry["name"], row["step"])
            assert row["has_step"] and row["layer"] == record.layer
            assert np.ascontiguousarray(value).tobytes() == record.value.tobytes()
            assert kind == record.value.dtype
            count += 1
    assert count == len(records)


def test_padding_of_uneven_shards_is_left_out(tmp_path):
    layout = runs.spmd((5,), {0: [[0, 3]], 1: [[3, 5]]}, padded=(3,))
    writer = runs.Writer(tmp_path / "run")
    whole = np.arange(1, 6, dtype=np.float32)
    for device, part in ((0, whole[:3]), (1, np.append(whole[3:], np.nan))):
        value = part.astype(np.float32)
        writer.write(Rec(value, device=device, layout=layout, shape=(5,)))
    writer.close()
    run = read.open_run(tmp_path / "run")
    for format in ("parquet", "safetensors", "npy"):
        paths = run.export(tmp_path / format, format)
        if format == "parquet":
            rows = pq.read_table(paths[0]).to_pylist()
            found = [np.frombuffer(row["payload"], np.float32) for row in rows]
        elif format == "npy":
            found = [np.load(path)[0] for path in paths]
        else:
            found = list(safetensors.numpy.load_file(paths[0]).values())
        assert sorted(map(bytes, found)) == sorted(
            [whole[:3].tobytes(), bytes(whole[3:])]
        )


def test_only_what_is_asked_for_is_exported(written, tmp_path):
    (path,) = _run(written).export(
        tmp_path / "out", "parquet", select=["int*/1", "bool/*"], step=range(1, 3)
    )
    rows = pq.read_table(path).to_pylist()
    assert {row["step"] for row in rows} == {1, 2}
    assert {row["name"] for row in rows if row["name"].startswith("int")} == {
        f"{dtype}/1" for dtype in ("int8", "int64", "int4")
    }
    assert _run(written).export(tmp_path / "none", "npy", select="nothing") == []


def test_names_do_not_leave_the_directory(tmp_path):
    names = ["../../x", "a/b", "a.b", "a:b", "[0]/" + "y" * 190]
    runs.write(tmp_path / "run", [Rec(np.ones(3), name) for name in names])
    paths = read.open_run(tmp_path / "run").export(tmp_path / "out", "npy")
    assert len(set(paths)) == 5
    assert all(path.parent == tmp_path / "out" and path.exists() for path in paths)


def test_nothing_is_overwritten(written, tmp_path):
    run = _run(written)
    run.export(tmp_path / "out", "npy", select="bool/0")
    with pytest.raises(errors.RunExistsError, match="out"):
        run.export(tmp_path / "out", "parquet")
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.RunError, match="file"):
        run.export(tmp_path / "file", "npy")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"format": "csv"}, "format='csv'"),
        ({"shard_bytes": "many"}, "shard_bytes='many'"),
        ({"shard_bytes": 0}, "shard_bytes=0"),
        ({"shard_bytes": True}, "shard_bytes=True"),
        ({"path": 7}, "path=7"),
        ({"select": 7}, "select"),
    ],
)
def test_bad_arguments_are_named(written, tmp_path, options, named):
    with pytest.raises(errors.DmiError, match=named):
        _run(written).export(**{"path": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["parquet", "safetensors", "npy"])
def test_an_export_that_fails_leaves_no_half_file(written, tmp_path, format):
    run = _run(written)
    payload = run_format.segment_path(0, 0, 0)

    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "write_all", fail)
        patch.setattr(pq.ParquetWriter, "write_table", fail)
        with pytest.raises(errors.RunError, match="No space left"):
            run.export(tmp_path / "out", format)
    assert list((tmp_path / "out").iterdir()) == []
    assert (written[0] / payload).exists()
