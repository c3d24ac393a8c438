# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi plot RUN --windows``: what is drawn, and when there is nothing."""

from __future__ import annotations

import numpy as np
import pytest

import jax_dmi as dmi
from jax_dmi import cli
from jax_dmi import sinks
from jax_dmi import stats
from jax_dmi import timeline
from jax_dmi import view
from jax_dmi import windows
from support import batches


def _run(path, *spans, boundaries=6, version=1):
    """Writes a run whose boundaries are 10 ns apart, every second stretch open."""
    moved = [stats.Transfer(0, *span, 8, kind, 1, 0, 0, 0, 0) for *span, kind in spans]
    log = np.array([(version, i, 10 * i) for i in range(1, boundaries + 1)], np.int64)
    pattern = windows.WindowPattern(2, [(1, 2)])
    table = timeline.row(0, moved, log.reshape(-1, 3), {1: pattern}, None)
    sink = sinks.ArrowSink(path)
    sink.open(batches.run_info())
    sink.note_timeline(table)
    sink.close()
    return dmi.open_run(path)


def _axis(run, **options):
    (axis,) = view.DRAW["windows"](
        run, **{"select": "*", "step": None, "layer": None, **options}
    ).axes
    return axis


def _label(axis):
    (label,) = [label.get_text() for label in axis.get_yticklabels()]
    return label


@pytest.mark.parametrize(
    ("spans", "part"),
    [
        ([(12, 16)], "0.0%"),
        ([(12, 16), (18, 22)], "25.0%"),
        ([(22, 26), (41, 42)], "100.0%"),
        ([(12, 58)], "43.5%"),
        # Before and after the program.
        ([(0, 5), (8, 12), (58, 62), (70, 80)], "0.0%"),
        ([(25, 35), (90, 99)], "50.0%"),
    ],
)
def test_the_part_of_transfers_in_critical_regions(spans, part, tmp_path):
    run = _run(tmp_path / "run", *((*span, "batch") for span in spans))
    assert _label(_axis(run)) == f"device 0\n{part}"


def test_transfers_are_drawn_by_kind_over_critical_regions(tmp_path):
    run = _run(tmp_path / "run", (12, 16, "window"), (18, 22, "forced"))
    axis = _axis(run)
    bars = [
        [
            tuple(np.round(path.get_extents().intervalx * 1e6, 6) + 10)
            for path in c.get_paths()
        ]
        for c in axis.collections
        if c.get_paths()
    ]
    assert bars == [[(20, 30), (40, 50)], [(12, 16)], [(18, 22)]]
    shown = [text.get_text() for text in axis.get_legend().get_texts()]
    assert shown == ["window", "forced", "critical"]


def test_without_a_pattern_nothing_is_critical(tmp_path):
    run = _run(tmp_path / "run", (12, 16, "batch"), version=0)
    assert _label(_axis(run)) == "device 0"


def test_without_boundaries_transfers_are_drawn(tmp_path):
    axis = _axis(_run(tmp_path / "run", (12, 16, "batch"), boundaries=0))
    assert axis.get_xlim() == (0, 4e-6)


def test_from_the_command_line(tmp_path, capsys):
    run = _run(tmp_path / "run", (12, 16, "batch"))
    out = tmp_path / "picture.png"
    for kind in ("--windows", "windows"):
        assert cli.main(["plot", run.path, kind, "--out", str(out)]) == 0
        assert str(out) in capsys.readouterr().out
        assert out.read_bytes().startswith(b"\x89PNG")
        out.unlink()


def test_one_step_and_nothing_to_draw(tmp_path, capsys):
    run = _run(tmp_path / "run", (12, 16, "batch"))
    assert cli.main(["plot", run.path, "--windows", "--step", "3"]) == 1
    assert "no record of step 3" in capsys.readouterr().err
    empty = _run(tmp_path / "empty")
    assert cli.main(["plot", empty.path, "--windows"]) == 1
    assert "no transfers to draw" in capsys.readouterr().err
