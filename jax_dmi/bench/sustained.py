# SPDX-License-Identifier: Apache-2.0
"""Sustained capture to files, against writing the same bytes without us.

Every sample appends to a new file, whose pages were found before; orders rotate;
the clock runs from the dispatch of the program until the last byte is written.
"""

from __future__ import annotations

import os
import shutil

import jax
from jax.experimental import io_callback
import jax.numpy as jnp
import numpy as np

from jax_dmi.bench import files
from jax_dmi.bench import harness
from jax_dmi.bench import scan

_TOTAL = 768 << 20
_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
_WRITEV_REACH = {4 << 10: 0.65, 64 << 10: 0.75, 1 << 20: 0.7, 16 << 20: 0.75}
_SAVE_REACH = {64 << 10: 20, 1 << 20: 3}
_ROUNDS = 9


def run() -> list[harness.Row]:
    """Measures 4 KiB to 16 MiB records."""
    rows = [_against_writev(size, total) for size, total in _totals()]
    rows += [_against_save(size) for size in _SAVE_REACH]
    return rows


def _totals() -> list[tuple[int, int]]:
    # Small records are limited by their number.
    return [(size, min(_TOTAL, size * 100_000)) for size in _SIZES]


def _against_writev(size: int, total: int) -> harness.Row:
    repeats = total // size
    x = jnp.zeros(size // 4, jnp.float32)
    source = np.zeros(256 << 20, np.uint8)
    program = scan.recording(repeats)
    with files.folder() as folder, files.Capture(folder) as capture:

        def written() -> float:
            files.warm_pages(folder, total)
            seconds = harness.timed(
                lambda: files.writev(folder / "plain", source, repeats * size)
            )
            os.unlink(folder / "plain")
            return seconds

        def captured() -> float:
            capture.forget(total)
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
    program = scan.recording(repeats)
    with files.folder() as folder, files.Capture(folder) as capture:
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
            files.warm_pages(folder, total)
            seconds = harness.timed(
                lambda: (saving(x).block_until_ready(), jax.effects_barrier())
            )
            shutil.rmtree(saved)
            return seconds

        def captured() -> float:
            capture.forget(total)
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
