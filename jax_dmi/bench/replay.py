# SPDX-License-Identifier: Apache-2.0
"""The replay arena: transfers, bytes, host time, and what unpacking costs.

The workloads are those of decoding: 40 replays of a layer with 26 small arrays, and
20 of one with 118 arrays and 31 scalars; each of one kind, and of seven.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi import _native
from jax_dmi.bench import decoding
from jax_dmi.bench import harness

_LARGE = 16 << 20  # bytes


@dataclasses.dataclass(frozen=True)
class Workload:
    """Submissions of one upload.

    Attributes:
      name: What it is.
      arena: The arena they go through.
      definitions: The definition of each.
      submissions: The arguments of each.
    """

    name: str
    arena: dmi.ReplayArena
    definitions: list[dmi.Definition]
    submissions: list[dict[str, Any]]

    def upload(self, count: int | None = None) -> dmi.ReplayBlock:
        """Uploads the first ``count`` submissions, or all."""
        plan = self.arena.plan()
        for definition, args in zip(self.definitions[:count], self.submissions):
            plan.submit(definition, args)
        return plan.upload()

    @property
    def live_bytes(self) -> int:
        """Bytes of the arguments themselves."""
        leaves = jax.tree.leaves(self.submissions)
        return sum(np.asarray(leaf).nbytes for leaf in leaves)


def _workload(name: str, count: int, kinds: int, sizes: list[tuple[int, ...]]):
    rng = np.random.default_rng(0)
    arena = dmi.ReplayArena()
    arguments = {
        f"argument {k}": jax.ShapeDtypeStruct(shape, jnp.int32)
        for k, shape in enumerate(sizes)
    }
    made = [arena.define(f"kind {k}", arguments) for k in range(kinds)]
    submissions = [
        {
            name: rng.integers(99, size=s.shape, dtype=np.int32)
            if s.shape
            else np.int32(k)
            for k, (name, s) in enumerate(arguments.items())
        }
        for _ in range(count)
    ]
    name = f"{name}, {kinds} kind{'s' if kinds > 1 else ''}"
    return Workload(name, arena, [made[i % kinds] for i in range(count)], submissions)


def workloads() -> list[Workload]:
    """Returns the workloads, one arena each."""
    rng = np.random.default_rng(1)
    small = [(int(size),) for size in rng.integers(1, 65, 26)]
    wide = [(16,)] * 118 + [()] * 31
    return [
        _workload(name, count, kinds, sizes)
        for name, count, sizes in (("40 x 26", 40, small), ("20 x 149", 20, wide))
        for kinds in (1, 7)
    ]


class _Compilations:
    """Counts what is compiled in this process."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        del duration_secs, kwargs
        self.count += event.endswith("backend_compile_duration")


def _exact(name: str, value: float, reach: float, detail: str = "") -> harness.Row:
    return harness.Row(name, value, value, value, reach, detail=detail)


def counts() -> list[harness.Row]:
    """Counts transfers, allocations, recompilations and bytes."""
    compilations = _Compilations()
    rows = []
    for work in workloads():
        total = len(work.submissions)
        kind = work.definitions[0]
        program = jax.jit(lambda block, i: block.unpack(kind, i))
        index = jax.device_put(np.int32(0))
        for _ in range(2):  # warms up both banks
            jax.block_until_ready(program(work.upload(), index))
        before, compiled = work.arena.stats(), compilations.count
        uploads = 0
        with jax.transfer_guard("disallow"):
            for count in (total, 1, total // 2, 0, total - 1, total):
                jax.block_until_ready(program(work.upload(count), index))
                uploads += 1
        after = work.arena.stats()
        taken = after.allocations - before.allocations
        copies = after.copies - before.copies
        shipped = after.capacity / work.live_bytes
        detail = f"{after.capacity} bytes for {work.live_bytes}"
        again = compilations.count - compiled
        rows += [
            _exact(f"replay: transfers per upload, {work.name}", copies / uploads, 1),
            _exact(f"replay: allocations after warm-up, {work.name}", taken, 0),
            _exact(f"replay: recompilations after warm-up, {work.name}", again, 0),
            _exact(f"replay: bytes / live bytes, {work.name}", shipped, 1.1, detail),
        ]
    return rows


def _host_time() -> list[harness.Row]:
    rows = []
    for work in workloads():
        times = harness.rounds(
            {
                "arena": lambda: harness.timed(work.upload),
                "device_put": lambda: harness.timed(
                    lambda: jax.device_put(work.submissions)
                ),
                "flatten": lambda: harness.timed(
                    lambda: jax.tree.flatten(work.submissions)
                ),
            }
        )
        arena, put, flatten = times["arena"], times["device_put"], times["flatten"]
        detail = " / ".join(f"{k} {harness.micros(v)}" for k, v in times.items())
        net = harness.differences(arena, flatten)
        rows += [
            harness.row(
                f"replay: host time / device_put, {work.name}",
                harness.ratios(arena, put),
                0.05,
                detail=detail,
            ),
            harness.row(
                f"replay: host time minus flatten / device_put, {work.name}",
                harness.ratios(net, put),
                0.02,
                detail=detail,
            ),
        ]
    return rows


def _pack_bandwidth() -> harness.Row:
    arena = dmi.ReplayArena(banks=1)  # one destination, as the copy has
    rng = np.random.default_rng(0)
    sources = [rng.integers(255, size=_LARGE, dtype=np.uint8) for _ in range(4)]
    kind = arena.define("large", [jax.ShapeDtypeStruct((_LARGE,), jnp.uint8)] * 4)
    places = [np.zeros(_LARGE, np.uint8) for _ in range(4)]

    def pack():
        # Dropped before it is uploaded: only the packing is timed.
        plan = arena.plan()
        return harness.timed(lambda: plan.submit(kind, sources))

    def copy():
        def run():
            for place, source in zip(places, sources):
                _native.copy_repeatedly(place, source, 1)

        return harness.timed(run)

    times = harness.rounds({"pack": pack, "memcpy": copy}, count=25)
    rates = {k: 4 * _LARGE / statistics.median(v) / 2**30 for k, v in times.items()}
    return harness.row(
        "replay: pack bandwidth / memcpy, 64 MiB",
        harness.ratios(times["memcpy"], times["pack"]),
        0.8,
        at_least=True,
        detail=", ".join(f"{k} {rate:.1f} GiB/s" for k, rate in rates.items()),
    )


def _temporary_bytes(program: Any, *args: Any) -> int:
    return program.lower(*args).compile().memory_analysis().temp_size_in_bytes


def _unpack(name: str, arguments: list, use: Callable) -> harness.Row:
    """Compares a program that unpacks with one that gets the same arrays."""
    arena = dmi.ReplayArena()
    kind = arena.define("kind", arguments)
    args = [np.ones(a.shape, a.dtype) for a in arguments]
    block = arena.upload(kind, [args])
    plain = jax.device_put(args)
    index = jax.device_put(np.int32(0))
    packed = jax.jit(lambda block, index: use(block.unpack(kind, index)))
    direct = jax.jit(use)
    copied = _temporary_bytes(packed, block, index) - _temporary_bytes(direct, plain)
    repeat = 2 if sum(a.nbytes for a in args) > _LARGE // 2 else 100

    def loop(fn, *args):
        for _ in range(repeat):
            jax.block_until_ready(fn(*args))

    times = harness.rounds(
        {
            "unpacked": lambda: harness.timed(lambda: loop(packed, block, index)),
            "plain": lambda: harness.timed(lambda: loop(direct, plain)),
        }
    )
    per_call = {k: [v / repeat for v in values] for k, values in times.items()}
    return harness.row(
        f"replay: unpacked / plain argument, {name}",
        harness.ratios(times["unpacked"], times["plain"]),
        detail=", ".join(f"{k} {harness.micros(v)}" for k, v in per_call.items())
        + f"; {copied} bytes copied",
    )


def _unpacking() -> list[harness.Row]:
    small = [jax.ShapeDtypeStruct((16 + k,), jnp.int32) for k in range(26)]
    side = int((_LARGE // 4) ** 0.5)
    large = [jax.ShapeDtypeStruct((side, side), jnp.float32)]

    def squares(args):
        return sum((arg * arg).sum() for arg in args)

    def product(args):
        return args[0] @ jnp.ones((side, 8), jnp.float32)

    return [
        _unpack("26 small into elementwise", small, squares),
        _unpack("16 MiB into elementwise", large, squares),
        _unpack("16 MiB into a matrix product", large, product),
    ]


def run() -> list[harness.Row]:
    """Measures everything."""
    measured = [*counts(), *_host_time(), _pack_bandwidth(), *_unpacking()]
    return [*measured, *decoding.rows()]
