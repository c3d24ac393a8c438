# SPDX-License-Identifier: Apache-2.0
"""Segments of many small batches open from what was kept beside them."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

from jax_dmi import read
from jax_dmi.read import segments
from jax_dmi.read import sidecar
from support import batches
from support import runs
from support.runs import Rec

_SEGMENT = "process-0/device-0/segment-000000.arrow"
_KEPT = "process-0/device-0/segment-000000.index.arrow"


@pytest.fixture
def many(tmp_path, monkeypatch) -> pathlib.Path:
    """A run of many batches, of two records each."""
    monkeypatch.setattr(sidecar, "_MANY_BATCHES", 20)
    _write(tmp_path / "run")
    return tmp_path / "run"


def _write(path: pathlib.Path, offset: int = 0, **options) -> None:
    writer = runs.Writer(path, **options)
    for i in range(25):
        value = np.arange(offset + i, offset + i + 9, dtype=np.float32)
        labels = {"t": i / 2}
        writer.write(Rec(value, step=i, labels=labels), Rec(value[:2], "y", layer=i))
    writer.close()


def _content(run: read.Run) -> list:
    return [
        (r.name, r.seq, r.step, r.layer, r.labels, r.time_ns, r.numpy().tobytes())
        for r in run.select()
    ]


def _scans(monkeypatch) -> list[str]:
    """Returns a list that gets the names of the segments that are scanned."""
    names: list[str] = []
    scan = segments.scan

    def spy(owner, name, file):
        names.append(name)
        return scan(owner, name, file)

    monkeypatch.setattr(segments, "scan", spy)
    return names


def test_the_second_time_nothing_is_scanned(many, monkeypatch):
    scanned = _scans(monkeypatch)
    first = _content(read.open_run(many))
    assert scanned == [_SEGMENT]
    assert (many / _KEPT).exists()
    run = read.open_run(many)
    assert scanned == [_SEGMENT]
    assert _content(run) == first
    assert run["x"].stack().shape == (25, 9)
    report = run.verify()
    assert report.ok and report.closed
    assert scanned == [_SEGMENT] * 2


def test_only_what_will_not_change_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sidecar, "_MANY_BATCHES", 20)
    writer = runs.Writer(tmp_path / "run")
    for _ in range(25):
        writer.write(Rec(np.zeros(2)))
    read.open_run(tmp_path / "run")
    assert not (tmp_path / "run" / _KEPT).exists()
    writer.close()
    data = (tmp_path / "run" / _SEGMENT).read_bytes()
    (tmp_path / "run" / _SEGMENT).write_bytes(data.replace(b"model.py", b"modem.py"))
    read.open_run(tmp_path / "run")
    assert not (tmp_path / "run" / _KEPT).exists()


def test_large_batches_need_no_sidecar(tmp_path):
    _write(tmp_path / "run")
    read.open_run(tmp_path / "run")
    assert not (tmp_path / "run" / _KEPT).exists()


@pytest.mark.parametrize("offset", [0, 40, 500, 3000, -40, -300])
def test_a_damaged_sidecar_is_not_used(many, offset):
    expected = _content(read.open_run(many))
    data = bytearray((many / _KEPT).read_bytes())
    data[offset : offset + 8 or None] = b"\x5a" * 8
    (many / _KEPT).write_bytes(data)
    assert _content(read.open_run(many)) == expected
    for content in (b"", b"ARROW1", bytes(100)):
        (many / _KEPT).write_bytes(content)
        assert _content(read.open_run(many)) == expected


def test_a_sidecar_of_another_segment_is_not_used(many, tmp_path):
    read.open_run(many)
    kept = (many / _KEPT).read_bytes()
    other = tmp_path / "other"
    _write(other, 100, info=batches.run_info(nonce="ab" * 8))
    assert (other / _SEGMENT).stat().st_size == (many / _SEGMENT).stat().st_size
    (other / _KEPT).write_bytes(kept)
    values = [r.numpy()[0] for r in read.open_run(other).select("x")]
    assert values == list(range(100, 125))


def test_a_directory_that_cannot_be_written_is_read(many, monkeypatch):
    def refuse(*_args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    assert len(read.open_run(many)) == 50
    assert [p.name for p in (many / _SEGMENT).parent.iterdir()] == [
        pathlib.Path(_SEGMENT).name
    ]
