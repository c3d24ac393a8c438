# SPDX-License-Identifier: Apache-2.0
"""Where a run goes, who made it, and what stands in its way."""

from __future__ import annotations

import concurrent.futures
import json
import os

import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import sinks
from jax_dmi.sinks import storage
from support import batches
from support import stored


def _open(path, exist="error", /, **info) -> sinks.ArrowSink:
    sink = sinks.ArrowSink(path, exist=exist)
    sink.open(batches.run_info(**info))
    return sink


def test_a_run_that_exists_is_refused_and_left_alone(tmp_path):
    first = _open(tmp_path / "run")
    first.write(batches.batch([np.arange(9)]))
    first.close()
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    second = sinks.ArrowSink(tmp_path / "run")
    with pytest.raises(errors.RunExistsError, match='/run.*exist="new"'):
        second.open(batches.run_info(nonce="b"))
    after = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert after == before
    second.close()


def test_the_next_free_name_is_taken(tmp_path):
    paths = [_open(tmp_path / "run", "new", nonce=str(i)).path for i in range(3)]
    assert paths == [str(tmp_path / name) for name in ("run", "run-2", "run-3")]
    assert json.loads((tmp_path / "run-3/run.json").read_text())["nonce"] == "2"


def test_many_that_want_one_name_get_one_each(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda i: _open(tmp_path / "run", "new").path, range(24)))
    assert len(set(paths)) == 24


def test_a_directory_of_a_process_is_not_taken_over(tmp_path):
    (tmp_path / "run/process-0").mkdir(parents=True)
    with pytest.raises(errors.RunExistsError):
        _open(tmp_path / "run")
    assert not (tmp_path / "run/run.json").exists()
    assert _open(tmp_path / "run", "new").path == str(tmp_path / "run-2")


def test_foreign_files_do_not_matter(tmp_path):
    (tmp_path / "run/process-1").mkdir(parents=True)
    (tmp_path / "run/device-0").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")
    sink = _open(tmp_path / "run")
    (tmp_path / "run/process-0/device-0").mkdir()
    foreign = tmp_path / "run/process-0/device-0/segment-000000.arrow"
    foreign.write_text("mine")
    sink.write(batches.batch([np.arange(9)]))
    sink.close()
    assert foreign.read_text() == "mine"
    assert (tmp_path / "run/notes.txt").read_text() == "mine"
    (listed,) = stored.manifest(sink.path)["segments"]
    assert len(stored.records(tmp_path / "run" / listed["file"])) == 1


def test_a_file_in_the_place_of_the_run(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(errors.RunExistsError):
        _open(tmp_path / "run")
    assert _open(tmp_path / "run", "new").path == str(tmp_path / "run-2")
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("exist", ["error", "new"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, exist):
    (tmp_path / "file").touch()
    with pytest.raises(errors.RunError, match=r"file/run'.*ot a directory.*write to"):
        _open(tmp_path / "file/run", exist)


def test_no_permission_is_named(tmp_path, monkeypatch):
    # As root every place may be written, so the system call refuses by itself.
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(errors.RunError, match="Permission denied; choose"):
        _open(tmp_path / "run")


def test_other_processes_join(tmp_path):
    with pytest.raises(errors.RunError, match="process 1 finds no run"):
        _open(tmp_path / "run", process=1, process_count=2)
    first = _open(tmp_path / "run", process_count=2)
    path = first.path
    second = _open(tmp_path / "run", process=1, process_count=2, path=path)
    second.write(batches.batch([np.arange(9)]))
    second.close()
    first.close()
    assert stored.manifest(path, 1)["segments"][0]["file"].startswith("process-1/")
    with pytest.raises(errors.RunExistsError):
        _open(tmp_path / "run", process=1, process_count=2, path=path)


def test_other_processes_follow_the_first_to_a_new_name(tmp_path):
    _open(tmp_path / "run", "new")
    first = _open(tmp_path / "run", "new", nonce="b", process_count=2)
    second = _open(tmp_path / "run", "new", nonce="b", process=1, path=first.path)
    assert first.path == second.path == str(tmp_path / "run-2")


def test_a_process_does_not_join_a_run_of_others(tmp_path):
    _open(tmp_path / "run")
    with pytest.raises(errors.RunExistsError, match="another run"):
        _open(tmp_path / "run", process=1, nonce="other")
    assert not (tmp_path / "run/process-1").exists()


def test_a_failed_start_leaves_the_name_free(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(storage.LocalStorage, "make_folder", full)
        with pytest.raises(errors.RunError, match="No space left"):
            _open(tmp_path / "run")
    _open(tmp_path / "run").close()


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    _open(tmp_path / "run").close()
    with pytest.raises(errors.RunExistsError):
        _open(tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "process-0",
        "run.json",
    ]


def test_drafts_do_not_stay(tmp_path):
    _open(tmp_path / "run").close()
    names = {p.name for p in (tmp_path / "run").rglob("*")}
    assert names == {"run.json", "process-0", "process.json", "manifest.json"}


def test_unknown_uris_are_named():
    with pytest.raises(errors.DmiValueError, match="nosuch://place"):
        _open("nosuch://user:secret@place/run")


def test_keys_are_not_shown():
    uri = "s3://key:secret@bucket/runs/a?region=x&session_token=secret"
    assert storage.shown(uri) == "s3://bucket/runs/a"
    assert storage.numbered(uri, 2) == (
        "s3://key:secret@bucket/runs/a-2?region=x&session_token=secret"
    )
