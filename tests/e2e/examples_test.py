# SPDX-License-Identifier: Apache-2.0
"""The examples of capture run, and what they write is what they recorded."""

from __future__ import annotations

import collections
import pathlib
import subprocess
import sys

import numpy as np
import safetensors.flax

import jax_dmi as dmi

_EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def _run(name: str, folder: pathlib.Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", str(_EXAMPLES / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_a_sharded_product_comes_back_whole(tmp_path):
    shown = _run("sharded.py", tmp_path)
    assert shown.count("recorded (128, 256)") == 4
    assert "equal to the result of the program: True" in shown


def test_training_shards_hold_every_vector_once(tmp_path):
    _run("sae_dataset.py", tmp_path)
    shards = sorted((tmp_path / "runs" / "sae-shards").iterdir())
    assert len(shards) > 4
    found = [safetensors.flax.load_file(path)["activations"] for path in shards]
    assert {rows.shape[1:] for rows in found} == {(256,)}
    recorded = dmi.open_run(tmp_path / "runs" / "sae")["mlp/out"].stack()
    recorded = recorded.reshape(-1, 256)
    shuffled = np.concatenate([np.asarray(rows) for rows in found])
    assert shuffled.dtype == recorded.dtype
    assert not np.array_equal(shuffled, recorded)
    assert _counted(shuffled) == _counted(recorded)


def _counted(rows: np.ndarray) -> collections.Counter:
    return collections.Counter(row.tobytes() for row in rows)


def test_training_shards_can_be_made_of_any_run(tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with dmi.Monitor(tmp_path / "mine"):
        dmi.record(x, "resid")
    _run("sae_dataset.py", tmp_path, str(tmp_path / "mine"), "resid")
    (shard,) = (tmp_path / "mine-shards").iterdir()
    rows = np.asarray(safetensors.flax.load_file(shard)["activations"])
    assert sorted(rows.tolist()) == x.reshape(-1, 4).tolist()


def test_a_pipeline_keeps_its_hidden_states_with_and_without_windows(tmp_path):
    # The example itself compares every one of them.
    shown = _run("pipeline_windows.py", tmp_path)
    assert "14 windows in 28 boundaries per step" in shown
    rows = [line.split() for line in shown.splitlines()]
    table = {row[0]: row for row in rows if row[0] in ("batching", "windows")}
    assert set(table) == {"batching", "windows"}
    assert all(row[1:4] == ["256", "268", "MB"] for row in table.values())
    # Without windows, whatever the program is doing.
    assert float(table["batching"][-1]) > 0
    picture = (tmp_path / "pipeline_windows.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
