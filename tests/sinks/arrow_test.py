# SPDX-License-Identifier: Apache-2.0
"""A run directory holds what was written, and is never overwritten."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import threading
import time
import weakref

import numpy as np
import pytest

from jax_dmi import _native
from jax_dmi import errors
from jax_dmi import read
from jax_dmi import sinks
from support import batches
from support import stored


def _opened(path, info=None, **settings) -> sinks.ArrowSink:
    sink = sinks.ArrowSink(path, **settings)
    sink.open(info or batches.run_info())
    return sink


def _numbered(first: int, count: int = 4, **where) -> sinks.Batch:
    values = [np.full(40, i, np.int64) for i in range(first, first + count)]
    return batches.batch(values, first_seq=first, **where)


def _expected(*numbers: int) -> list[tuple[int, bytes]]:
    return [(i, np.full(40, i, np.int64).tobytes()) for i in numbers]


def test_a_closed_run_holds_every_record_in_order(tmp_path):
    sink = _opened(tmp_path / "run")
    sink.write(_numbered(0))
    sink.write_many([_numbered(4), _numbered(8)])
    sink.close()
    (segment,) = stored.segments(sink.path)
    assert stored.records(segment) == _expected(*range(12))
    assert stored.is_sealed(segment)


def test_devices_have_files_of_their_own(tmp_path):
    sink = _opened(tmp_path / "run")
    sink.write_many([_numbered(0), _numbered(0, device=1), _numbered(4, device=1)])
    sink.close()
    assert stored.records(*stored.segments(sink.path, 0)) == _expected(*range(4))
    assert stored.records(*stored.segments(sink.path, 1)) == _expected(*range(8))


def test_what_was_written_is_visible_without_flush_or_close(tmp_path):
    sink = _opened(tmp_path / "run")
    sink.write(_numbered(0))
    assert stored.records(*stored.segments(sink.path)) == _expected(*range(4))
    sink.write(_numbered(4))
    assert stored.records(*stored.segments(sink.path)) == _expected(*range(8))
    assert not stored.manifest(sink.path)["closed"]
    sink.close()


def test_run_and_process_are_described(tmp_path):
    sink = _opened(tmp_path / "run", batches.run_info(attrs={"rate": 0.1}))
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run == {
        "format": 1,
        "created_ns": 1_700_000_000_000_000_000,
        "nonce": "5a" * 8,
        "attrs": {"rate": 0.1},
        "process_count": 1,
        "versions": {"jax": "0"},
    }
    process = json.loads((tmp_path / "run/process-0/process.json").read_text())
    assert process["process"] == 0
    assert process["devices"] == [0, 1]
    assert process["pid"] == os.getpid()
    sink.close()


def test_segments_are_sealed_by_size_and_listed(tmp_path):
    sink = _opened(tmp_path / "run", segment_bytes=4000)
    sink.write_many([_numbered(i) for i in range(0, 32, 4)])
    sink.close()
    paths = stored.segments(sink.path)
    assert len(paths) > 2
    assert all(map(stored.is_sealed, paths))
    assert stored.records(*paths) == _expected(*range(32))
    listed = stored.manifest(sink.path)["segments"]
    assert [tmp_path / "run" / s["file"] for s in listed] == paths
    assert [s["bytes"] for s in listed] == [p.stat().st_size for p in paths]
    assert [s["first_seq"] for s in listed[1:]] == [
        s["last_seq"] + 1 for s in listed[:-1]
    ]
    assert sum(s["records"] for s in listed) == 32


def test_a_segment_check_covers_the_checks_of_its_rows(tmp_path):
    sink = _opened(tmp_path / "run")
    written = [_numbered(0), _numbered(4)]
    sink.write_many(written)
    sink.close()
    checks = np.concatenate(
        [b.record_batch.column("check").to_numpy() for b in written]
    )
    (listed,) = stored.manifest(sink.path)["segments"]
    assert listed["check"] == _native.crc32c(checks.view(np.uint8))


@pytest.mark.parametrize("segment_bytes", [1, 9000, 1 << 30])
def test_a_run_verifies(tmp_path, segment_bytes):
    sink = _opened(tmp_path / "run", segment_bytes=segment_bytes)
    sink.write_many([_numbered(i) for i in range(0, 40, 4)])
    sink.write(_numbered(0, device=1))
    sink.note_accounting({"recorded": {"0": 40, "1": 4}, "dropped": {}})
    sink.close()
    report = read.open_run(sink.path).verify()
    assert report.ok
    assert report.closed
    assert report.last == {(0, 0): 39, (0, 1): 3}


def test_segments_are_sealed_by_age(tmp_path):
    sink = _opened(tmp_path / "run", segment_seconds=0.0)
    sink.write(_numbered(0))
    sink.write(_numbered(4))
    sink.close()
    assert len(stored.segments(sink.path)) == 2


def test_every_segment_describes_the_sites_it_uses(tmp_path):
    sink = _opened(tmp_path / "run", segment_bytes=1)
    values = [np.zeros(4)] * 3
    for i in range(3):
        names = ["a", "b", "é/../x"][: i + 1] + ["a"] * (2 - i)
        sink.write(batches.batch(values, names, first_seq=3 * i))
    sink.close()
    assert len(stored.records(*stored.segments(sink.path))) == 9


def test_a_batch_that_cannot_be_encoded_spoils_nothing(tmp_path):
    sink = _opened(tmp_path / "run")
    sink.write(batches.batch([np.zeros(4)], "a"))
    wrong = batches.batch([np.zeros(4)], "c", first_seq=2)
    part = wrong.record_batch.select([0])
    wrong = dataclasses.replace(wrong, arrow=lambda: part)
    given = [batches.batch([np.zeros(4)], "b", first_seq=1), wrong]
    with pytest.raises(ValueError):
        sink.write_many(given)
    sink.write(given[0])
    sink.close()
    assert len(stored.records(*stored.segments(sink.path))) == 2


def test_the_account_is_in_the_manifest(tmp_path):
    sink = _opened(tmp_path / "run")
    account = {"recorded": {"0": 5}, "dropped": {"0": {"overflow": 2}}}
    sink.note_accounting(account)
    sink.close()
    assert stored.manifest(sink.path) == {"closed": True, "segments": [], **account}


@pytest.mark.parametrize("segment_bytes", [1, 6000, 1 << 30])
def test_synced_runs_go_on(tmp_path, segment_bytes):
    sink = _opened(tmp_path / "run", segment_bytes=segment_bytes)
    for i in range(0, 32, 4):
        sink.write(_numbered(i))
        sink.flush(fsync=i % 8 == 0)
    sink.sync()
    sink.sync()
    sink.close()
    assert stored.records(*stored.segments(sink.path)) == _expected(*range(32))


def test_flush_leaves_a_local_segment_open(tmp_path):
    sink = _opened(tmp_path / "run")
    sink.write(_numbered(0))
    sink.flush()
    assert not stored.is_sealed(*stored.segments(sink.path))
    sink.close()


def test_flush_seals_when_asked(tmp_path):
    sink = _opened(tmp_path / "run", seal_on_flush=True)
    sink.flush()
    sink.write(_numbered(0))
    sink.flush()
    sink.flush()
    (segment,) = stored.segments(sink.path)
    assert stored.is_sealed(segment)
    assert len(stored.manifest(sink.path)["segments"]) == 1
    sink.close()


def test_nothing_of_a_batch_is_referenced_after_write(tmp_path):
    class Owner(np.ndarray):
        pass

    sink = _opened(tmp_path / "run")
    native = batches.lease([np.zeros(1000)] * 2, sites=[1, 1])
    native.payload = native.payload.view(Owner)
    gone = weakref.ref(native.payload)
    batch = batches.wrap(native, {1: batches.site("x", (1000,))})
    del native
    gc.disable()
    try:
        sink.write_many([batch])
        del batch
        assert gone() is None
    finally:
        gc.enable()
    sink.close()


def test_flush_from_another_thread_while_writing(tmp_path):
    sink = _opened(tmp_path / "run", segment_bytes=20_000)
    done = threading.Event()

    def write():
        for i in range(0, 400, 4):
            sink.write(_numbered(i))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        sink.sync()
    thread.join(30)
    sink.close()
    assert stored.records(*stored.segments(sink.path)) == _expected(*range(400))


def test_more_buffers_than_one_system_call_takes(tmp_path):
    sink = _opened(tmp_path / "run")
    sink.write_many([_numbered(i) for i in range(0, 400, 4)])
    sink.close()
    assert stored.records(*stored.segments(sink.path)) == _expected(*range(400))


def test_calls_outside_open_and_close_say_so(tmp_path):
    sink = sinks.ArrowSink(tmp_path / "run")
    with pytest.raises(errors.StateError, match="new"):
        sink.write(_numbered(0))
    assert sink.path is None
    sink.open(batches.run_info())
    with pytest.raises(errors.StateError):
        sink.open(batches.run_info())
    sink.close()
    sink.close()
    with pytest.raises(errors.StateError, match="closed"):
        sink.flush()


@pytest.mark.parametrize(
    "wrong",
    [
        {"exist": "ok"},
        {"segment_bytes": 0},
        {"segment_bytes": "much"},
        {"segment_seconds": "long"},
        {"uri": ""},
        {"uri": 3},
    ],
)
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(errors.DmiError, match=f"^{next(iter(wrong))}="):
        sinks.ArrowSink(**{"uri": "run", **wrong})


def test_relative_paths_survive_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sink = sinks.ArrowSink("run")
    monkeypatch.chdir("/")
    sink.open(batches.run_info())
    sink.close()
    assert sink.path == str(tmp_path / "run")


def test_a_file_uri_is_a_local_run(tmp_path):
    sink = _opened(f"file://{tmp_path}/run")
    sink.write(_numbered(0))
    assert stored.records(*stored.segments(tmp_path / "run")) == _expected(*range(4))
    sink.close()


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path, monkeypatch):
    sink = _opened(tmp_path / "run", segment_seconds=60.0)
    later = time.time()
    for i in range(3):
        monkeypatch.setattr(time, "time", lambda i=i: later - 1e6 * i)
        monkeypatch.setattr(time, "time_ns", lambda i=i: int(later - 1e6 * i) * 10**9)
        sink.write(_numbered(4 * i, times=[400 - 100 * i] * 4))
    sink.close()
    (segment,) = stored.segments(sink.path)
    assert stored.records(segment) == _expected(*range(12))
