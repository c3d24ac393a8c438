# SPDX-License-Identifier: Apache-2.0
"""Sustained capture beside a main thread that never lets go of Python's lock."""

from __future__ import annotations

import time

import jax.numpy as jnp

from jax_dmi.bench import files
from jax_dmi.bench import harness
from jax_dmi.bench import scan

_TOTAL = 768 << 20
_SIZE = 64 << 10
_REACH = 0.55
_ROUNDS = 11
# Between looks at whether all is written; a look is a few microseconds.
_LOOK_SECONDS = 2e-3


def run() -> list[harness.Row]:
    """Measures 64 KiB records."""
    repeats = _TOTAL // _SIZE
    x = jnp.zeros(_SIZE // 4, jnp.float32)
    program = scan.recording(repeats)
    with files.folder() as folder, files.Capture(folder, "1GiB") as capture:

        def alone() -> float:
            capture.forget(_TOTAL)
            return capture.seconds(program, x)

        def beside() -> float:
            capture.forget(_TOTAL)
            end = capture.monitor.stats().written + repeats

            def spin() -> None:
                kept = program(x)
                while capture.monitor.stats().written < end:
                    look = time.perf_counter() + _LOOK_SECONDS
                    while time.perf_counter() < look:
                        pass
                del kept

            return harness.timed(spin)

        seconds = harness.rounds(
            {"alone": alone, "beside": beside}, count=_ROUNDS, warmup=1
        )
    return [
        harness.row(
            "beside: capture beside a main thread that never yields / without it,"
            f" {scan.size_name(_SIZE)}",
            harness.ratios(seconds["alone"], seconds["beside"]),
            _REACH,
            at_least=True,
            detail=f"{harness.rate(_TOTAL, seconds['beside'])} /"
            f" {harness.rate(_TOTAL, seconds['alone'])}",
        )
    ]
