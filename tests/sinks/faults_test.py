# SPDX-License-Identifier: Apache-2.0
"""A write that fails costs at most the batch in flight, and that is told."""

from __future__ import annotations

import contextlib
import errno
import os

import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import sinks
from jax_dmi.sinks import storage
from support import batches
from support import disk
from support import stored

_ROW = 4096


def _opened(path, **settings) -> sinks.ArrowSink:
    sink = sinks.ArrowSink(path, **settings)
    sink.open(batches.run_info())
    return sink


def _numbered(first: int, rows: int = 4) -> sinks.Batch:
    values = [np.full(_ROW, i % 251, np.uint8) for i in range(first, first + rows)]
    return batches.batch(values, first_seq=first)


def _group(count: int, rows: int = 4) -> list[sinks.Batch]:
    return [_numbered(first, rows) for first in range(0, rows * count, rows)]


def _read(run) -> list[int]:
    """Returns the sequence numbers in a run, after checking what they hold."""
    found = stored.records(*stored.segments(run))
    assert all(payload == bytes([i % 251]) * _ROW for i, payload in found)
    return [i for i, _ in found]


class _Torn:
    """Makes some calls of ``os.pwritev`` fail after some of their bytes."""

    def __init__(self, monkeypatch, fail_at: dict[int, int]) -> None:
        self.calls = 0
        self._fail_at = fail_at
        self._broken = False
        self._write = os.pwritev
        monkeypatch.setattr(os, "pwritev", self)

    def __call__(self, fd, buffers, offset):
        # Headers of segments do not count.
        if len(buffers) == 1 and not self._broken:
            return self._write(fd, buffers, offset)
        if self._broken:
            self._broken = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.calls += 1
        size = self._fail_at.get(self.calls)
        if size is None:
            return self._write(fd, buffers, offset)
        self._broken = True
        data = b"".join(map(bytes, buffers))[:size]
        return self._write(fd, [data], offset)


def test_a_file_that_cannot_grow_is_followed_by_the_next(tmp_path):
    with disk.file_size_limit(100_000):
        sink = _opened(tmp_path / "run")
        sink.write_many(_group(20))
        sink.close()
    paths = stored.segments(sink.path)
    assert len(paths) > 2
    assert all(map(stored.is_sealed, paths))
    assert _read(sink.path) == list(range(80))
    listed = stored.manifest(sink.path)["segments"]
    assert [s["bytes"] for s in listed] == [p.stat().st_size for p in paths]


def test_a_batch_that_fits_nowhere_is_reported_and_the_next_is_written(tmp_path):
    with disk.file_size_limit(100_000):
        sink = _opened(tmp_path / "run")
        given = [_numbered(0), _numbered(4), _numbered(8, rows=40), _numbered(48)]
        with pytest.raises(errors.RunError, match="run.*File too large") as caught:
            sink.write_many(given)
        assert caught.value.written == 2
        sink.write_many(given[3:])
        sink.close()
    assert _read(sink.path) == [*range(8), *range(48, 52)]
    assert all(map(stored.is_sealed, stored.segments(sink.path)))
    assert stored.manifest(sink.path)["closed"]


def test_a_full_disk_loses_only_what_was_reported(tmp_path):
    with disk.small_disk(tmp_path / "disk"):
        filler = tmp_path / "disk/filler"
        filler.write_bytes(bytes(600_000))
        sink = _opened(tmp_path / "disk/run")
        expected: list[int] = []
        for first in range(0, 6400, 640):
            given = [_numbered(first + 40 * i, rows=40) for i in range(4)]
            try:
                sink.write_many(given)
                written = 4
            except errors.RunError as error:
                written = error.written
                # Gets better after a while.
                if first > 3000 and filler.exists():
                    filler.unlink()
            expected += [i for b in given[:written] for i in _numbers(b)]
        assert _read(sink.path) == expected
        assert 0 < len(expected) < 1600
        with contextlib.suppress(errors.RunError):
            sink.close()
        assert _read(sink.path) == expected
        assert not [p for p in stored.segments(sink.path) if not p.stat().st_size]


def _numbers(batch: sinks.Batch) -> range:
    return range(batch.first_seq, batch.last_seq + 1)


@pytest.mark.parametrize("size", [1, 100, 17_000, 40_000, 60_000])
def test_a_torn_write_is_cut_off_and_tried_again(tmp_path, monkeypatch, size):
    sink = _opened(tmp_path / "run")
    _Torn(monkeypatch, {1: size})
    sink.write_many(_group(4))
    sink.close()
    paths = stored.segments(sink.path)
    assert all(map(stored.is_sealed, paths))
    assert _read(sink.path) == list(range(16))
    listed = stored.manifest(sink.path)["segments"]
    assert [tmp_path / "run" / s["file"] for s in listed] == paths
    assert sum(s["records"] for s in listed) == 16


def test_each_batch_is_tried_again_once(tmp_path, monkeypatch):
    sink = _opened(tmp_path / "run")
    one = 20_000  # More than one batch, less than two.
    torn = _Torn(monkeypatch, {1: one, 2: one, 3: one})
    sink.write_many(_group(4))
    assert torn.calls == 4
    with pytest.raises(errors.RunError) as caught:
        _Torn(monkeypatch, {1: one, 2: 1})
        sink.write_many([_numbered(16), _numbered(20), _numbered(24)])
    assert caught.value.written == 1
    sink.close()
    assert _read(sink.path) == list(range(20))


def test_written_counts_over_devices(tmp_path, monkeypatch):
    sink = _opened(tmp_path / "run")
    given = [
        batches.batch([np.full(_ROW, i // 2, np.uint8)], first_seq=i // 2, device=i % 2)
        for i in range(6)
    ]
    _Torn(monkeypatch, {4: 1, 5: 1})
    with pytest.raises(errors.RunError, match="Input/output error") as caught:
        sink.write_many(given)
    assert caught.value.written == 3
    sink.write_many(given[3:])
    sink.close()
    assert _read(sink.path) == [0, 1, 2]


def test_a_segment_that_cannot_be_sealed_stays_readable(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sink = _opened(tmp_path / "run")
    sink.write_many(_group(2))
    monkeypatch.setattr(os, "pwrite", fail)
    _Torn(monkeypatch, {1: 100})
    sink.write(_numbered(8))
    monkeypatch.undo()
    sink.close()
    assert _read(sink.path) == list(range(12))
    assert [stored.is_sealed(p) for p in stored.segments(sink.path)] == [False, True]


def test_a_manifest_that_cannot_be_written_is_tried_again(tmp_path, monkeypatch):
    sink = _opened(tmp_path / "run", segment_bytes=1)
    with monkeypatch.context() as patched:

        def fail(*args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr(storage.LocalStorage, "replace", fail)
        sink.write_many(_group(2))
        with pytest.raises(errors.RunError, match="manifest.*No space left"):
            sink.flush()
    sink.flush()
    assert len(stored.manifest(sink.path)["segments"]) == 2
    sink.close()


def test_a_run_whose_directory_is_taken_away(tmp_path):
    sink = _opened(tmp_path / "run", segment_bytes=1)
    sink.write(_numbered(0))
    (tmp_path / "run").rename(tmp_path / "gone")
    (tmp_path / "run").write_text("")
    with pytest.raises(errors.RunError, match="Not a directory") as caught:
        sink.write(_numbered(4))
    assert caught.value.written == 0
    with pytest.raises(errors.RunError):
        sink.close()
    assert _read(tmp_path / "gone") == list(range(4))


@pytest.mark.parametrize("name", ["../../../etc/x", "a/../b", "é\0日本", "x" * 300])
def test_names_never_become_paths(tmp_path, name):
    sink = _opened(tmp_path / "run")
    sink.write(batches.batch([np.zeros(_ROW, np.uint8)], name))
    sink.close()
    assert _read(sink.path) == [0]
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {
        "run/run.json",
        "run/process-0/process.json",
        "run/process-0/manifest.json",
        "run/process-0/device-0/segment-000000.arrow",
    }
