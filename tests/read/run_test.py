# SPDX-License-Identifier: Apache-2.0
"""Opening runs, and their records."""

from __future__ import annotations

import json
import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

from jax_dmi import errors
from jax_dmi import read
from support import batches
from support import runs
from support.runs import Rec


def _records(count: int, name: str = "x", **fields) -> list[Rec]:
    return [
        Rec(np.full(20, i, np.float32), name, step=i, **fields) for i in range(count)
    ]


def test_a_run_tells_its_names_sites_and_attrs(tmp_path):
    path = tmp_path / "run"
    labels = {"temp": 0.5, "head": 3, "on": True}
    big = Rec(np.zeros((2, 3), np.int8), "a/b", step=4, labels=labels)
    runs.write(path, [*_records(2), big], [*_records(1, "z", device=1)])
    run = read.open_run(str(path))
    assert run.attrs == {"note": "test"}
    assert run.names() == ["a/b", "x", "z"] == list(run)
    assert len(run) == 4
    assert "a/b" in run and "b" not in run
    assert repr(run) == f"<Run {str(path)!r}: 4 records of 'a/b', 'x', 'z'>"
    first, second, _ = run.sites().to_pylist()
    assert first == {
        "name": "a/b",
        "kind": "record",
        "dtype": "int8",
        "shape": [2, 3],
        "labels": ["temp", "head", "on"],
        "source": "model.py:1",
        "records": 1,
        "bytes": 6,
        "devices": [0],
        "first_step": 4,
        "last_step": 4,
        "id": batches.id_of(big.site()),
    }
    assert (second["records"], second["bytes"]) == (2, 160)
    assert (second["first_step"], second["last_step"]) == (0, 1)


def test_an_unknown_name_lists_close_ones(tmp_path):
    runs.write(tmp_path / "run", [*_records(1, "block/resid"), *_records(1, "loss")])
    run = read.open_run(tmp_path / "run")
    with pytest.raises(KeyError, match="'block/resid'") as caught:
        run["blok/resid"]
    assert isinstance(caught.value, errors.UnknownNameError)
    with pytest.raises(KeyError, match="'block/resid', 'loss'"):
        run["%"]


def test_an_empty_run_opens(tmp_path):
    runs.Writer(tmp_path / "run").close()
    run = read.open_run(tmp_path / "run")
    assert run.names() == []
    assert list(run.select()) == []
    assert run.sites().num_rows == 0
    assert run.table(payload=True).num_rows == 0
    with pytest.raises(KeyError, match="none at all"):
        run["x"]
    report = run.verify()
    assert report.ok and report.closed and not report.last


def test_records_tell_everything(tmp_path):
    labels = {"temp": -0.5, "head": -3, "on": True}
    value = np.arange(6, dtype=np.float64).reshape(2, 3)
    runs.write(
        tmp_path / "run",
        [*_records(3), Rec(value, "y", step=-7, layer=2, labels=labels, time_ns=99)],
    )
    (record,) = read.open_run(tmp_path / "run").select("y")
    assert (record.name, record.seq, record.step, record.layer) == ("y", 3, -7, 2)
    assert record.labels == labels
    assert [type(v) for v in record.labels.values()] == [float, int, bool]
    assert (record.device, record.process, record.replica) == (0, 0, 0)
    assert (record.boundary, record.time_ns) == (1, 99)
    assert record.dtype == np.float64
    assert record.shape == record.global_shape == (2, 3)
    assert record.index == (slice(None), slice(None))
    np.testing.assert_array_equal(record.numpy(), value)


def test_select_orders_by_process_device_and_number(tmp_path):
    path = tmp_path / "run"
    first = runs.Writer(path, info=batches.run_info(process_count=2))
    info = batches.run_info(process=1, process_count=2, devices=(2, 10))
    second = runs.Writer(path, info=info)
    for writer, devices in ((second, (10, 2)), (first, (1, 0))):
        for _ in range(2):
            for device in devices:
                writer.write(*_records(2, device=device))
    first.close()
    second.close()
    found = [(r.process, r.device, r.seq) for r in read.open_run(path).select()]
    owners = ((0, 0), (0, 1), (1, 2), (1, 10))
    assert found == [(p, d, seq) for p, d in owners for seq in range(4)]
    report = read.open_run(path).verify()
    assert report.ok and report.closed
    assert report.last == dict.fromkeys(owners, 3)


def test_select_filters(tmp_path):
    records = [
        Rec(np.zeros(3), name, step=step, layer=layer)
        for step in range(3)
        for layer in (0, 1)
        for name in ("a/b", "a/C", "d")
    ]
    runs.write(tmp_path / "run", records, _records(1, "d", device=1))
    run = read.open_run(tmp_path / "run")

    def count(*args, **filters):
        return len(list(run.select(*args, **filters)))

    assert count() == 19
    assert count("a/*") == 12
    assert count("a/c") == 0
    assert count("*C") == 6
    assert count(re.compile("[bd]$")) == 13
    assert count(lambda name: name == "d") == 7
    assert count(["a/b", "d"]) == 13
    assert count("d", device=1) == 1
    assert count(step=1, layer=0) == 3
    assert count(step=range(1, 3), layer=[1]) == 6
    assert count(layer={0, 1}) == 18
    with pytest.raises(errors.DmiTypeError):
        run.select(7)
    with pytest.raises(errors.DmiTypeError, match="layer="):
        run.select(layer=object())


def test_a_run_is_read_while_it_is_written(tmp_path):
    path = tmp_path / "run"
    writer = runs.Writer(path)
    assert len(read.open_run(path)) == 0
    for count in (1, 2, 3):
        writer.write(*_records(2))
        run = read.open_run(path)
        assert len(run["x"]) == 2 * count
        report = run.verify()
        assert report.ok and not report.closed
        assert report.last == {(0, 0): 2 * count - 1}
    writer.close()
    assert read.open_run(path).verify().closed


def test_an_open_run_stays_as_it_was(tmp_path):
    path = tmp_path / "run"
    writer = runs.Writer(path)
    writer.write(*_records(2))
    run = read.open_run(path)
    writer.write(*_records(2))
    assert len(run) == 2 and len(read.open_run(path)) == 4
    shutil.rmtree(path)
    assert run["x"].stack().shape == (2, 20)


def test_what_was_read_before_is_not_read_again(tmp_path):
    path = tmp_path / "run"
    writer = runs.Writer(path)
    for _ in range(3):
        writer.write(*_records(2))
        writer.seal()
    writer.write(*_records(2))
    before = read.open_run(path)
    writer.write(*_records(2))
    after = read.open_run(path)
    pairs = list(zip(before._loaded.segments, after._loaded.segments))
    assert [one is other for one, other in pairs] == [True, True, True, False]


def test_segments_go_on_from_each_other(tmp_path):
    writer = runs.Writer(tmp_path / "run", segment_bytes=1)
    for _ in range(12):
        writer.write(*_records(2))
    writer.close()
    run = read.open_run(tmp_path / "run")
    assert len(run._loaded.segments) == 12
    assert [r.seq for r in run.select()] == list(range(24))
    assert run.verify().ok


def test_a_batch_that_was_written_twice_counts_once(tmp_path):
    path = tmp_path / "run"
    writer = runs.Writer(path)
    writer.write(*_records(2))
    writer.seal()
    writer.skip(-2)
    writer.write(*_records(3))
    writer.close()
    run = read.open_run(path)
    assert [r.seq for r in run.select()] == [0, 1, 2]
    assert run.verify().ok


def test_foreign_files_are_left_alone(tmp_path):
    path = tmp_path / "run"
    runs.write(path, _records(2))
    device = path / "process-0" / "device-0"
    for place in (
        path / "notes.txt",
        path / "process-0" / "x.arrow",
        device / "segment-000000.arrow~",
        device / "segment-0000001.arrow",
        device / "segment-1.arrow",
    ):
        place.write_bytes(b"\xff" * 100)
    (path / "process-x" / "device-0").mkdir(parents=True)
    (path / "process-01" / "device-0").mkdir(parents=True)
    (path / "process-01" / "device-0" / "segment-000000.arrow").write_bytes(b"")
    (device / "segment-000009.arrow.d").mkdir()
    run = read.open_run(path)
    assert len(run) == 2
    report = run.verify()
    assert report.ok and report.closed and not report.truncated


def test_a_segment_of_another_run_is_not_read(tmp_path):
    runs.write(tmp_path / "run", _records(2))
    runs.write(tmp_path / "other", _records(5), info=batches.run_info(nonce="ff" * 8))
    folder = "process-0/device-0"
    shutil.copy(
        tmp_path / "other" / folder / "segment-000000.arrow",
        tmp_path / "run" / folder / "segment-000001.arrow",
    )
    run = read.open_run(tmp_path / "run")
    assert len(run) == 2
    (damage,) = run.verify().corrupt
    assert damage.file == f"{folder}/segment-000001.arrow"
    assert "another run" in damage.reason


def test_no_run_is_a_clear_error(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("nothing", "empty", "file"):
        with pytest.raises(errors.RunError, match=name):
            read.open_run(tmp_path / name)
    with pytest.raises(errors.DmiValueError, match="nosuch"):
        read.open_run("nosuch://key:hidden@place/x")
    with pytest.raises(errors.DmiTypeError, match="^path=3 is a int"):
        read.open_run(3)


def test_a_later_format_is_refused(tmp_path):
    runs.write(tmp_path / "run", _records(2))
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(header | {"format": 2}))
    with pytest.raises(errors.RunError, match="format 2"):
        read.open_run(tmp_path / "run")


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    runs.write(tmp_path / "run", _records(2))

    def refuse(*_args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(errors.RunError, match=r"segment-000000\.arrow.*denied"):
        read.open_run(tmp_path / "run")


def test_a_lost_header_keeps_no_record_from_being_read(tmp_path):
    contents = (None, b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000)
    for i, content in enumerate(contents):
        path = tmp_path / f"run-{i}"
        runs.write(path, _records(2))
        if content is None:
            (path / "run.json").unlink()
        else:
            (path / "run.json").write_bytes(content)
        run = read.open_run(path)
        assert len(run) == 2 and run.attrs == {}
        report = run.verify()
        assert not report.ok and not report.closed
        assert [damage.file for damage in report.corrupt] == ["run.json"]


def test_the_table_has_a_row_per_record(tmp_path):
    records = [
        Rec(np.arange(i, dtype=np.int16), "xy"[i % 2], step=i, labels={"t": 0.5 * i})
        for i in range(9)
    ]
    records.append(Rec(np.ones((2, 2), np.float32), "z", labels={"t": 3, "u": True}))
    runs.write(tmp_path / "run", records[:4], records[4:])
    run = read.open_run(tmp_path / "run")
    table = run.table(payload=True)
    assert run.table().column_names == table.column_names[:-1]
    assert table.schema.field("payload").type == pa.large_binary()
    rows = table.to_pylist()
    assert [row["payload"] for row in rows] == [r.value.tobytes() for r in records]
    assert [row["name"] for row in rows] == [r.name for r in records]
    assert [row["shape"] for row in rows] == [list(r.value.shape) for r in records]
    assert [row["labels"]["t"] for row in rows] == [0.5 * i for i in range(9)] + [3]
    assert [row["labels"]["u"] for row in rows] == [None] * 9 + [True]
    assert [row["bytes"] for row in rows] == [r.value.nbytes for r in records]
    assert rows[-1]["step"] is None and rows[0]["step"] == 0
    assert [row["seq"] for row in rows] == [row["time_ns"] for row in rows]
    assert "labels" not in read.open_run(_plain(tmp_path)).table().column_names


def _plain(tmp_path):
    runs.write(tmp_path / "plain", _records(1))
    return tmp_path / "plain"


def test_many_segments_keep_no_file_open(tmp_path):
    path = tmp_path / "run"
    writer = runs.Writer(path, segment_bytes=1)
    for _ in range(20):
        writer.write(Rec(np.zeros(1 << 18, np.uint8)))
    writer.close()
    before = len(os.listdir("/proc/self/fd"))
    run = read.open_run(path)
    assert run["x"].stack().shape == (20, 1 << 18)
    assert len(os.listdir("/proc/self/fd")) == before
