# SPDX-License-Identifier: Apache-2.0
"""Windows and replay over the link of a GPU.

A program computes in a window and outside of it, and records a little more than its
windows can carry: what there is to gain is the time of transfers outside of windows.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi import _native
from jax_dmi.bench import device
from jax_dmi.bench import harness
from jax_dmi.bench import programs
from jax_dmi.bench import replay
from jax_dmi.bench import scan
from jax_dmi.bench import windows

_PATTERN = dmi.WindowPattern(period=2, windows=[(1, 2)])
_OVERLAP_REACH, _GOODPUT_REACH = 0.01, 0.85


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
      ring_bytes: Size of the ring.
      matrix: Rows of the matrix that is computed with.
      products: Matrix products in a window, and outside of it.
      periods: Periods of the program.
      learning: The first of them, which do not count.
      upload_bytes: Size of a large upload.
      rounds: How often it is measured.
    """

    ring_bytes: int = 1 << 30
    matrix: int = 4096
    products: int = 4
    periods: int = 24
    learning: int = 8
    upload_bytes: int = 64 << 20
    rounds: int = 3


def run(plan: Plan | None = None) -> list[harness.Row]:
    """Measures both, on a GPU unless there is a ``plan``."""
    if plan is None:
        device.need_gpu()
        plan = Plan()
    return [*_windows(plan), *_uploads(plan)]


# --- Windows -----------------------------------------------------------------


def _work(plan: Plan, x: jax.Array) -> jax.Array:
    def body(_, x):
        x = x @ x
        return x / (1 + jnp.max(jnp.abs(x)))

    return jax.lax.fori_loop(0, plan.products, body, x)


def _windows(plan: Plan) -> list[harness.Row]:
    matrix = jnp.eye(plan.matrix) / 2 + 0.5
    work = jax.jit(lambda x: _work(plan, x))
    work(matrix).block_until_ready()
    length = min(
        harness.timed(lambda: work(matrix).block_until_ready()) for _ in range(5)
    )
    rate = _native.cuda_copy_rate(plan.ring_bytes // 64, 16)
    size = int(min(1.1 * rate * length, plan.ring_bytes // 4))
    payload = jnp.zeros(max(1, size // 4), jnp.float32)

    @jax.jit
    def period(count, matrix, payload):
        count, matrix = dmi.open_window((count, matrix))
        matrix = _work(plan, matrix)
        count, matrix = dmi.close_window((count + 0 * matrix[0, 0] + 1, matrix))
        dmi.record(payload + count, "payload")
        return count, _work(plan, matrix)

    ratios, goodputs = [], []
    for _ in range(plan.rounds):
        critical, _, _ = _capture(plan, None, period, matrix, payload)
        kept, carried, opened = _capture(
            plan, dmi.WindowConfig(), period, matrix, payload
        )
        ratios.append(kept / max(critical, 1.0))
        goodputs.append(carried / (opened * 1e-9 * rate))
    detail = f"{rate / 1e9:.2f} GB/s, windows of {length * 1e3:.2f} ms"
    return [
        harness.row(
            "cuda: transfers outside windows, with windows / ordinary batching",
            ratios,
            _OVERLAP_REACH,
            detail=detail,
        ),
        harness.row(
            "cuda: goodput / copy rate x window time",
            goodputs,
            _GOODPUT_REACH,
            at_least=True,
            detail=detail,
        ),
    ]


def _capture(
    plan: Plan,
    config: dmi.WindowConfig | None,
    period: Any,
    matrix: jax.Array,
    payload: jax.Array,
) -> tuple[float, float, float]:
    """Returns ns of transfers outside windows, bytes moved, and ns of windows."""
    with programs.monitor(
        exact=False, ring_bytes=plan.ring_bytes, windows=config
    ) as active:
        if config is not None:
            active.define_window_pattern(_PATTERN)
        count = jnp.zeros((), jnp.float32)
        for _ in range(plan.periods):
            count, matrix = period(count, matrix, payload)
        jax.block_until_ready(matrix)
        moved, boundaries = active.transfers(), active.boundaries()
    at = boundaries[2 * plan.learning :, 1]
    moves = np.array([(t.begin_ns, t.end_ns, t.bytes) for t in moved], np.float64)
    moves = moves.reshape(-1, 3)
    friendly = boundaries[2 * plan.learning : -1, 0] % 2 == 1
    critical, opened, carried = windows.overlap(at, friendly, moves)
    return critical, carried, opened


# --- Replay ------------------------------------------------------------------


def _uploads(plan: Plan) -> list[harness.Row]:
    work = replay.workloads()[0]
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(work.submissions)]
    together = np.zeros(work.live_bytes, np.uint8)
    arena = dmi.ReplayArena()
    large = np.zeros(plan.upload_bytes // 4, np.float32)
    kind = arena.define("large", {"x": jax.ShapeDtypeStruct(large.shape, large.dtype)})

    def seconds(fn: Callable[[], Any]) -> Callable[[], float]:
        return lambda: harness.timed(lambda: jax.block_until_ready(fn()))

    times = harness.rounds(
        {
            "upload": seconds(work.upload),
            "each": seconds(lambda: jax.device_put(leaves)),
            "together": seconds(lambda: jax.device_put(together)),
            "large": seconds(lambda: arena.upload(kind, [{"x": large}])),
            "put": seconds(lambda: jax.device_put(large)),
        },
        count=3 * plan.rounds,
    )

    def row(what: str, upload: str, put: str) -> harness.Row:
        return harness.row(
            f"cuda: upload of {what}",
            harness.ratios(times[upload], times[put]),
            detail=f"{harness.micros(times[upload])} / {harness.micros(times[put])}",
        )

    size = scan.size_name(plan.upload_bytes)
    return [
        row(f"{work.name} arrays / device_put of each", "upload", "each"),
        row(f"{work.name} arrays / device_put of their bytes", "upload", "together"),
        row(f"{size} / device_put", "large", "put"),
    ]
