# SPDX-License-Identifier: Apache-2.0
"""Opening a run, and taking arrays out of it, with its files in the page cache."""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi.bench import files
from jax_dmi.bench import harness
from jax_dmi.bench import scan

_TOTAL = 1 << 30
_STACK_REACH = {64 << 10: 2.5, 1 << 20: 1.5}
_RECORDS = 1_000_000
# By records per batch.
_OPEN_REACH = {1000: 0.2, 10: 1.0}
_ROUNDS = 9


def run() -> list[harness.Row]:
    """Measures stacks of 64 KiB and 1 MiB records, and opening small ones."""
    rows = []
    for size, reach in _STACK_REACH.items():
        rows += _stack(size, reach)
    for count, reach in _OPEN_REACH.items():
        rows += _open(count, reach)
    return rows


def capture(
    path: pathlib.Path,
    size: int,
    count: int,
    names: Sequence[str] = ("x",),
    **settings: Any,
) -> None:
    """Writes a run of ``count`` records of ``size`` bytes at each of some sites."""
    x = jnp.zeros(size // 4, jnp.float32)

    def body(i, x):
        for name in names:
            dmi.record(x, name)
        return i + 1, None

    program = jax.jit(
        lambda x: jax.lax.scan(lambda i, _: body(i, x), 0, None, length=count)[0]
    )
    with dmi.Monitor(path, exact=False, **settings) as monitor:
        program(x).block_until_ready()
    if monitor.stats().written != count * len(names):
        raise RuntimeError("a benchmark lost records")


def _stack(size: int, reach: float) -> list[harness.Row]:
    total = _TOTAL // 2
    with files.folder() as folder:
        # Another site lies between the records.
        capture(folder / "run", size, total // size, ("x", "y"))
        series = dmi.open_run(folder / "run")["x"]
        source, there = np.ones(total, np.uint8), np.zeros(total, np.uint8)

        def stacked() -> float:
            found: list[np.ndarray] = []
            seconds = harness.timed(lambda: found.append(series.stack()))
            if found[0].nbytes != total or not found[0].flags.writeable:
                raise RuntimeError("a benchmark read something else")
            return seconds

        seconds = harness.rounds(
            {
                "stack": stacked,
                "a new array": lambda: harness.timed(source.copy),
                "one that is there": lambda: harness.timed(
                    lambda: np.copyto(there, source)
                ),
            },
            count=_ROUNDS,
        )
    reaches = {"a new array": reach, "one that is there": None}
    return [
        harness.row(
            f"reading: stack() / memcpy into {target}, {scan.size_name(size)}",
            harness.ratios(seconds["stack"], seconds[target]),
            reaches[target],
            detail=f"{harness.rate(total, seconds['stack'])} /"
            f" {harness.rate(total, seconds[target])}",
        )
        for target in reaches
    ]


def _open(per_batch: int, reach: float) -> list[harness.Row]:
    batches = _RECORDS // per_batch
    with files.folder() as folder:
        path = folder / "run"
        capture(path, 16, _RECORDS, batch_records=per_batch, linger=60.0)

        def opened() -> float:
            return harness.timed(lambda: dmi.open_run(path))

        def opened_first() -> float:
            for kept in path.glob("*/*/*.index.arrow"):
                kept.unlink()
            return opened()

        seconds = harness.rounds(
            {"for the first time": opened_first, "again": opened}, count=_ROUNDS
        )
    return [
        harness.row(
            f"reading: opening 1,000,000 records in {batches:,} batches, {when}",
            values,
            reach,
            unit="s",
        )
        for when, values in seconds.items()
    ]
