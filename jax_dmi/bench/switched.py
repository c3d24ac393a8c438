# SPDX-License-Identifier: Apache-2.0
"""What a site costs that is switched off at run time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import jax_dmi as dmi
from jax_dmi.bench import dispatch
from jax_dmi.bench import harness
from jax_dmi.bench import programs

_RING = 256 << 20
_SIZE = 64 << 10
_CALLS = 1000
# Only what the device does is saved, and in exact mode a call is mostly dispatch.
_REACH = {"fast": 0.9, "exact": None}


def _recording(name: str) -> Any:
    return jax.jit(lambda x: dmi.record(x + 1, name))


def run() -> list[harness.Row]:
    """Measures jit calls on 64 KiB, in fast and exact mode."""
    return [_row(mode, reach) for mode, reach in _REACH.items()]


def _row(mode: str, reach: float | None) -> harness.Row:
    x = jnp.zeros(_SIZE // 4, jnp.float32)
    programs_by_state = {state: _recording(state) for state in ("enabled", "disabled")}
    with programs.monitor(exact=mode == "exact", ring_bytes=_RING) as active:
        programs.warm(active, _RING)
        active.disable("disabled")

        def measured(state: str) -> float:
            active.flush()
            return dispatch.per_call(programs_by_state[state], x, _CALLS)

        seconds = harness.rounds(
            {state: lambda s=state: measured(s) for state in programs_by_state}
        )
        stats = active.stats()
    if "disabled" in stats.by_site or stats.dropped:
        raise RuntimeError("a benchmark recorded what it should not")
    return harness.row(
        f"jit call: site disabled at run time / enabled, 64 KiB, {mode}",
        harness.ratios(seconds["disabled"], seconds["enabled"]),
        reach,
        detail=f"{harness.micros(seconds['disabled'])} /"
        f" {harness.micros(seconds['enabled'])}",
    )
