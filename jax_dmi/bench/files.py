# SPDX-License-Identifier: Apache-2.0
"""Files that the benchmarks write, and captures into them.

File writes to fresh pages are slow wherever the machine has to find the pages
first, and virtual machines give idle memory back to their host. So what writes a
file is measured right after one of the same size was written and deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil
import tempfile
from typing import Any

import jax
import numpy as np

import jax_dmi as dmi
from jax_dmi.bench import harness

_BLOCK = 16 << 20


@contextlib.contextmanager
def folder() -> Iterator[pathlib.Path]:
    """Makes a temporary directory."""
    found = pathlib.Path(tempfile.mkdtemp(prefix="jax_dmi-bench-"))
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


def writev(path: pathlib.Path, source: np.ndarray, total: int) -> None:
    """Writes ``total`` bytes out of ``source``: uint8[n], in blocks."""
    with open(path, "wb", buffering=0) as file:
        for i in range(total // _BLOCK):
            begin = i * _BLOCK % (source.size - _BLOCK + 1)
            block = source[begin : begin + _BLOCK]
            os.writev(file.fileno(), [memoryview(block)])


def warm_pages(where: pathlib.Path, total: int) -> None:
    """Makes the system find the pages that a file of ``total`` bytes takes."""
    source = np.zeros(_BLOCK, np.uint8)
    writev(where / "warm", source, total + _BLOCK)
    os.unlink(where / "warm")


class Capture:
    """A Monitor that stays open over the samples, so that its ring is in memory.

    Files of past samples are deleted between samples.
    """

    def __init__(self, where: pathlib.Path, segment_bytes: str = "128MiB") -> None:
        self._where = where
        self.monitor = dmi.Monitor(
            where / "run", exact=False, segment_bytes=segment_bytes
        )

    def __enter__(self) -> Capture:
        self.monitor.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.monitor.close()

    def seconds(self, program: Any, x: jax.Array) -> float:
        """Runs the program until the last byte of its records is written."""
        seconds = harness.timed(lambda: (program(x), self.monitor.flush()))
        if self.monitor.stats().dropped:
            raise RuntimeError("a benchmark dropped records")
        return seconds

    def forget(self, total: int) -> None:
        """Deletes what was written, and finds pages for ``total`` bytes."""
        for segment in self._where.glob("run/process-0/device-0/*.arrow"):
            segment.unlink()
        warm_pages(self._where, total)
