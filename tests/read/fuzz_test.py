# SPDX-License-Identifier: Apache-2.0
"""Random damage: what is read is right, and what is not read is reported."""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import random

import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import read
from support import runs
from support.runs import Rec

# 10,000 in all.
_SEEDS = 20
_ROUNDS = 500

_Key = tuple[int, int]


def _bit(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _noise(data: bytearray, rng: random.Random) -> None:
    begin = rng.randrange(len(data))
    size = min(rng.randrange(1, 400), len(data) - begin)
    data[begin : begin + size] = rng.randbytes(size)


def _zeros(data: bytearray, rng: random.Random) -> None:
    begin = rng.randrange(len(data))
    size = min(rng.randrange(1, 2000), len(data) - begin)
    data[begin : begin + size] = bytes(size)


def _zero_tail(data: bytearray, rng: random.Random) -> None:
    begin = rng.randrange(len(data))
    data[begin:] = bytes(len(data) - begin)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _cut_aligned(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) // 64) * 64 :]


def _empty(data: bytearray, rng: random.Random) -> None:
    del rng
    data.clear()


def _delete(data: bytearray, rng: random.Random) -> None:
    begin = rng.randrange(len(data))
    del data[begin : begin + rng.choice([1, 8, 64, 640, rng.randrange(1, 500)])]


def _insert(data: bytearray, rng: random.Random) -> None:
    begin = rng.randrange(len(data))
    data[begin:begin] = rng.randbytes(rng.choice([1, 8, 64, rng.randrange(1, 500)]))


def _repeat(data: bytearray, rng: random.Random) -> None:
    begin, at = (rng.randrange(len(data) // 64) * 64 for _ in range(2))
    data[at:at] = data[begin : begin + 64 * rng.randrange(1, 60)]


def _word(data: bytearray, rng: random.Random) -> None:
    begin = rng.randrange(len(data) // 8) * 8
    value = rng.choice([0, 1, -1, 2**31 - 1, 2**62, -(2**63), rng.randrange(2**32)])
    data[begin : begin + 8] = value.to_bytes(8, "little", signed=True)


def _append(data: bytearray, rng: random.Random) -> None:
    data += rng.choice([bytes, rng.randbytes])(rng.randrange(1, 300))


_DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(_bit, _bit, _bit, _noise, _zeros, _zero_tail, _cut, _cut_aligned, _empty),
    *(_delete, _insert, _repeat, _word, _append),
)


def _write(path: pathlib.Path, closed: bool) -> dict[_Key, Rec]:
    """Writes two devices, several segments, sites and layouts, odd sizes."""
    rng = np.random.default_rng(5)
    layout = runs.spmd((8,), {0: [[0, 4]], 1: [[4, 8]]})
    writer = runs.Writer(path, segment_bytes=12000)
    for i in range(10):
        device = i % 2
        records = []
        for k in range(int(rng.integers(1, 8))):
            size = int(rng.choice([0, 1, 3, 13, 50, 300]))
            value = rng.integers(0, 1000, size).astype(np.float32)
            labels = {"t": 0.5 * k} if k % 3 == 0 else {}
            fields = {"step": i, "layer": k} if k % 2 else {}
            records.append(
                Rec(value, f"s{k % 4}", device=device, labels=labels, **fields)
            )
        block = rng.integers(0, 9, 4).astype(np.int16)
        records.append(Rec(block, "g", device=device, layout=layout, shape=(8,)))
        writer.write(*records)
    writer.close() if closed else writer.flush()
    return writer.written


def _is_right(record: read.run.records.Record, expected: Rec) -> bool:
    same = (record.name, record.step, record.layer, record.labels, record.time_ns) == (
        expected.name,
        expected.step,
        expected.layer,
        dict(expected.labels),
        record.seq,
    )
    return same and record.numpy().tobytes() == expected.value.tobytes()


def _check(
    path: pathlib.Path, written: dict[_Key, Rec], damaged: str, copied: bool
) -> None:
    """Opens a damaged run and holds the report against what was written.

    Where bytes were ``copied``, a second copy of a record may be damaged.
    """
    run = read.open_run(path)
    report = run.verify()
    assert str(report)
    told = {(d.device, d.seq) for d in report.corrupt + report.truncated}
    right: set[_Key] = set()
    for record in run.select():
        key = (record.device, record.seq)
        if key in written and _is_right(record, written[key]):
            right.add(key)
        else:
            # Payloads are not checked when they are read.
            assert key in told, f"{record} is wrong and nobody says so"
    _use(run)
    # Nothing else is blamed; validity bits matter to other readers only.
    blamed = {(d.device, d.seq): d.reason for d in report.corrupt + report.truncated}
    for key in blamed.keys() & right:
        reason = blamed[key]
        assert copied or reason == "the validity of its step or layer is damaged", key
    lost = written.keys() - right
    corrupt = {d.file for d in report.corrupt}
    truncated = {d.file for d in report.truncated}
    if lost:
        assert corrupt or truncated or report.missing or not report.closed
    for device, seq in lost:
        last = report.last.get((0, device), -1)
        gaps = report.missing.get((0, device), [])
        if seq <= last:
            in_gap = any(seq in gap for gap in gaps)
            assert in_gap or (device, seq) in told, f"{device}, {seq} is not told"
    for device, seq in right:
        gaps = report.missing.get((0, device), [])
        assert not any(seq in gap for gap in gaps)
        assert seq <= report.last[0, device]
    if report.ok:
        # Then up to the last number, everything is there and right.
        assert all(seq > report.last.get((0, device), -1) for device, seq in lost)
    # The report blames what was damaged, and nothing else.
    assert corrupt | truncated <= {damaged} | _consequences(damaged, report)


def _use(run: read.Run) -> None:
    """Calls what may stumble over damage."""
    assert len(run.table(payload=True)) == len(run)
    for name in run.names()[:2]:
        try:
            run[name].stack(device=0)
            run[name].global_array(occurrence=0)
        except errors.DmiError:
            pass


def _consequences(damaged: str, report: read.VerifyReport) -> set[str]:
    """Returns the files that damage of one file can make look wrong."""
    every = {d.file for d in report.corrupt + report.truncated}
    # A description, a nonce or a count that is wrong shows in other files.
    named = {
        d.file
        for d in report.corrupt
        if d.reason in ("its site is not described", "it belongs to another run")
    }
    return every if damaged.endswith(".json") else named


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_damage_is_told_exactly(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "run"
    written = _write(path, closed=seed % 4 != 0)
    segments = [str(p.relative_to(path)) for p in sorted(path.rglob("*.arrow"))]
    others = [str(p.relative_to(path)) for p in sorted(path.rglob("*.json"))]
    assert len(segments) > 3
    # As long as it is open, what is not damaged is not read again.
    undamaged = read.open_run(path)
    assert len(undamaged) == len(written)
    for number in range(_ROUNDS):
        name = rng.choice(others if rng.random() < 0.1 else segments)
        (path / name).rename(tmp_path / "whole")
        data = bytearray((tmp_path / "whole").read_bytes())
        damage = rng.choice(_DAMAGES)
        damage(data, rng)
        (path / name).write_bytes(data)
        try:
            _check(path, written, name, copied=damage is _repeat)
        except errors.RunError as error:
            # Another format is all that keeps a run from being opened.
            assert name == "run.json" and "format" in str(error)
        except AssertionError as error:
            error.add_note(f"round {number}: {damage.__name__} in {name}")
            raise
        (tmp_path / "whole").rename(path / name)
