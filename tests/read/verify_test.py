# SPDX-License-Identifier: Apache-2.0
"""What ``verify`` says of runs that lack something."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import read
from jax_dmi.read import stream
from support import batches
from support import runs
from support.runs import Rec

_END = len(run_format.END_OF_STREAM)
_FIRST = "process-0/device-0/segment-000000.arrow"
_SECOND = "process-0/device-0/segment-000001.arrow"


def _records(count: int, **fields) -> list[Rec]:
    values = [np.arange(1, 40 + i, dtype=np.float32) for i in range(count)]
    return [Rec(value, step=i, **fields) for i, value in enumerate(values)]


def _two_segments(path: pathlib.Path) -> pathlib.Path:
    """Writes numbers 0 to 5 and 6 to 11 in two segments of two batches."""
    writer = runs.Writer(path)
    for _ in range(2):
        writer.write(*_records(3))
        writer.write(*_records(3))
        writer.seal()
    writer.close()
    return path


def _verify(path: pathlib.Path) -> read.VerifyReport:
    return read.open_run(path).verify()


def test_a_whole_run_is_ok_and_closed(tmp_path):
    report = _verify(_two_segments(tmp_path / "run"))
    assert report == read.VerifyReport(
        ok=True,
        closed=True,
        last={(0, 0): 11},
        missing={},
        corrupt=[],
        truncated=[],
        dropped={},
    )
    assert str(report) == "ok\nclosed\nprocess 0, device 0: last whole record 11"


def test_dropped_records_are_counted_and_not_missing(tmp_path):
    writer = runs.Writer(tmp_path / "run")
    writer.write(*_records(2))
    writer.write(*_records(2, device=1))
    writer.close({"0": {"overflow": 3, "stalled": 1}, "1": {"overflow": 4}})
    report = _verify(tmp_path / "run")
    assert report.ok and report.closed and not report.missing
    assert report.dropped == {"overflow": 7, "stalled": 1}


def test_numbers_that_are_not_there_are_missing(tmp_path):
    writer = runs.Writer(tmp_path / "run")
    writer.skip(2)
    writer.write(*_records(2))
    writer.skip(1)
    writer.write(*_records(2))
    writer.write(*_records(1, device=3))
    writer.close()
    report = _verify(tmp_path / "run")
    assert not report.ok and report.closed
    assert report.missing == {(0, 0): [range(2), range(4, 5)]}
    assert report.last == {(0, 0): 6, (0, 3): 0}
    assert not report.corrupt and not report.truncated
    assert "missing 4 to 4" in str(report)


def test_records_that_were_never_written_are_told(tmp_path):
    writer = runs.Writer(tmp_path / "run")
    writer.write(*_records(2))
    writer.skip(3)
    writer.close()
    report = _verify(tmp_path / "run")
    assert report.ok and report.closed and report.last == {(0, 0): 1}
    (damage,) = report.truncated
    assert (damage.file, damage.reason) == (
        _FIRST,
        "the records 2 to 4 were never written",
    )


def test_a_run_without_an_end_is_not_closed(tmp_path):
    writer = runs.Writer(tmp_path / "run")
    writer.write(*_records(2))
    report = _verify(tmp_path / "run")
    assert report.ok and not report.closed and not report.truncated
    writer.close()
    assert _verify(tmp_path / "run").closed


def test_a_process_that_did_not_come_keeps_a_run_open(tmp_path):
    runs.write(tmp_path / "run", _records(2), info=batches.run_info(process_count=2))
    report = _verify(tmp_path / "run")
    assert report.ok and not report.closed


@pytest.mark.parametrize("cut", [1, _END, 100, 1500])
def test_a_cut_end_is_truncated(tmp_path, cut):
    path = _two_segments(tmp_path / "run")
    data = (path / _SECOND).read_bytes()
    (path / _SECOND).write_bytes(data[:-cut])
    report = _verify(path)
    assert report.ok and not report.closed and not report.corrupt
    assert report.last == {(0, 0): 11 if cut <= _END else 8}
    (damage,) = report.truncated
    assert (damage.file, damage.process, damage.device) == (_SECOND, 0, 0)


def test_a_cut_between_batches_is_told_by_the_manifest(tmp_path):
    path = _two_segments(tmp_path / "run")
    data = np.fromfile(path / _SECOND, np.uint8)
    # The second batch of the segment begins where the first one ends.
    end = -(-int(stream.scan(data).data[0, 1]) // 64) * 64
    (path / _SECOND).write_bytes(data[:end].tobytes())
    report = _verify(path)
    assert report.ok and not report.closed and report.last == {(0, 0): 8}
    (damage,) = report.truncated
    assert damage.reason == "cut between two batches: 3 records are gone"


def test_a_cut_in_the_middle_leaves_numbers_missing(tmp_path):
    path = _two_segments(tmp_path / "run")
    data = (path / _FIRST).read_bytes()
    (path / _FIRST).write_bytes(data[:-100])
    report = _verify(path)
    assert not report.ok and report.missing == {(0, 0): [range(3, 6)]}
    assert [damage.file for damage in report.truncated] == [_FIRST]
    assert not report.corrupt


@pytest.mark.parametrize("content", [b"", b"\xff\xff", bytes(64), bytes(100_000)])
def test_a_file_without_content_is_truncated(tmp_path, content):
    path = _two_segments(tmp_path / "run")
    (path / _SECOND).write_bytes(content)
    report = _verify(path)
    assert report.ok and not report.closed and report.last == {(0, 0): 5}
    assert [damage.file for damage in report.truncated] == [_SECOND]


def test_a_lost_file_is_told(tmp_path):
    path = _two_segments(tmp_path / "run")
    (path / _SECOND).unlink()
    report = _verify(path)
    assert not report.ok and not report.closed and not report.truncated
    (damage,) = report.corrupt
    assert damage.reason == "the file is missing, with the records 6 to 11"
    (path / "process-0" / "manifest.json").unlink()
    assert _verify(path).ok


def test_zeros_behind_the_end_take_nothing(tmp_path):
    path = _two_segments(tmp_path / "run")
    with open(path / _SECOND, "ab") as file:
        file.write(bytes(4096))
    report = _verify(path)
    assert report.ok and not report.closed and report.last == {(0, 0): 11}
    (damage,) = report.truncated
    assert damage.end - damage.begin == 4096


def test_a_printed_report_does_not_list_everything(tmp_path):
    path = tmp_path / "run"
    runs.write(path, _records(50))
    data = (path / _FIRST).read_bytes()
    (path / _FIRST).write_bytes(data.replace(b"model.py", b"modem.py"))
    report = _verify(path)
    assert len(report.corrupt) == 100
    assert str(report).endswith("corrupt: and 80 more")


def test_a_flipped_bit_of_a_payload_is_told_exactly(tmp_path):
    path = _two_segments(tmp_path / "run")
    data = bytearray((path / _SECOND).read_bytes())
    begin = data.index(np.arange(1, 41, dtype=np.float32).tobytes())
    data[begin + 7] ^= 1
    (path / _SECOND).write_bytes(data)
    report = _verify(path)
    assert not report.ok and report.closed and not report.missing
    (damage,) = report.corrupt
    assert (damage.file, damage.seq, damage.begin) == (_SECOND, 7, begin)
    assert damage.end == begin + 160
    assert "record 7: its payload is damaged" in str(damage)


def test_without_checksums_payloads_are_not_checked(tmp_path):
    path = tmp_path / "run"
    runs.write(path, _records(3, checksum=False))
    assert _verify(path).ok
    data = (path / _FIRST).read_bytes()
    value = np.arange(1, 40, dtype=np.float32).tobytes()
    (path / _FIRST).write_bytes(data.replace(value, value[:-1] + b"\1"))
    assert _verify(path).ok


def test_validity_that_only_others_read_is_checked(tmp_path):
    path = tmp_path / "run"
    runs.write(path, [*_records(2), Rec(np.ones(50))])
    data = np.fromfile(path / _FIRST, np.uint8)
    begin = int(stream.scan(data).validity[0, 0])
    assert data[begin] & 7 == 0b011
    data[begin] ^= 0b110
    data.tofile(path / _FIRST)
    report = _verify(path)
    assert [damage.seq for damage in report.corrupt] == [1, 2]
    assert read.open_run(path)["x"].steps.tolist() == [None, 0, 1]


def test_a_site_without_its_description_is_told(tmp_path):
    path = tmp_path / "run"
    writer = runs.Writer(path)
    writer.write(*_records(2))
    writer.seal()
    writer.write(*_records(2), Rec(np.zeros(3), "only/here"))
    writer.close()
    for name, known in ((_FIRST, True), (_SECOND, False)):
        data = (path / name).read_bytes()
        (path / name).write_bytes(data.replace(b"model.py", b"modem.py"))
        report = _verify(path)
        assert not report.ok
        assert len(read.open_run(path)["x"]) == 4 if known else True
    reasons = [damage.reason for damage in _verify(path).corrupt]
    assert reasons.count("its site is not described") == 5
    assert read.open_run(path).names() == []


def test_a_damaged_manifest_is_told(tmp_path):
    path = _two_segments(tmp_path / "run")
    manifest = path / "process-0" / "manifest.json"
    right = json.loads(manifest.read_text())
    for change in (
        {"segments": 7},
        {"segments": [{"file": _FIRST}]},
        {"segments": ["x"]},
        {"recorded": {"0": "many"}},
        {"recorded": []},
        {"dropped": {"0": 3}},
    ):
        manifest.write_text(json.dumps(right | change))
        report = _verify(path)
        assert not report.ok
        assert [d.file for d in report.corrupt] == ["process-0/manifest.json"]
    entry = {**right["segments"][0], "check": 1}
    manifest.write_text(json.dumps(right | {"segments": [entry]}))
    (damage,) = _verify(path).corrupt
    assert (damage.file, damage.reason) == (
        _FIRST,
        "it is not the file that the manifest lists",
    )


def test_verify_looks_at_the_run_as_it_is_now(tmp_path):
    path = _two_segments(tmp_path / "run")
    run = read.open_run(path)
    assert run.verify().ok
    data = bytearray((path / _FIRST).read_bytes())
    data[-200] ^= 1
    (path / _FIRST).write_bytes(data)
    assert not run.verify().ok
    for file in sorted(path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    with pytest.raises(errors.RunError):
        run.verify()
