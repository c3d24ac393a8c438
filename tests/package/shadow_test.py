# SPDX-License-Identifier: Apache-2.0
"""Tests see the package that is installed, not the folder they are started in."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import jax_dmi

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def test_a_child_started_in_the_checkout_imports_the_same_package():
    done = subprocess.run(
        [sys.executable, "-c", "import jax_dmi; print(jax_dmi.__file__)"],
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == jax_dmi.__file__
