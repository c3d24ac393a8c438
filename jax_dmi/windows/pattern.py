# SPDX-License-Identifier: Apache-2.0
"""Patterns of recurring transfer windows, counted in boundaries."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import operator
from typing import Any

from jax_dmi import _native
from jax_dmi import arguments
from jax_dmi import errors

_MOST = 2**64 - 1


@dataclasses.dataclass(frozen=True)
class WindowMatch:
    """One occurrence of one window.

    Attributes:
      window_index: Which of the windows of the pattern.
      occurrence: Number of the period.
      begin: Counter at which it opens.
      end: Counter at which it closes.
    """

    window_index: int
    occurrence: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class WindowPattern:
    """Which boundaries of a recurring period transfers may run between.

    Example::

        # Of every four boundaries, transfers run from the second to the third.
        WindowPattern(4, [(1, 2)])

    Attributes:
      period: Boundaries in a period.
      windows: Half-open ranges ``(begin, end)`` of boundaries in the period,
        sorted and without overlap; kept as a tuple.
      initial_counter: The counter at which the pattern starts, less than 2**48.

    Raises:
      DmiValueError: One of them cannot be used; the message names it.
    """

    period: int
    windows: Sequence[tuple[int, int]]
    initial_counter: int = 0

    def __post_init__(self) -> None:
        checked = {
            "period": arguments.count("period", self.period, least=1, most=_MOST),
            "windows": _pairs(self.windows),
            "initial_counter": arguments.count(
                "initial_counter", self.initial_counter, least=0, most=2**48 - 1
            ),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        try:
            self.native()
        except ValueError as error:
            raise errors.DmiValueError(str(error)) from None

    def native(self) -> _native.WindowPattern:
        """Returns the pattern as native code takes it."""
        return _native.WindowPattern(
            self.period, list(self.windows), self.initial_counter
        )

    def match(self, counter: int) -> WindowMatch | None:
        """Returns the occurrence that is open at a counter, None outside windows.

        Raises:
          DmiValueError: ``counter`` is no integer from 0 to 2**64 - 1.
        """
        counter = arguments.count("counter", counter, least=0, most=_MOST)
        match = self.native().match(counter)
        if match is None:
            return None
        return WindowMatch(match.window_index, match.occurrence, match.begin, match.end)


def _pairs(windows: Any) -> tuple[tuple[int, int], ...]:
    """Returns windows as a tuple of pairs of ints, or raises saying what is none."""
    if isinstance(windows, str) or not isinstance(windows, Iterable):
        raise errors.DmiValueError(
            f"windows={windows!r} is no sequence; use pairs like [(1, 2), (5, 7)]."
        )
    pairs = []
    for window in windows:
        try:
            begin, end = map(operator.index, window)
        except (TypeError, ValueError):
            raise errors.DmiValueError(
                f"windows holds {window!r}, which is no pair of integers; use"
                " (begin, end)."
            ) from None
        if not (0 <= begin <= _MOST and 0 <= end <= _MOST):
            raise errors.DmiValueError(
                f"windows holds {(begin, end)}; use 0 <= begin < end <= period."
            )
        pairs.append((begin, end))
    return tuple(pairs)
