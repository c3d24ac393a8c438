# SPDX-License-Identifier: Apache-2.0
"""How everything here is measured: interleaved rounds in one process.

Machines drift by tens of percent between minutes, so only ratios of things that
were measured side by side mean anything. A round measures every variant once, in
an order that rotates; a ratio is taken within each round; what is reported are
the median and the quartiles over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import gc
import statistics
import time
from typing import Any

ROUNDS = 15


class Unavailable(Exception):
    """A benchmark cannot run on this machine; the message says what it needs."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured quantity.

    Attributes:
      name: What was measured.
      value: The median over the rounds.
      low: Lower quartile.
      high: Upper quartile.
      reach: What the value should reach.
      at_least: Whether larger is better.
      unit: Unit of the value; "" for a ratio.
      detail: Medians behind a ratio, as text.
    """

    name: str
    value: float
    low: float
    high: float
    reach: float | None = None
    at_least: bool = False
    unit: str = ""
    detail: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the value is where it should be; None if nothing is asked."""
        if self.reach is None:
            return None
        if self.at_least:
            return self.value >= self.reach
        return self.value <= self.reach


def rounds(
    variants: Mapping[str, Callable[[], float]],
    *,
    count: int = ROUNDS,
    warmup: int = 2,
) -> dict[str, list[float]]:
    """Measures every variant once per round.

    Args:
      variants: Functions that measure themselves and return seconds, by name.
      count: Rounds that are kept.
      warmup: Rounds before that are thrown away.

    Returns:
      Seconds per round, by name.
    """
    names = list(variants)
    kept: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(warmup + count):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                seconds = variants[name]()
                if number >= warmup:
                    kept[name].append(seconds)
    finally:
        if collecting:
            gc.enable()
    return kept


def timed(fn: Callable[[], Any]) -> float:
    """Returns the seconds one call takes."""
    begin = time.perf_counter()
    fn()
    return time.perf_counter() - begin


def row(
    name: str,
    values: list[float],
    reach: float | None = None,
    *,
    at_least: bool = False,
    unit: str = "",
    detail: str = "",
) -> Row:
    """Makes a row from one value per round."""
    low, value, high = statistics.quantiles(values, n=4, method="inclusive")
    return Row(name, value, low, high, reach, at_least, unit, detail)


def micros(values: list[float]) -> str:
    """Formats the median of some seconds as microseconds."""
    return f"{statistics.median(values) * 1e6:.2f} us"


def rate(size: int, seconds: list[float]) -> str:
    """Formats the rate of ``size`` bytes in the median of some seconds."""
    return f"{size / statistics.median(seconds) / 1e9:.2f} GB/s"


def ratios(above: list[float], below: list[float]) -> list[float]:
    """Returns the ratio within each round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def differences(left: list[float], right: list[float]) -> list[float]:
    """Returns the difference within each round."""
    return [a - b for a, b in zip(left, right, strict=True)]
