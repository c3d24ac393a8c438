# SPDX-License-Identifier: Apache-2.0
"""The part of a Monitor that keeps transfers to windows of the program."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

import jax

from jax_dmi import arguments
from jax_dmi import errors
from jax_dmi import session
from jax_dmi import stats
from jax_dmi import window_versions
from jax_dmi import windows


class WindowControl:
    """What programs with transfer windows call on their Monitor."""

    _session: session.Session

    def _check_active(self, method: str) -> None:
        raise NotImplementedError

    def _check_started(self, method: str) -> None:
        raise NotImplementedError

    def _check_untraced(self, method: str) -> None:
        raise NotImplementedError

    def define_window_pattern(
        self,
        pattern: windows.WindowPattern,
        device: jax.Device | int | None = None,
    ) -> bool:
        """Puts a pattern in force, after the programs dispatched so far.

        Waits for them, so that every boundary behind this call counts in the new
        pattern, from its ``initial_counter`` on.

        Example:
          >>> pattern = dmi.infer_window_pattern(train_step, state, batch)
          >>> monitor.define_window_pattern(pattern)

        Args:
          pattern: The windows, in boundaries of one period.
          device: Only this device; by default every captured one.

        Returns:
          False where windows fell back to ordinary batching: nothing changed.

        Raises:
          WindowError: No windows were configured.
          StateError: Windows are suspended.
        """
        versions = self._windows("define_window_pattern")
        if not isinstance(pattern, windows.WindowPattern):
            raise errors.DmiTypeError(
                f"pattern={pattern!r} is a {type(pattern).__name__}; use a"
                " WindowPattern."
            )
        return versions.define(pattern, self._numbers(device))

    def suspend_windows(self) -> None:
        """Goes back to ordinary batching until ``resume_windows``.

        For phases that are no part of the pattern, like an evaluation: nothing they
        do is charged to the windows, and boundaries they pass do not shift them.
        Waits for the programs dispatched so far.

        Raises:
          StateError: Windows are suspended already.
        """
        self._windows("suspend_windows").suspend()

    def resume_windows(self) -> None:
        """Puts the windows in force again, where they were, with what they learned.

        Waits for the programs dispatched so far.

        Raises:
          StateError: Windows are not suspended.
        """
        self._windows("resume_windows").resume()

    def windows_suspended(self) -> contextlib.AbstractContextManager[None]:
        """Suspends windows inside the ``with`` block, see ``suspend_windows``.

        Example:
          >>> with monitor.windows_suspended():
          ...     evaluate(state)
        """
        self._windows("windows_suspended")
        return self._suspended()

    @contextlib.contextmanager
    def _suspended(self) -> Iterator[None]:
        self.suspend_windows()
        try:
            yield
        finally:
            self.resume_windows()

    def limit_grants(
        self, limit: int | str | None, device: jax.Device | int | None = None
    ) -> None:
        """Bounds what one occurrence of a window may carry, from the next grant on.

        From any thread; never waits. Processes that have to move the same amount
        agree on one limit this way. Never lifts ``WindowConfig.max_grant``.

        Args:
          limit: Bytes, or a string like ``"4MiB"``; None takes the bound away.
          device: Only this device; by default every captured one.

        Raises:
          WindowError: No windows were configured.
        """
        versions = self._windows("limit_grants", traced=True)
        most = None if limit is None else arguments.size("limit", limit)
        versions.limit(most, self._numbers(device))

    def window_state(self, device: jax.Device | int | None = None) -> stats.WindowState:
        """Returns what the windows of a device learned; also after close.

        Args:
          device: Which device; by default the first one captured.

        Raises:
          WindowError: No windows were configured.
        """
        self._check_started("window_state")
        return self._configured("window_state").state(self._numbers(device)[0])

    def _windows(
        self, method: str, traced: bool = False
    ) -> window_versions.WindowVersions:
        self._check_active(method)
        if not traced:
            self._check_untraced(method)
        return self._configured(method)

    def _configured(self, method: str) -> window_versions.WindowVersions:
        if self._session.windows is None:
            raise errors.WindowError(
                f"Monitor.{method}: no windows configured; make the Monitor with"
                " windows=WindowConfig() or a WindowPattern."
            )
        return self._session.windows

    def _numbers(self, device: jax.Device | int | None) -> list[int]:
        """Returns the ids of the devices that are meant, of all for None."""
        known = [d.id for d in self._session.devices]
        if device is None:
            return known
        number = getattr(device, "id", device)
        if number not in known:
            raise errors.DmiValueError(
                f"device={device!r} is not captured; choose from {known}."
            )
        return [number]
