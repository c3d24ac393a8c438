# SPDX-License-Identifier: Apache-2.0
"""Timelines of runs: as they were written, in pieces, and damaged."""

from __future__ import annotations

import dataclasses
import os
import random

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

import jax_dmi as dmi
from jax_dmi import sinks
from jax_dmi import stats
from jax_dmi import timeline
from jax_dmi import windows
from support import batches

_PATTERN = windows.WindowPattern(3, [(1, 2)])


def _transfer(begin, end, device=0, kind="window"):
    return stats.Transfer(device, begin, end, 8, kind, 1, 0, 4, 13, 14)


def _row(device=0, transfers=(), boundaries=(), patterns=None):
    log = np.array(boundaries, np.int64).reshape(-1, 3)
    return timeline.row(device, list(transfers), log, patterns or {}, None)


def _written(path, *tables, process=0):
    """Writes a run without records; returns it."""
    for table in tables:
        sink = sinks.ArrowSink(path)
        sink.open(batches.run_info(process=process))
        sink.note_timeline(table)
        sink.close()
    return dmi.open_run(path)


def test_what_a_monitor_reported_is_in_its_run(tmp_path):
    @jax.jit
    def program(x):
        return dmi.close_window(dmi.record(dmi.open_window(x * 2), "r"))

    with dmi.Monitor(tmp_path / "run", linger=0.0) as monitor:
        for _ in range(5):
            program(jnp.ones(100)).block_until_ready()
    run = dmi.open_run(monitor.path)
    rows = [
        {"process": 0, **{name: getattr(t, name) for name in t.__dataclass_fields__}}
        for t in monitor.transfers()
    ]
    assert rows
    assert run.transfers().to_pylist() == rows
    passed = run.boundaries()
    both = [passed.column(name).to_numpy() for name in ("counter", "time_ns")]
    np.testing.assert_array_equal(np.stack(both, axis=1), monitor.boundaries())
    assert passed.column("counter").to_pylist() == list(range(1, 11))
    # No pattern says what is open.
    assert passed.column("open").null_count == 10
    assert run.windows().num_rows == 0
    assert run.verify().ok


def test_what_windows_learned_is_in_the_run(tmp_path):
    @jax.jit
    def program(x):
        return dmi.close_window(dmi.record(dmi.open_window(x * 2), "r"))

    pattern = dmi.infer_window_pattern(program, jnp.ones(100))
    with dmi.Monitor(
        tmp_path / "run", windows=pattern, link=dmi.SimulatedLink("1GiB")
    ) as monitor:
        program(jnp.ones(100)).block_until_ready()
        with monitor.windows_suspended():
            jax.block_until_ready(dmi.advance_boundary(jnp.ones(3)))
        program(jnp.ones(100)).block_until_ready()
    run = dmi.open_run(monitor.path)
    passed = run.boundaries()
    assert passed.column("open").to_pylist() == [True, False, None, True, False]
    assert passed.column("version").to_pylist() == [1, 1, 0, 2, 2]
    state = monitor.window_state()
    (row,) = run.windows().to_pylist()
    wanted = {
        "process": 0,
        "device": 0,
        "mode": "active",
        "version": 2,
        "period": 2,
        "link_bytes_per_second": state.link_bytes_per_second,
        "window_index": 0,
        "begin": 1,
        "end": 2,
        **dataclasses.asdict(state.windows[0]),
    }
    assert row == wanted
    assert sum(t.bytes for t in monitor.transfers()) == 800


def test_each_boundary_says_what_its_pattern_opens(tmp_path):
    log = [(0, 1, 10), (1, 3, 20), (1, 4, 30), (1, 5, 40), (2, 4, 50), (3, 4, 60)]
    other = windows.WindowPattern(5, [(0, 1), (3, 5)])
    table = _row(3, boundaries=log, patterns={1: _PATTERN, 2: other})
    found = _written(tmp_path / "run", table).boundaries()
    assert found.column("open").to_pylist() == [None, False, True, False, True, None]
    assert found.column("device").to_pylist() == [3] * 6


def test_open_is_what_the_pattern_matches():
    random_numbers = random.Random(0)
    for _ in range(50):
        edges = sorted(
            random_numbers.sample(range(40), 2 * random_numbers.randint(1, 9))
        )
        pattern = windows.WindowPattern(
            random_numbers.randint(edges[-1], 50), list(zip(edges[::2], edges[1::2]))
        )
        counters = np.arange(200, dtype=np.int64)
        wanted = [pattern.match(int(c)) is not None for c in counters]
        assert timeline.is_open(counters, pattern).tolist() == wanted


def test_processes_and_devices_are_put_together(tmp_path):
    path = tmp_path / "run"
    first = [
        _row(0, [_transfer(1, 2)]),
        _row(1, [_transfer(3, 4, 1), _transfer(5, 6, 1)]),
    ]
    run = _written(path, pa.concat_tables(first))
    other = sinks.ArrowSink(path)
    other.open(batches.run_info(process=1, path=str(path)))
    other.note_timeline(_row(2, [_transfer(7, 8, 2)]))
    other.close()
    found = run.transfers()
    assert found.column("process").to_pylist() == [0, 0, 0, 1]
    assert found.column("device").to_pylist() == [0, 1, 1, 2]
    assert found.column("begin_ns").to_pylist() == [1, 3, 5, 7]


def test_a_run_without_a_timeline_has_an_empty_one(tmp_path):
    sink = sinks.ArrowSink(tmp_path / "run")
    sink.open(batches.run_info())
    run = dmi.open_run(sink.path)
    for table in (run.transfers(), run.boundaries(), run.windows()):
        assert table.num_rows == 0
        assert table.column_names[:2] == ["process", "device"]
    sink.close()


def test_damage_is_told_or_harmless(tmp_path):
    table = _row(0, [_transfer(1, 2)] * 20, [(1, i, i) for i in range(50)])
    run = _written(tmp_path / "run", table)
    file = tmp_path / "run/process-0/timeline.arrow"
    content = file.read_bytes()
    told = 0
    for size in range(0, len(content), 211):
        file.write_bytes(content[:size])
        with pytest.raises(dmi.RunError, match=r"process-0/timeline\.arrow.*damaged"):
            run.transfers()
    random_numbers = random.Random(1)
    for _ in range(300):
        changed = bytearray(content)
        changed[random_numbers.randrange(len(changed))] ^= (
            1 << random_numbers.randrange(8)
        )
        file.write_bytes(changed)
        try:
            run.transfers(), run.boundaries()
        except dmi.RunError:
            told += 1
    assert told


def test_a_timeline_that_cannot_be_written_is_told(tmp_path):
    sink = sinks.ArrowSink(tmp_path / "run")
    sink.open(batches.run_info())
    os.mkdir(tmp_path / "run/process-0/timeline.arrow")
    sink.note_timeline(_row())
    with pytest.raises(dmi.RunError, match=r"timeline\.arrow cannot be written"):
        sink.close()
    assert dmi.open_run(sink.path).verify().closed


def test_a_tee_tells_those_that_want_to_know(tmp_path):
    tee = sinks.TeeSink(sinks.NullSink(), sinks.ArrowSink(tmp_path / "run"))
    tee.open(batches.run_info())
    tee.note_timeline(_row(0, [_transfer(1, 2)]))
    tee.close()
    assert dmi.open_run(tmp_path / "run").transfers().num_rows == 1
