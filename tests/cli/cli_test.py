# SPDX-License-Identifier: Apache-2.0
"""The command line: finding commands, exit statuses, and ``info``."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import jaxlib
import pytest

import jax_dmi
from jax_dmi import _native
from jax_dmi import cli
from jax_dmi import errors
from jax_dmi.commands import _text
from jax_dmi.commands import info


def _shell(*command: str, cwd: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        command,
        cwd=cwd,
        # So that the package is found where it is not installed.
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(info.__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_info_as_json_holds_what_the_module_says(capsys):
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"versions", "platforms", "cuda", "handlers", "limits"}
    assert found["versions"]["jax_dmi"] == jax_dmi.__version__
    assert found["versions"]["jaxlib"] == jaxlib.__version__
    assert found["limits"] == _native.limits()
    assert found["cuda"] == _native.build_info()["cuda"]
    assert set(found["cuda"]) == {"built", "why_not", "archs", "ptx", "cudart"}


def test_info_lists_every_handler_with_its_metadata():
    handlers = info.gather()["handlers"]
    assert {"dmi_record", "dmi_advance", "dmi_step", "dmi_noop"} <= set(handlers)
    registered = _native.registrations()
    for name, handler in handlers.items():
        assert name.partition("@")[0] in registered[handler["platform"]]
        assert handler["api"] == list(_native.ffi_api_version())
        assert isinstance(handler["traits"], int)


def test_info_names_the_reason_where_there_is_no_cuda(capsys):
    assert cli.main(["info"]) == 0
    printed = capsys.readouterr().out
    cuda = _native.build_info()["cuda"]
    assert cuda["built"] or cuda["why_not"] in printed
    assert "dmi_record" in printed and "xla_ffi" in printed


def test_info_runs_as_a_module_and_starts_no_backend(tmp_path):
    code = (
        "import sys; from jax_dmi import cli; status = cli.main(['info'])\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "sys.exit(status)"
    )
    for command in (("-m", "jax_dmi", "info"), ("-c", code)):
        done = _shell(sys.executable, *command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "jaxlib" in done.stdout


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "info" in cli.names() and "demo" in cli.names()
    for name in cli.names():
        assert f"\n    {name}" in printed


@pytest.mark.parametrize("name", cli.names())
def test_help_shows_examples_that_are_understood(name, capsys):
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    printed = capsys.readouterr().out
    module = importlib.import_module(f"jax_dmi.commands.{name}")
    assert module.EXAMPLES
    for example in module.EXAMPLES:
        assert f"\n  {example}\n" in printed
        program, *argv = shlex.split(re.split(" && | > ", example)[0])
        assert program == "jax-dmi"
        assert cli._parser({name: module}).parse_args(argv)._command is module.run


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"jax_dmi {jax_dmi.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["info", "--no-such"]])
def test_a_wrong_command_line_exits_with_two(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    assert "usage: jax-dmi" in capsys.readouterr().err


@pytest.mark.parametrize(
    "raised, status, said",
    [
        (errors.UnknownNameError("no site 'a'\nuse 'b'"), 1, "no site 'a'\nuse 'b'"),
        (errors.DmiValueError("x=1 is odd"), 1, "x=1 is odd"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_an_exit_status_and_a_line(
    monkeypatch, capsys, raised, status, said
):
    def run(args):
        raise raised

    monkeypatch.setattr(info, "run", run)
    assert cli.main(["info"]) == status
    assert capsys.readouterr().err == (f"jax-dmi: {said}\n" if said else "")


def test_a_closed_pipe_is_no_error(tmp_path):
    shell = f"{sys.executable} -m jax_dmi info --json | true; exit ${{PIPESTATUS[0]}}"
    done = _shell("bash", "-c", shell, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_the_command_that_is_asked_for_is_imported(tmp_path):
    code = (
        "import sys; from jax_dmi import cli; cli.main(['info'])\n"
        "assert 'jax_dmi.commands.demo' not in sys.modules"
    )
    done = _shell(sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_plain_tables_line_up(capsys):
    rows = [("a[b]", 1), ("longer", 1000)]
    _text.print_table(("name", "n"), rows, title="sites", right=("n",))
    assert capsys.readouterr().out == (
        "sites\nname       n\na[b]       1\nlonger  1000\n"
    )


def test_rich_tables_show_names_as_they_are(capsys):
    _text._print_rich(("name", "n"), [["a[b]", "1"]], "sites", ("n",))
    printed = capsys.readouterr().out
    assert "a[b]" in printed and "sites" in printed
