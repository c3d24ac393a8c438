# SPDX-License-Identifier: Apache-2.0
"""What a record adds to one small jit call."""

from __future__ import annotations

import time
from typing import Any

import jax
from jax.experimental import io_callback
import jax.numpy as jnp

import jax_dmi as dmi
from jax_dmi.bench import harness
from jax_dmi.bench import programs

_RING = 256 << 20
_CALLS = 2000
_CALLBACK_CALLS = 300


def per_call(fn: Any, x: jax.Array, calls: int) -> float:
    """Returns the seconds that one call takes, waiting for each."""
    begin = time.perf_counter()
    for _ in range(calls):
        fn(x).block_until_ready()
    return (time.perf_counter() - begin) / calls


def run() -> list[harness.Row]:
    """Measures jit calls on 1 KiB, in fast and exact mode."""
    x = jnp.zeros(256, jnp.float32)

    def plain(x):
        return x + 1

    def empty(x):
        return programs.empty_call(x + 1)

    def recording(x):
        return dmi.record(x + 1, "x")

    def calling_back(x):
        y = x + 1
        io_callback(lambda value: None, None, y)
        return y

    plain_jit, empty_jit = jax.jit(plain), jax.jit(empty)
    callback_jit = jax.jit(calling_back)
    rows = []
    for exact in (False, True):
        with programs.monitor(exact=exact, ring_bytes=_RING) as active:
            programs.warm(active, _RING)
            record_jit = jax.jit(recording)
            calls = _CALLBACK_CALLS if exact else _CALLS
            seconds = harness.rounds(
                {
                    "plain": lambda: per_call(plain_jit, x, calls),
                    "empty": lambda: per_call(empty_jit, x, calls),
                    "record": lambda f=record_jit: per_call(f, x, calls),
                    "callback": lambda: per_call(callback_jit, x, _CALLBACK_CALLS),
                }
            )
        rows.append(_exact_row(seconds) if exact else _fast_row(seconds))
    return rows


def _fast_row(seconds: dict[str, list[float]]) -> harness.Row:
    record = harness.differences(seconds["record"], seconds["plain"])
    empty = harness.differences(seconds["empty"], seconds["plain"])
    return harness.row(
        "jit call: one 1 KiB record, fast / an empty FFI call (extra time)",
        harness.ratios(record, empty),
        1.5,
        detail=f"{harness.micros(record)} / {harness.micros(empty)},"
        f" plain call {harness.micros(seconds['plain'])}",
    )


def _exact_row(seconds: dict[str, list[float]]) -> harness.Row:
    return harness.row(
        "jit call: one 1 KiB record, exact / an unordered io_callback",
        harness.ratios(seconds["record"], seconds["callback"]),
        0.6,
        detail=f"{harness.micros(seconds['record'])} /"
        f" {harness.micros(seconds['callback'])}",
    )
