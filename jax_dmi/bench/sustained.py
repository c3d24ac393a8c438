# SPDX-License-Identifier: Apache-2.0
"""Sustained capture to files, against writing the same bytes without us.

File writes to fresh pages are slow wherever the machine has to find the pages
first, and virtual machines give idle memory back to their host. So every sample
is preceded by writing and deleting a file of the same size, and appends to a new
file; orders rotate; the clock runs from the dispatch of the program until the
last byte is written.
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
from jax.experimental import io_callback
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi.bench import harness
from jax_dmi.bench import scan

_TOTAL = 768 << 20
_BLOCK = 16 << 20
_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
_WRITEV_REACH = {4 << 10: 0.65, 64 << 10: 0.75, 1 << 20: 0.7, 16 << 20: 0.75}
_SAVE_REACH = {64 << 10: 20, 1 << 20: 3}
_ROUNDS = 9


@contextlib.contextmanager
def _folder() -> Iterator[pathlib.Path]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="jax_dmi-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _warm_pages(folder: pathlib.Path, source: np.ndarray, total: int) -> None:
    """Makes the system find the pages that the sample will write."""
    _writev(folder / "warm", source, total)
    os.unlink(folder / "warm")


def _writev(path: pathlib.Path, source: np.ndarray, total: int) -> None:
    block = source[:_BLOCK]
    with open(path, "wb", buffering=0) as file:
        for i in range(total // _BLOCK):
            begin = i * _BLOCK % (source.size - _BLOCK + 1)
            block = source[begin : begin + _BLOCK]
            os.writev(file.fileno(), [memoryview(block)])


def _recording(repeats: int) -> Any:
    def body(i, x):
        dmi.record(x, "x")
        return i + 1, None

    return jax.jit(
        lambda x: jax.lax.scan(lambda i, _: body(i, x), 0, None, length=repeats)[0]
    )


def run() -> list[harness.Row]:
    """Measures 4 KiB to 16 MiB records."""
    rows = [_against_writev(size, total) for size, total in _totals()]
    rows += [_against_save(size) for size in _SAVE_REACH]
    return rows


def _totals() -> list[tuple[int, int]]:
    # Small records are limited by their number.
    return [(size, min(_TOTAL, size * 100_000)) for size in _SIZES]


class _Capture:
    """A Monitor that stays open over the samples, so that its ring is in memory.

    Files of past samples are deleted between samples.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._run = folder / "run"
        self.monitor = dmi.Monitor(self._run, exact=False, segment_bytes="128MiB")

    def __enter__(self) -> _Capture:
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

    def forget(self) -> None:
        """Deletes what was written."""
        for segment in self._run.glob("process-0/device-0/*.arrow"):
            segment.unlink()


def _against_writev(size: int, total: int) -> harness.Row:
    repeats = total // size
    x = jnp.zeros(size // 4, jnp.float32)
    source = np.zeros(256 << 20, np.uint8)
    program = _recording(repeats)
    with _folder() as folder, _Capture(folder) as capture:

        def written() -> float:
            _warm_pages(folder, source, total)
            seconds = harness.timed(
                lambda: _writev(folder / "plain", source, repeats * size)
            )
            os.unlink(folder / "plain")
            return seconds

        def captured() -> float:
            capture.forget()
            _warm_pages(folder, source, total)
            return capture.seconds(program, x)

        seconds = harness.rounds(
            {"capture": captured, "writev": written}, count=_ROUNDS, warmup=1
        )
    rate = [repeats * size / s / 1e9 for s in seconds["writev"]]
    return harness.row(
        f"sustained: capture to a file / os.writev, {scan.size_name(size)}",
        harness.ratios(seconds["writev"], seconds["capture"]),
        _WRITEV_REACH[size],
        at_least=True,
        detail=f"writev {np.median(rate):.1f} GB/s, {repeats} records",
    )


def _against_save(size: int) -> harness.Row:
    repeats = 2048 if size < 1 << 20 else 256
    total = repeats * size
    x = jnp.zeros(size // 4, jnp.float32)
    source = np.zeros(256 << 20, np.uint8)
    program = _recording(repeats)
    with _folder() as folder, _Capture(folder) as capture:
        numbers = iter(range(10**9))
        saved = folder / "saved"

        def save(array):
            np.save(saved / f"{next(numbers)}.npy", array)

        def body(i, x):
            io_callback(save, None, x.at[0].set(i), ordered=True)
            return i + 1, None

        saving = jax.jit(
            lambda x: jax.lax.scan(
                lambda i, _: body(i, x), jnp.float32(0), None, length=repeats
            )[0]
        )

        def called_back() -> float:
            saved.mkdir()
            _warm_pages(folder, source, total)
            seconds = harness.timed(
                lambda: (saving(x).block_until_ready(), jax.effects_barrier())
            )
            shutil.rmtree(saved)
            return seconds

        def captured() -> float:
            capture.forget()
            _warm_pages(folder, source, total)
            return capture.seconds(program, x)

        seconds = harness.rounds(
            {"capture": captured, "callback": called_back}, count=_ROUNDS, warmup=1
        )
    return harness.row(
        "sustained: io_callback + np.save per record / capture,"
        f" {scan.size_name(size)}",
        harness.ratios(seconds["callback"], seconds["capture"]),
        _SAVE_REACH[size],
        at_least=True,
        detail=f"{harness.micros([s / repeats for s in seconds['callback']])} /"
        f" {harness.micros([s / repeats for s in seconds['capture']])} per record",
    )
