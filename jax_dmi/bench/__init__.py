# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: every number the documentation states, measured here."""

from __future__ import annotations

from collections.abc import Iterable
import importlib

from jax_dmi.bench.harness import Row as Row
from jax_dmi.bench.harness import Unavailable as Unavailable

# In the order they are reported.
GROUPS = (
    "dispatch",
    "switched",
    "scan",
    "sustained",
    "beside",
    "memory",
    "reading",
    "exporting",
    "training",
    "replay",
    "windows",
    "cuda",
    "cuda_link",
    "cuda_step",
)


def run(groups: Iterable[str] = GROUPS) -> list[Row]:
    """Runs the benchmarks of some groups, names out of ``GROUPS``.

    Raises:
      Unavailable: This machine lacks what one of them needs.
    """
    rows: list[Row] = []
    for name in groups:
        rows.extend(importlib.import_module(f"{__name__}.{name}").run())
    return rows
