# SPDX-License-Identifier: Apache-2.0
"""What windows can be asked for, and links that are simulated."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

from jax_dmi import _native
from jax_dmi import arguments
from jax_dmi import errors

POLICIES = ("deadline", "binary_adaptive")
_MOST_COUNT = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class WindowConfig:
    """How much windows may carry, and what happens when that is too little.

    Sizes are bytes or strings like ``"1MiB"``; times are seconds.

    Example::

        WindowConfig(chunk_bytes="256KiB", max_age=1.0)

    Attributes:
      policy: ``"deadline"`` fills a window with chunks that end in time;
        ``"binary_adaptive"`` searches for the size of one transfer per window.
      minimum_record_probe_retry_interval: Occurrences to wait, more each time,
        until a record larger than what fits is tried again.
      timing_revalidation_retry_interval: The same for a size that timing promises
        and that did not fit before.
      capacity_flush_fallback_threshold: Full rings after which windows are given
        up for a while.
      capacity_flush_count_reset_interval: Periods after which a full ring is
        forgotten, and the least that giving up lasts.
      initial_grant_bytes: Most bytes before anything is known of a window; None
        leaves it to the policy.
      chunk_bytes: Most bytes of a chunk, which is never over 1/32 of what a
        window carries either.
      margin: Part of what is left of a window that its last chunk may take.
      watchdog: Time without a boundary after which windows are not waited for.
      max_age: Most time a record waits for a window.
      max_grant: Most bytes of one occurrence of a window; None for no limit.
      debug: Report what happens on stderr, each transition once.

    Raises:
      DmiValueError: A value cannot be used; the message names it.
    """

    policy: str = "deadline"
    minimum_record_probe_retry_interval: int = 4
    timing_revalidation_retry_interval: int = 4
    capacity_flush_fallback_threshold: int = 3
    capacity_flush_count_reset_interval: int = 32
    initial_grant_bytes: int | str | None = None
    chunk_bytes: int | str = "1MiB"
    margin: float = 0.9
    watchdog: float = 5.0
    max_age: float = 10.0
    max_grant: int | str | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "policy": arguments.choice("policy", self.policy, POLICIES),
            "margin": _part("margin", self.margin),
            "debug": _flag("debug", self.debug),
        }
        for name in (
            "minimum_record_probe_retry_interval",
            "timing_revalidation_retry_interval",
            "capacity_flush_fallback_threshold",
            "capacity_flush_count_reset_interval",
        ):
            value = getattr(self, name)
            checked[name] = arguments.count(name, value, least=1, most=_MOST_COUNT)
        for name in ("initial_grant_bytes", "chunk_bytes", "max_grant"):
            value = getattr(self, name)
            if value is not None or name == "chunk_bytes":
                checked[name] = arguments.size(name, value)
        for name in ("watchdog", "max_age"):
            checked[name] = arguments.seconds(name, getattr(self, name))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def native(self) -> _native.WindowConfig:
        """Returns the configuration as native code takes it."""
        return _native.WindowConfig(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class SimulatedLink:
    """A link that takes the time a real one would, for devices that have none.

    Example::

        SimulatedLink("2GiB", latency=20e-6, jitter=0.1)

    Attributes:
      bytes_per_second: Its rate.
      latency: Seconds that a transfer takes besides its bytes.
      jitter: The rate of each transfer differs from ``bytes_per_second`` by up to
        this part of it, either way; from 0 to below 1.
      seed: Of the jitter.
      clock: A ``windows.ManualClock`` to take the time from; None for real time.

    Raises:
      DmiValueError: A value cannot be used; the message names it.
      DmiTypeError: ``clock`` is no clock.
    """

    bytes_per_second: float | str
    latency: float = 10e-6
    jitter: float = 0.0
    seed: int = 0
    clock: _native.ManualClock | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.clock, _native.ManualClock | None):
            raise errors.DmiTypeError(
                f"clock={self.clock!r} is a {type(self.clock).__name__}; use a"
                " jax_dmi.windows.ManualClock, or None for real time."
            )
        checked = {
            "bytes_per_second": _rate("bytes_per_second", self.bytes_per_second),
            "latency": arguments.seconds("latency", self.latency),
            "jitter": _part("jitter", self.jitter, zero=True),
            "seed": arguments.count("seed", self.seed, least=0, most=2**64 - 1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def native(self) -> _native.SimulatedLink:
        """Returns a link of one device."""
        return _native.SimulatedLink(
            bytes_per_second=float(self.bytes_per_second),
            latency_seconds=self.latency,
            jitter=self.jitter,
            seed=self.seed,
            clock=self.clock,
        )


def _rate(parameter: str, value: Any) -> float:
    """Returns a rate in bytes per second, given as a number or a size."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if 0 < float(value) < float("inf"):
            return float(value)
        raise errors.DmiValueError(
            f"{parameter}={value!r} is no rate; use bytes per second > 0."
        )
    return float(arguments.size(parameter, value))


def _part(parameter: str, value: Any, *, zero: bool = False) -> float:
    """Returns a part of a whole: (0, 1], or [0, 1) where zero is one."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if real else float("nan")
    if not (0 <= number < 1 if zero else 0 < number <= 1):
        limits = "0 <= x < 1" if zero else "0 < x <= 1"
        raise errors.DmiValueError(
            f"{parameter}={value!r} cannot be used; use a number {limits}."
        )
    return number


def _flag(parameter: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise errors.DmiValueError(
            f"{parameter}={value!r} is no truth value; use True or False."
        )
    return value
