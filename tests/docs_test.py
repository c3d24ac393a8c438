# SPDX-License-Identifier: Apache-2.0
"""The documentation runs: its Python and shell, and what the README says it prints."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PAGES = [
    page
    for page in [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
    if re.search("```(python|bash)", page.read_text())
]


def _run(code: str, folder: pathlib.Path) -> str:
    return _output([sys.executable, "-P", "-c", code], folder)


def _run_shell(code: str, folder: pathlib.Path) -> str:
    """Runs commands with the ``jax-dmi`` of this interpreter."""
    command = f'jax-dmi() {{ {shlex.quote(sys.executable)} -P -m jax_dmi "$@"; }}'
    return _output(["bash", "-euo", "pipefail", "-c", f"{command}\n{code}"], folder)


def _output(command: list[str], folder: pathlib.Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def _blocks(page: pathlib.Path, language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S))


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    """First the Python, then the shell, which finds the runs of the Python."""
    _run(_blocks(page, "python"), tmp_path)
    _run_shell(_blocks(page, "bash"), tmp_path)


def test_the_readme_prints_what_it_says(tmp_path):
    text = (_ROOT / "README.md").read_text()
    code, told = re.search(
        r"```python\n(.*?)```\n\nprints\n\n(.*?)\n\n", text, re.S
    ).groups()
    printed = _run(code, tmp_path).splitlines()
    assert printed == [line.removeprefix("    ") for line in told.splitlines()]


def test_the_quickstart_of_the_readme_is_the_example(tmp_path):
    example = (_ROOT / "examples" / "quickstart.py").read_text()
    code = re.search(r"```python\n(.*?)```", (_ROOT / "README.md").read_text(), re.S)[1]
    assert code in example


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
