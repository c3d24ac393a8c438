# SPDX-License-Identifier: Apache-2.0
"""Records, boundaries and the drain on a GPU, against copies of the same bytes.

A program of many records less one of few, over their difference: what a program costs
besides is in both. Bursts fit the ring and find it empty, the drain runs.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

import jax_dmi as dmi
from jax_dmi import _native
from jax_dmi.bench import device
from jax_dmi.bench import harness
from jax_dmi.bench import programs
from jax_dmi.bench import scan

_COPY_REACH, _DRAIN_REACH = 0.9, 0.95
_REACH_FROM = 16 << 20  # Smaller records are stated only.
_RECORD_MICROS, _BOUNDARY_MICROS = 3.0, 1.5
_SMALL = 4 << 10


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
      ring_bytes: Size of the ring.
      sizes: Sizes of records, in bytes.
      most: Most records of a burst.
      nodes: Records, or boundaries, of a program that is one command buffer.
      drain_record: Size of the records that are drained; so many fit that the
        launches of the program fit what a stream queues, about a thousand.
      drain_bytes: Bytes drained at once, a few rings.
      rounds: How often everything is measured.
    """

    ring_bytes: int = 2 << 30
    sizes: tuple[int, ...] = (1 << 20, 16 << 20, 64 << 20, 256 << 20)
    most: int = 48
    nodes: int = 64
    drain_record: int = 64 << 20
    drain_bytes: int = 6 << 30
    rounds: int = 9


def run(plan: Plan | None = None) -> list[harness.Row]:
    """Measures all of it under one Monitor, on a GPU unless there is a ``plan``."""
    if plan is None:
        device.need_gpu()
        plan = Plan()
    with programs.monitor(exact=False, ring_bytes=plan.ring_bytes) as active:
        rows = [_copies(active, plan, size) for size in plan.sizes]
        rows += _nodes(active, plan)
        rows.append(_drain(active, plan))
        if dropped := active.stats().dropped:
            raise RuntimeError(f"records were dropped: {dropped}")
    return rows


def _recording(count: int) -> Any:
    """Returns a program that records its argument so many times."""

    def program(x):
        for _ in range(count):
            dmi.record(x, "x")
        return x[0] + 1

    return jax.jit(program)


def _seconds(active: dmi.Monitor, program: Any, x: jax.Array) -> float:
    active.flush()
    return harness.timed(lambda: program(x).block_until_ready())


def _copies(active: dmi.Monitor, plan: Plan, size: int) -> harness.Row:
    many = max(3, min(plan.most, plan.ring_bytes * 3 // 8 // size))
    few = max(1, many // 4)
    x = jnp.zeros(size // 4, jnp.float32)
    variants: dict[str, Callable[[], float]] = {
        str(count): functools.partial(_seconds, active, _recording(count), x)
        for count in (many, few)
    }
    variants["copy"] = lambda: size / _native.cuda_copy_rate(size, 8 * many, False)
    times = harness.rounds(variants, count=plan.rounds)
    extra = harness.differences(times[str(many)], times[str(few)])
    record = [seconds / (many - few) for seconds in extra]
    return harness.row(
        f"cuda: copy on the device / record, {scan.size_name(size)}",
        harness.ratios(times["copy"], record),
        _COPY_REACH if size >= _REACH_FROM else None,
        at_least=True,
        detail=f"{harness.rate(size, times['copy'])}, {harness.rate(size, record)}",
    )


def _nodes(active: dmi.Monitor, plan: Plan) -> list[harness.Row]:
    def passing(count: int) -> Any:
        def program(x):
            for _ in range(count):
                x = dmi.advance_boundary(x)
            return x + 1

        return jax.jit(program)

    x, scalar = jnp.zeros(_SMALL // 4, jnp.float32), jnp.zeros(())
    with_records, without = _recording(plan.nodes), _recording(0)
    boundaries, none = passing(plan.nodes), passing(0)
    times = harness.rounds(
        {
            "records": lambda: _seconds(active, with_records, x),
            "without": lambda: _seconds(active, without, x),
            "boundaries": lambda: _seconds(active, boundaries, scalar),
            "none": lambda: _seconds(active, none, scalar),
        },
        count=3 * plan.rounds,
    )

    def row(name: str, some: str, no: str, reach: float) -> harness.Row:
        extra = harness.differences(times[some], times[no])
        return harness.row(
            f"cuda: {name} in a program of {plan.nodes}",
            [seconds / plan.nodes * 1e6 for seconds in extra],
            reach,
            unit="us",
            detail=f"{harness.micros(times[some])} - {harness.micros(times[no])}",
        )

    return [
        row("a record of 4 KiB", "records", "without", _RECORD_MICROS),
        row("a boundary", "boundaries", "none", _BOUNDARY_MICROS),
    ]


def _drain(active: dmi.Monitor, plan: Plan) -> harness.Row:
    """Many rings from the first record to the last byte, a program that waits."""
    size, count = plan.drain_record, plan.drain_bytes // plan.drain_record
    x = jnp.zeros(size // 4, jnp.float32)

    program = scan.recording(count)

    def drained() -> float:
        active.flush()

        def burst() -> None:
            program(x).block_until_ready()
            active.flush()

        return harness.timed(burst) / count

    times = harness.rounds(
        {
            "drain": drained,
            "copy": lambda: size / _native.cuda_copy_rate(size, count),
        },
        count=plan.rounds,
        warmup=1,
    )
    return harness.row(
        f"cuda: drain / copy to pinned memory, records of {scan.size_name(size)}",
        harness.ratios(times["copy"], times["drain"]),
        _DRAIN_REACH,
        at_least=True,
        detail=f"{harness.rate(size, times['drain'])},"
        f" {harness.rate(size, times['copy'])}",
    )
