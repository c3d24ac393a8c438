# SPDX-License-Identifier: Apache-2.0
"""What capture costs a training step: the demo with and without it."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import time

import jax

import jax_dmi as dmi
from jax_dmi import demo
from jax_dmi.bench import harness

_STEPS = 10


def run() -> list[harness.Row]:
    """Measures steps of the demo, a few with and a few without capture in turn."""
    data = demo.batches(demo.text())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="jax_dmi-bench-"))
    try:
        seconds = _measure(data, folder)
    finally:
        shutil.rmtree(folder)
    return [
        harness.row(
            "demo step: with capture / without",
            harness.ratios(seconds["captured"], seconds["plain"]),
            1.10,
            detail=f"{harness.micros(seconds['captured'])} /"
            f" {harness.micros(seconds['plain'])}",
        )
    ]


def _measure(data, folder: pathlib.Path) -> dict[str, list[float]]:
    tokens = [next(data) for _ in range(_STEPS)]
    states = {"plain": demo.initial_state(), "captured": demo.initial_state()}
    step = iter(range(10**9))

    def plain() -> float:
        state = states["plain"]
        begin = time.perf_counter()
        for batch in tokens:
            state, _ = demo.train_step(state, batch)
        jax.block_until_ready(state)
        states["plain"] = state
        return (time.perf_counter() - begin) / _STEPS

    runs = iter(range(10**9))

    def captured() -> float:
        state = states["captured"]
        with dmi.Monitor(folder / f"run-{next(runs)}") as monitor:
            begin = time.perf_counter()
            for batch in tokens:
                with monitor.step(next(step)):
                    state, _ = demo.train_step(state, batch)
            jax.block_until_ready(state)
            seconds = (time.perf_counter() - begin) / _STEPS
        states["captured"] = state
        return seconds

    return harness.rounds({"plain": plain, "captured": captured})
