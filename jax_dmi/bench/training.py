# SPDX-License-Identifier: Apache-2.0
"""What capture costs a training step: the demo with and without it."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import tempfile
import time

import jax

import jax_dmi as dmi
from jax_dmi import demo
from jax_dmi.bench import harness
from jax_dmi.bench import programs

_RING = 256 << 20
_STEPS = 20


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
    numbers = iter(range(10**9))

    # One Monitor for all rounds, so that its ring is in memory; the plain program
    # is the one that is traced without it.
    with dmi.Monitor(folder / "run") as monitor:
        programs.warm(monitor, _RING)

        def plain() -> float:
            with programs.unrecorded():
                return _steps(states, "plain", tokens, lambda: contextlib.nullcontext())

        def captured() -> float:
            seconds = _steps(
                states, "captured", tokens, lambda: monitor.step(next(numbers))
            )
            monitor.flush()
            return seconds

        return harness.rounds({"plain": plain, "captured": captured})


def _steps(states, name, tokens, around) -> float:
    state = states[name]
    begin = time.perf_counter()
    for batch in tokens:
        with around():
            state, _ = demo.train_step(state, batch)
    jax.block_until_ready(state)
    states[name] = state
    return (time.perf_counter() - begin) / len(tokens)
