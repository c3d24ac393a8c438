# SPDX-License-Identifier: Apache-2.0
"""The classes a drain decides with, driven by hand.

They are the native ones: what is seen here is what happens during a capture, only
that the progress, the clock and the transfers are the caller's. Nothing here needs
a Monitor. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import TypeVar

from jax_dmi import _native
from jax_dmi import arguments
from jax_dmi import errors
from jax_dmi.windows.config import WindowConfig
from jax_dmi.windows.pattern import WindowPattern

#: A grant without a limit.
UNBOUNDED = 2**64 - 1

_MOST_NANOS = 2**63 - 1
_Given = TypeVar("_Given")


def pack_progress(version: int, counter: int) -> int:
    """Returns the progress word: 16 bits of version above 48 of counter.

    Raises:
      DmiValueError: One of them does not fit its bits.
    """
    version = arguments.count("version", version, least=0, most=2**16 - 1)
    counter = arguments.count("counter", counter, least=0, most=2**48 - 1)
    return _native.pack_progress(version, counter)


def unpack_progress(word: int) -> tuple[int, int]:
    """Returns the version and the counter of a progress word.

    Raises:
      DmiValueError: ``word`` does not fit 64 bits.
    """
    return _native.unpack_progress(_word("word", word))


def _word(parameter: str, value: Any) -> int:
    return arguments.count(parameter, value, least=0, most=2**64 - 1)


def _given(parameter: str, value: _Given, kind: type[_Given], source: str) -> _Given:
    """Returns what native code gave out before, or raises saying what does."""
    if not isinstance(value, kind):
        raise errors.DmiTypeError(
            f"{parameter}={value!r} is a {type(value).__name__}; use what {source}"
            " returned."
        )
    return value


class ManualClock(_native.ManualClock):
    """A clock that stands, at 0 in the beginning, until it is moved.

    Any thread may move it and read it.

    Example::

        clock = ManualClock()
        clock.advance(1_000_000)
        assert clock.now() == 1_000_000
    """

    def advance(self, ns: int) -> None:
        """Moves the clock by so many nanoseconds.

        Raises:
          DmiValueError: ``ns`` is negative, or more than the clock can show.
        """
        most = _MOST_NANOS - self.now()
        super().advance(arguments.count("ns", ns, least=0, most=most))

    def now(self) -> int:
        """Returns the time in nanoseconds."""
        return super().now()


class GrantPolicy:
    """What decides how much one window may carry.

    Example::

        policy = GrantPolicy("binary_adaptive")
        grant = policy.choose(0, full_grant_bytes=1 << 20, first_record_bytes=4096)
        policy.observe(0, 1 << 20, overran=True, grant=grant)

    Args:
      kind: ``"deadline"`` or ``"binary_adaptive"``.
      **config: Other fields of a :class:`WindowConfig`.

    Raises:
      DmiValueError: A value cannot be used; the message names it.
      DmiTypeError: ``config`` holds what is no field.
    """

    def __init__(self, kind: str, **config: Any) -> None:
        try:
            checked = WindowConfig(policy=kind, **config)
        except TypeError as error:
            if isinstance(error, errors.DmiError):
                raise
            raise errors.DmiTypeError(
                f"config={config!r}: {error}; use the fields of a WindowConfig."
            ) from None
        self._policy = _native.GrantPolicy(checked.native())

    def choose(
        self, occurrence: int, full_grant_bytes: int, first_record_bytes: int
    ) -> _native.Grant | None:
        """Returns what may move in an occurrence, None for nothing.

        Args:
          occurrence: Its number.
          full_grant_bytes: Bytes that wait and have room.
          first_record_bytes: Bytes of the first record of them; 0 for none.
        """
        return self._policy.choose(
            _word("occurrence", occurrence),
            _word("full_grant_bytes", full_grant_bytes),
            _word("first_record_bytes", first_record_bytes),
        )

    def observe(
        self, occurrence: int, bytes: int, overran: bool, grant: _native.Grant
    ) -> bool:
        """Takes in how a transfer went.

        Returns:
          Whether records have just turned out too large to search any further.
        """
        return self._policy.observe(
            _word("occurrence", occurrence),
            _word("bytes", bytes),
            bool(overran),
            _given("grant", grant, _native.Grant, "choose"),
        )

    def observe_timing_estimate(self, measured_bytes: int, estimate_bytes: int) -> None:
        """Takes in that a transfer, by its timing, promises so much per window."""
        self._policy.observe_timing_estimate(
            _word("measured_bytes", measured_bytes),
            _word("estimate_bytes", estimate_bytes),
        )


class WindowController:
    """Says what may move now, from the boundaries a program has passed.

    Example::

        clock = ManualClock()
        controller = WindowController(WindowConfig(), clock.now)
        controller.install_pending(1, WindowPattern(2, [(0, 1)]))
        admission = controller.poll(pack_progress(1, 0), 1 << 20, 4096)

    Args:
      config: How it decides.
      clock: Returns nanoseconds as an int, never less than before.

    Raises:
      DmiTypeError: One of them is of the wrong kind.
    """

    def __init__(self, config: WindowConfig, clock: Callable[[], int]) -> None:
        if not isinstance(config, WindowConfig):
            raise errors.DmiTypeError(
                f"config={config!r} is a {type(config).__name__}; use a WindowConfig."
            )
        if not callable(clock):
            raise errors.DmiTypeError(
                f"clock={clock!r} cannot be called; use a function that returns"
                " nanoseconds."
            )

        def now() -> int:
            return arguments.count(
                "clock()", clock(), least=-_MOST_NANOS, most=_MOST_NANOS
            )

        self._controller = _native.WindowController(config.native(), now)

    def install_pending(
        self, version: int, pattern: WindowPattern, keep_learning: bool = False
    ) -> None:
        """Makes a pattern current from the first poll on that sees its version.

        Args:
          version: From 1 to 65,535.
          pattern: The windows.
          keep_learning: What the pattern before has learned goes on, if it has
            the same windows.

        Raises:
          WindowError: ``version`` is not above every one installed before.
        """
        version = arguments.count("version", version, least=1, most=2**16 - 1)
        if not isinstance(pattern, WindowPattern):
            raise errors.DmiTypeError(
                f"pattern={pattern!r} is a {type(pattern).__name__}; use a"
                " WindowPattern."
            )
        try:
            self._controller.install_pending(version, pattern.native(), keep_learning)
        except RuntimeError as error:
            raise errors.WindowError(str(error)) from None

    def cancel_pending(self, version: int) -> None:
        """Forgets a version that no poll has seen yet; others stay."""
        self._controller.cancel_pending(
            arguments.count("version", version, least=0, most=2**16 - 1)
        )

    def reset_for_version_reuse(self) -> None:
        """Forgets every version, so that they can start at 1 again."""
        self._controller.reset_for_version_reuse()

    def suspend(self) -> None:
        """Goes to ordinary batching at the next poll that sees version 0."""
        self._controller.suspend()

    def limit_grants(self, limit: int | None) -> None:
        """Bounds every grant from now on; None for what the config says."""
        if limit is not None:
            limit = arguments.size("limit", limit)
        self._controller.limit_grants(limit)

    def observe_boundary(self, progress_word: int, time_ns: int) -> None:
        """Takes in a boundary that the device stamped with its time."""
        self._controller.observe_boundary(
            _word("progress_word", progress_word),
            arguments.count("time_ns", time_ns, least=0, most=_MOST_NANOS),
        )

    def poll(
        self, progress_word: int, full_grant_bytes: int, first_record_bytes: int
    ) -> _native.Admission | None:
        """Returns the right to one transfer now, None where nothing may move."""
        return self._controller.poll(
            _word("progress_word", progress_word),
            _word("full_grant_bytes", full_grant_bytes),
            _word("first_record_bytes", first_record_bytes),
        )

    def commit(
        self, admission: _native.Admission, bytes: int, progress_word: int
    ) -> bool:
        """Returns whether the transfer may start; not where the window has passed."""
        return self._controller.commit(
            _given("admission", admission, _native.Admission, "poll"),
            _word("bytes", bytes),
            _word("progress_word", progress_word),
        )

    def complete(
        self, admission: _native.Admission, bytes: int, progress_word: int
    ) -> None:
        """Takes in that the transfer has ended."""
        self._controller.complete(
            _given("admission", admission, _native.Admission, "poll"),
            _word("bytes", bytes),
            _word("progress_word", progress_word),
        )

    def note_observation_gap(self) -> None:
        """Takes in that nobody looked: what lasts across it is no evidence."""
        self._controller.note_observation_gap()

    def record_capacity_flush(self, progress_word: int) -> bool:
        """Takes in that the ring was full; returns whether fallback begins."""
        return self._controller.record_capacity_flush(
            _word("progress_word", progress_word)
        )

    @property
    def mode(self) -> str:
        """``no_pattern``, ``active``, ``suspended`` or ``fallback``."""
        return self._controller.mode

    def state(self) -> _native.WindowState:
        """Returns what is known of the link and of every window."""
        return self._controller.state()

    def stalled(self) -> bool:
        """Whether boundaries have stopped for longer than the watchdog allows."""
        return self._controller.stalled()

    def next_edge(self) -> int:
        """Returns the counter of the next OPEN or CLOSE; UNBOUNDED for none."""
        return self._controller.next_edge()

    def timing_estimates(self, window_index: int) -> list[int]:
        """Returns the estimates of the current version, in bytes, oldest first."""
        return self._controller.timing_estimates(_index("window_index", window_index))

    def attempts(self, window_index: int) -> list[_native.Attempt]:
        """Returns the transfers of the current version, oldest first."""
        return self._controller.attempts(_index("window_index", window_index))


def _index(parameter: str, value: Any) -> int:
    return arguments.count(parameter, value, least=0, most=2**32 - 1)
