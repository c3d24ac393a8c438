# SPDX-License-Identifier: Apache-2.0
"""What windows do for a program, in virtual time, and what a boundary costs.

The program has a short and a long window per period and always more to record; the
link is simulated. Every record is compared with what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi.bench import harness
from jax_dmi.bench import programs
from jax_dmi.bench import virtual

_RATE = 1e8  # bytes per second
# Nanoseconds between the four boundaries of a period.
_PERIOD = (10e6, 4e6, 10e6, 16e6)
_PATTERN = dmi.WindowPattern(period=4, windows=[(1, 2), (3, 4)])
_SEEDS = 9
_PERIODS = 5000  # of the run under jitter, looked at in parts
_PARTS = 10


def run() -> list[harness.Row]:
    """Measures overlap, learning, jitter, and the cost of a boundary."""
    return [*_overlap(), _convergence(), *_shifts(), *_jitter(), *_boundary()]


def _steady(counter: int) -> float:
    return _PERIOD[counter % 4]


def _jittered(seed: int, share: float) -> Callable[[int], float]:
    source = random.Random(seed)
    return lambda counter: _PERIOD[counter % 4] * source.uniform(1 - share, 1 + share)


def _is_window(counter: np.ndarray) -> np.ndarray:
    return (counter % 4 == 1) | (counter % 4 == 3)


def overlap(
    at: np.ndarray, friendly: np.ndarray, moves: np.ndarray
) -> tuple[float, float, float]:
    """Returns ns of transfers outside windows, ns of windows, and bytes.

    Args:
      at: int64[n + 1], times of boundaries in ns.
      friendly: bool[n], whether a window lies between two of them.
      moves: [m, 3 or more], begin and end in ns and bytes of transfers; those
        between the first boundary and the last count.
    """
    begins, ends = at[:-1], at[1:]
    moves = moves[(at[0] <= moves[:, 0]) & (moves[:, 1] <= at[-1])]
    inside = 0.0
    first = np.searchsorted(ends, moves[:, 0], side="right")
    for begin, end, i in zip(moves[:, 0], moves[:, 1], first):
        while i < len(begins) and begins[i] < end:
            if friendly[i]:
                inside += max(0, min(end, ends[i]) - max(begin, begins[i]))
            i += 1
    critical = float((moves[:, 1] - moves[:, 0]).sum()) - inside
    return critical, float((ends - begins)[friendly].sum()), float(moves[:, 2].sum())


def _measure(
    capture: virtual.VirtualCapture, since: int = 0
) -> tuple[float, float, float]:
    """Returns what ``overlap`` does, of what happened since a boundary."""
    at = np.array(capture.boundaries[since:])
    friendly = _is_window(np.arange(since, since + len(at) - 1))
    return overlap(at, friendly, capture.transfers())


def _overlap() -> list[harness.Row]:
    ratios, goodputs = [], []
    for seed in range(_SEEDS):
        found = []
        for config in (None, dmi.WindowConfig()):
            schedule = _jittered(seed, 0.01)
            with virtual.VirtualCapture(
                schedule, config, bytes_per_second=_RATE
            ) as capture:
                if config is not None:
                    capture.install(_PATTERN)
                capture.run(400)
                found.append(_measure(capture))
        (ordinary, _, _), (critical, windows, size) = found
        ratios.append(critical / ordinary)
        goodputs.append(size / (windows * 1e-9 * _RATE))
    return [
        harness.row(
            "windows: transfers in critical regions / ordinary batching", ratios, 0.01
        ),
        harness.row(
            "windows: goodput at that overlap / link rate x window time",
            goodputs,
            0.85,
            at_least=True,
        ),
    ]


def _granted(capture: virtual.VirtualCapture) -> list[float]:
    """Returns bytes moved per occurrence of the long window, in order."""
    moves = capture.transfers()
    counters = np.arange(3, len(capture.boundaries) - 1, 4)
    return [float(moves[moves[:, 3] == c, 2].sum()) for c in counters]


def _until(moved: list[float], reach: Callable[[float], bool]) -> int:
    """Returns how many occurrences passed before all were where they should be."""
    good = [reach(size) for size in moved]
    return len(good) - good[::-1].index(False) if False in good else 0


def _convergence() -> harness.Row:
    needed, overruns = [], []
    for seed in range(_SEEDS):
        length = _PERIOD[3] * (1 + seed / 4)
        capacity = _RATE * length * 1e-9
        with virtual.VirtualCapture(
            lambda c, x=length: x if c % 4 == 3 else _PERIOD[c % 4],
            dmi.WindowConfig(),
            bytes_per_second=_RATE,
        ) as capture:
            capture.install(_PATTERN)
            capture.run(80)
            enough = 0.95 * capacity - capacity / 32  # A chunk.
            needed.append(float(_until(_granted(capture), lambda size: size >= enough)))
            overruns.append(capture.state().windows[1].overruns)
    return harness.row(
        "windows: occurrences until 95 % of a window less a chunk",
        needed,
        4,
        unit="occurrences",
        detail=f"overruns: at most {max(overruns)}",
    )


def _shifts() -> list[harness.Row]:
    rows = []
    for name, factor in (("halves", 0.5), ("doubles", 2.0)):
        for what in ("rate", "length"):
            needed, modes = [], set()
            for seed in range(_SEEDS):
                count, mode = _after_shift(seed, what, factor)
                needed.append(float(count))
                modes.add(mode)
            rows.append(
                harness.row(
                    f"windows: occurrences until 90 % after the {what} {name}",
                    needed,
                    6,
                    unit="occurrences",
                    detail=f"mode {', '.join(sorted(modes))}",
                )
            )
    return rows


def _after_shift(seed: int, what: str, factor: float) -> tuple[int, str]:
    shifted = [1.0]

    def schedule(counter: int) -> float:
        return _PERIOD[counter % 4] * (1 + seed / 8) * shifted[0]

    with virtual.VirtualCapture(
        schedule, dmi.WindowConfig(), bytes_per_second=_RATE
    ) as capture:
        capture.install(_PATTERN)
        capture.run(120)
        before = len(_granted(capture))
        if what == "length":
            shifted[0] = factor
        else:
            capture.link.set_rate(_RATE * factor)
        capture.run(120)
        moved = _granted(capture)[before:]
        best = sorted(moved)[-5]
        close = [abs(size / best - 1) <= 0.1 for size in moved]
        return _until(
            [float(c) for c in close], lambda c: c == 1.0
        ), capture.state().mode


def _jitter() -> list[harness.Row]:
    share, goodputs = [], []
    with virtual.VirtualCapture(
        _jittered(0, 0.1), dmi.WindowConfig(), bytes_per_second=_RATE, jitter=0.1
    ) as capture:
        capture.install(_PATTERN)
        windows, moved = 0.0, 0.0
        overruns = 0
        for _ in range(_PARTS):
            before = len(capture.boundaries)
            capture.run(4 * _PERIODS // _PARTS)
            overran = sum(window.overruns for window in capture.state().windows)
            share.append(100 * (overran - overruns) / (2 * _PERIODS / _PARTS))
            overruns = overran
            _, windows, moved = _measure(capture, before)
            goodputs.append(moved / (windows * 1e-9 * _RATE))
    total = 2 * _PERIODS
    return [
        harness.row(
            f"windows: overruns of {total:,} occurrences under 10 % jitter",
            [100 * overruns / total] * 2,
            1,
            unit="%",
            detail=f"at most {max(share):.2f} % of {total // _PARTS:,}",
        ),
        harness.row(
            "windows: goodput under that jitter / link rate x window time",
            goodputs,
            0.8,
            at_least=True,
        ),
    ]


# --- Boundaries --------------------------------------------------------------

_REPEATS = 2000


def _scan(op: Callable[[Any], Any]) -> Any:
    def body(carry, _):
        return op(carry), None

    return jax.jit(
        lambda x: jax.lax.scan(body, x, None, length=_REPEATS)[0], donate_argnums=0
    )


def _boundary() -> list[harness.Row]:
    def seconds(fn) -> float:
        x = jnp.zeros((), jnp.float32)
        return harness.timed(lambda: fn(x).block_until_ready()) / _REPEATS

    with programs.monitor(exact=False):
        boundary = _scan(lambda x: dmi.advance_boundary(x) + 1)
        empty = _scan(lambda x: programs.empty_call(x) + 1)
        plain = _scan(lambda x: x + 1)
        times = harness.rounds(
            {
                "boundary": lambda: seconds(boundary),
                "empty": lambda: seconds(empty),
                "plain": lambda: seconds(plain),
            }
        )
        copies = [float(n) for n in (_copies(False), _copies(True))]
    extra = harness.differences(times["boundary"], times["plain"])
    nothing = harness.differences(times["empty"], times["plain"])
    return [
        harness.row(
            "boundary in scan / an empty FFI call (extra time)",
            harness.ratios(extra, nothing),
            2,
            detail=f"{harness.micros(extra)} / {harness.micros(nothing)}",
        ),
        harness.row("boundary in scan: array copies added", copies[:1] * 2, 0),
        harness.row("boundary under grad: array copies added", copies[1:] * 2, 0),
    ]


def _copies(grad: bool) -> int:
    """Counts the copies a boundary adds to a compiled scan over a large carry."""

    def loop(op, weights, x):
        def body(carry, w):
            # The counter is the smallest leaf, which is what goes through the call.
            carry = op({"x": jnp.tanh(carry["x"] @ w), "i": carry["i"] + 1})
            return carry, None

        return jax.lax.scan(body, {"x": x, "i": jnp.int32(0)}, weights)[0]["x"].sum()

    weights = jax.ShapeDtypeStruct((4, 64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def count(op) -> int:
        fn = jax.grad(loop, argnums=1) if grad else loop
        text = (
            jax.jit(fn, static_argnums=0).lower(op, weights, x).compile().as_text()
            or ""
        )
        # Of arrays; a scalar in a register counts as none.
        return len(re.findall(r"= \w+\[[\d,]+\]\S* copy\(", text))

    return count(dmi.advance_boundary) - count(lambda tree: tree)
