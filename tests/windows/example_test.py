# SPDX-License-Identifier: Apache-2.0
"""The example of windows: trains, loses nothing, and shows what was moved when."""

from __future__ import annotations

import pathlib
import subprocess
import sys

_EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/pipeline_windows.py"


def test_the_pipeline_keeps_its_hidden_states_exact(tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", str(_EXAMPLE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # A tick is a window forwards and one backwards.
    assert "14 windows in 28 boundaries per step" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    table = {row[0]: row for row in rows if row[0] in ("batching", "windows")}
    assert set(table) == {"batching", "windows"}
    assert all(row[1] == "256" for row in table.values())
    # Without windows everything moves at once, whatever the program is doing.
    assert table["batching"][2:4] == ["268", "MB"]
    assert float(table["batching"][-1]) > 0
    assert (tmp_path / "pipeline_windows.png").read_bytes().startswith(b"\x89PNG")
