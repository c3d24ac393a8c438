# SPDX-License-Identifier: Apache-2.0
"""Test cases that need a process of their own, as for another device count.

A class that derives from :class:`IsolatedTestCase` runs all its ``case_`` methods
in one child process, started with the environment the class asks for, and shows
each of them as a test of the parent.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
from typing import ClassVar

from absl.testing import absltest

from support import backend

FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
_TESTS = pathlib.Path(__file__).resolve().parent.parent


def run_python(
    arguments: list[str], environment: dict[str, str], timeout: float
) -> str:
    """Runs Python on ``arguments`` and returns its output; fails with all of it."""
    path = os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        timeout=timeout,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise AssertionError(f"exit status {done.returncode}\n{done.stderr[-8000:]}")
    return done.stdout


class IsolatedTestCase(absltest.TestCase):
    """Base of test cases that run in one child process.

    Attributes:
      environment: Variables to start the child with.
      timeout: Seconds all the cases together may take.
    """

    environment: ClassVar[dict[str, str]] = {}
    timeout: ClassVar[float] = 150.0
    _results: ClassVar[dict[str, str] | None] = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name in [name for name in dir(cls) if name.startswith("case_")]:
            setattr(cls, f"test_{name.removeprefix('case_')}", _shown(name))

    @classmethod
    def results(cls) -> dict[str, str]:
        """Returns the error text of each case, empty where it passed."""
        if cls._results is None:
            module = sys.modules[cls.__module__]
            with tempfile.TemporaryDirectory() as folder:
                target = os.path.join(folder, "results.json")
                script = [
                    "-m",
                    "support.isolated",
                    module.__file__,
                    cls.__name__,
                    target,
                ]
                script.append(backend.platform())
                try:
                    run_python(script, cls.environment, cls.timeout)
                    cls._results = json.loads(pathlib.Path(target).read_text())
                except Exception as error:
                    text = str(error)
                    cls._results = collections.defaultdict(lambda: text)
        return cls._results


def _shown(name: str):
    def test(self):
        error = self.results()[name]
        if error:
            self.fail(error)

    return test


def _run_cases(file: str, class_name: str, target: str, name: str) -> None:
    import importlib.util

    backend.use_platform(name)
    spec = importlib.util.spec_from_file_location("isolated_cases", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    case = getattr(module, class_name)()
    results = {}
    for name in [name for name in dir(case) if name.startswith("case_")]:
        try:
            case.setUp()
            getattr(case, name)()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    pathlib.Path(target).write_text(json.dumps(results))


if __name__ == "__main__":
    _run_cases(*sys.argv[1:])
