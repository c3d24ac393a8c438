# SPDX-License-Identifier: Apache-2.0
"""Options of the test suite, and the import paths it runs with."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import sys

_TESTS = pathlib.Path(__file__).resolve().parent


def _prefer_the_installed_package() -> None:
    """Keeps the checkout, if on the path, from shadowing an installed package."""
    try:
        importlib.metadata.distribution("jax_dmi")
    except importlib.metadata.PackageNotFoundError:
        return
    checkout = _TESTS.parent
    sys.path[:] = [p for p in sys.path if pathlib.Path(p or ".").resolve() != checkout]
    # In child processes too, which `-m` and `-c` start with the folder they run in.
    os.environ["PYTHONSAFEPATH"] = "1"


_prefer_the_installed_package()
sys.path.insert(0, str(_TESTS))


def pytest_addoption(parser):
    parser.addoption(
        "--dmi_platform",
        default="cpu",
        choices=("cpu", "cuda"),
        help="Platform that programs run on.",
    )


def pytest_ignore_collect(collection_path):
    from support import backend

    # Programs do not run through the kernels: said by the header, not by skips.
    ours = _TESTS / "gpu" in (collection_path, *collection_path.parents)
    return True if ours and not backend.runs_kernels() else None


def pytest_report_header():
    from support import backend

    if backend.runs_kernels():
        return None
    return "tests/gpu: not collected, needs --dmi_platform=cuda or emulated kernels"


def pytest_configure(config):
    from absl import flags

    from support import backend

    # Test cases of absl read flags, which nobody parses under pytest.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    backend.use_platform(config.getoption("--dmi_platform"))
