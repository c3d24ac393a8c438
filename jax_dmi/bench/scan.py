# SPDX-License-Identifier: Apache-2.0
"""What a record costs inside a scan, against a callback and against memcpy.

Every burst fits half the ring and finds it empty; the drain and the sink thread
run. The record is of one array that the loop does not change, as the memcpy is.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import io_callback
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi import _native
from jax_dmi.bench import harness
from jax_dmi.bench import programs

_RING = 256 << 20
_SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
_CALLBACK_REACH = {1 << 10: 50, 64 << 10: 10, 1 << 20: 3, 16 << 20: 2}
_MEMCPY_REACH = {64 << 10: 1.0, 1 << 20: 0.8, 16 << 20: 0.75}
_CHECKSUM_REACH = 0.3
# Bursts that touch every page of the ring.
_WARM_BURSTS = 3


def size_name(size: int) -> str:
    """Returns ``"64 KiB"`` and the like."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _repeats(size: int) -> int:
    return max(4, min(2000, _RING * 7 // 16 // size))


def recording(repeats: int) -> Any:
    """Returns a program that records its argument so many times."""

    def body(i, x):
        dmi.record(x, "x")
        return i + 1, None

    return jax.jit(
        lambda x: jax.lax.scan(lambda i, _: body(i, x), 0, None, length=repeats)[0]
    )


def _calling_back(repeats: int, out: np.ndarray) -> Any:
    def keep(x):
        np.copyto(out, x)

    def body(i, x):
        # Depends on the counter, or the call would be made once only.
        io_callback(keep, None, x.at[0].set(i))
        return i + 1, None

    return jax.jit(
        lambda x: jax.lax.scan(
            lambda i, _: body(i, x), jnp.float32(0), None, length=repeats
        )[0]
    )


def run() -> list[harness.Row]:
    """Measures 1 KiB to 16 MiB, with and without checksums."""
    rows = [_callback_row(size, _against_callback(size)) for size in _SIZES]
    for size in _MEMCPY_REACH:
        seconds = _against_memcpy(size)
        plain = harness.ratios(seconds["plain"], seconds["memcpy"])
        checked = harness.ratios(seconds["checked"], seconds["memcpy"])
        reach = _MEMCPY_REACH[size]
        rows.append(_memcpy_row(size, seconds, "plain", plain, reach))
        rows.append(_memcpy_row(size, seconds, "checked", checked, None))
        rows.append(
            harness.row(
                f"scan: what the checksum adds / memcpy, {size_name(size)}",
                harness.differences(checked, plain),
                _CHECKSUM_REACH,
            )
        )
    return rows


def _against_callback(size: int) -> dict[str, list[float]]:
    repeats = _repeats(size)
    callbacks = min(repeats, 200)
    x = jnp.zeros(size // 4, jnp.float32)
    kept = np.zeros(size // 4, np.float32)
    with programs.monitor(exact=False, ring_bytes=_RING) as active:
        record, callback = recording(repeats), _calling_back(callbacks, kept)

        def recorded() -> float:
            active.flush()
            return harness.timed(lambda: record(x).block_until_ready()) / repeats

        def called_back() -> float:
            def call():
                callback(x).block_until_ready()
                jax.effects_barrier()

            return harness.timed(call) / callbacks

        return harness.rounds({"record": recorded, "callback": called_back})


def _against_memcpy(size: int) -> dict[str, list[float]]:
    """Measures both kinds of record beside memcpy, each Monitor warmed up anew."""
    repeats = _repeats(size)
    x = jnp.zeros(size // 4, jnp.float32)
    source = np.zeros(size, np.uint8)
    target = np.zeros(_RING, np.uint8)
    record = recording(repeats)

    def recorded(checksum: bool) -> float:
        with programs.monitor(
            exact=False, checksum=checksum, ring_bytes=_RING
        ) as active:
            for _ in range(_WARM_BURSTS):
                record(x).block_until_ready()
                active.flush()
            return harness.timed(lambda: record(x).block_until_ready()) / repeats

    def copied() -> float:
        def copy():
            _native.copy_repeatedly(target, source, repeats)

        copy()
        return harness.timed(copy) / repeats

    return harness.rounds(
        {
            "plain": lambda: recorded(False),
            "checked": lambda: recorded(True),
            "memcpy": copied,
        }
    )


def _callback_row(size: int, seconds: dict[str, list[float]]) -> harness.Row:
    return harness.row(
        f"scan: copying io_callback / record, {size_name(size)}",
        harness.ratios(seconds["callback"], seconds["record"]),
        _CALLBACK_REACH[size],
        at_least=True,
        detail=f"{harness.micros(seconds['callback'])} /"
        f" {harness.micros(seconds['record'])}",
    )


def _memcpy_row(
    size: int,
    seconds: dict[str, list[float]],
    kind: str,
    ratios: list[float],
    reach: float | None,
) -> harness.Row:
    what = {"plain": "no checksum", "checked": "checksum"}[kind]
    return harness.row(
        f"scan: record / memcpy, {size_name(size)}, {what}",
        ratios,
        reach,
        detail=f"{harness.micros(seconds[kind])} / {harness.micros(seconds['memcpy'])}",
    )
