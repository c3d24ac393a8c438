# SPDX-License-Identifier: Apache-2.0
"""The commands that read a run: what they print, write and exit with."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pyarrow.parquet
import pytest

import jax_dmi as dmi
from jax_dmi import cli


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The path of a run with two sites, three steps and two layers."""

    @jax.jit
    def program(x):
        for layer in range(2):
            dmi.record(x + layer, "block/resid", layer=layer, labels={"t": 0.5})
        return dmi.record(x.astype(jnp.bfloat16), "out")

    path = tmp_path_factory.mktemp("run") / "run"
    with dmi.Monitor(path) as monitor:
        for step in range(3):
            with monitor.step(step):
                program(jnp.full((4, 3), float(step)))
    return str(path)


def _output(capsys, *argv):
    assert cli.main(argv) == 0
    return capsys.readouterr().out


def test_ls_lists_arrays_records_steps_and_sources(run, capsys):
    lines = _output(capsys, "ls", run).splitlines()
    assert len(lines) == 3
    resid, out = sorted(lines[1:])
    assert resid.split()[:3] == ["block/resid", "float32[4,3]", "6"]
    assert out.split()[:3] == ["out", "bfloat16[4,3]", "3"]
    assert "0..2" in resid and "commands_test.py:" in resid


def test_show_prints_labels_and_statistics(run, capsys):
    printed = _output(capsys, "show", run, "block/resid", "--layer", "1", "--values")
    first = next(line for line in printed.splitlines() if line.startswith("block"))
    assert first.split()[1:] == ["0", "1", "0", "t=0.5", "float32[4,3]", *"11110"]
    assert "[1. 1. 1.]" in printed


def test_show_says_that_there_is_more(run, capsys):
    assert "--most 4" in _output(capsys, "show", run, "block/*", "--most", "2")


def test_sql_prints_tables_and_csv(run, capsys):
    query = "select name, count(*) n from records group by name order by name"
    lines = _output(capsys, "sql", run, query).splitlines()
    assert [line.split() for line in lines[1:]] == [["block/resid", "6"], ["out", "3"]]


def test_verify_exits_with_what_it_finds(run, tmp_path, capsys):
    assert _output(capsys, "verify", run).startswith("ok")
    damaged = tmp_path / "damaged"
    with dmi.Monitor(damaged):
        dmi.record(jnp.arange(100.0), "x")
    (segment,) = damaged.glob("process-0/device-*/*.arrow")
    content = bytearray(segment.read_bytes())
    at = content.find(jnp.float32(50.0).tobytes())
    content[at] ^= 1
    segment.write_bytes(content)
    assert cli.main(["verify", str(damaged)]) == 1
    assert capsys.readouterr().out.startswith("not ok")


def test_export_lists_the_files_it_wrote(run, tmp_path, capsys):
    out = tmp_path / "out"
    printed = _output(capsys, "export", run, str(out), "--select", "out")
    (file,) = out.glob("*.parquet")
    assert str(file) in printed
    assert pyarrow.parquet.read_table(file).num_rows == 3


@pytest.mark.parametrize("kind", ["rms", "histogram", "image", "losses"])
def test_plot_writes_a_picture(run, kind, tmp_path, capsys):
    out = tmp_path / "picture.png"
    assert str(out) in _output(capsys, "plot", run, kind, "--out", str(out))
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["ls", "{run}-not"], "no directory"),
        (["ls", "{run}", "nothing*"], "block/resid"),
        (["show", "{run}", "block/reisd"], "block/resid"),
        (["show", "{run}", "out", "--step", "99"], "steps 0 to 2 and layers 0 to 1"),
        (["export", "{run}", "{run}-out", "--select", "nothing"], "block/resid"),
        (["bench", "--json", "/nowhere/rows.json"], "/nowhere/rows.json"),
        (["sql", "{run}", "selekt 1"], "selekt"),
        (["plot", "{run}", "--select", "nothing"], "block/resid"),
        (["plot", "{run}", "--out", "/nowhere/x.png"], "/nowhere/x.png"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(run, argv, told, capsys):
    assert cli.main([argument.format(run=run) for argument in argv]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_bench_takes_the_groups_there_are(capsys, monkeypatch, tmp_path):
    from jax_dmi import bench

    row = bench.Row("a thing", 1.0, 0.9, 1.1, 2.0, detail="1 / 1")
    monkeypatch.setattr(bench, "run", lambda groups: [row])
    out = tmp_path / "rows.json"
    printed = _output(capsys, "bench", "scan", "--json", str(out))
    assert "a thing" in printed
    (written,) = json.loads(out.read_text())
    assert written["reached"] is True


def test_bench_says_what_a_group_needs(capsys, monkeypatch, tmp_path):
    import jax

    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    out = tmp_path / "rows.json"
    printed = _output(capsys, "bench", "cuda", "cuda_link", "--json", str(out))
    assert printed.splitlines() == [
        "cuda: not measured, needs a GPU",
        "cuda_link: not measured, needs a GPU",
    ]
    assert json.loads(out.read_text()) == []
