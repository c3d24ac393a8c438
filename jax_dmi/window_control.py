# SPDX-License-Identifier: Apache-2.0
"""The part of a Monitor that controls transfer windows.

This version has no windows, so a Monitor never has any configured; every call says
so instead of being ignored.
"""

from __future__ import annotations

from typing import Any
from typing import NoReturn

from jax_dmi import errors


class WindowControl:
    """What programs with transfer windows call on their Monitor."""

    def define_window_pattern(self, pattern: Any, device: Any = None) -> bool:
        """Installs a pattern of windows; raises WindowError."""
        self._no_windows("define_window_pattern")

    def windows_suspended(self) -> Any:
        """Returns a context that suspends windows; raises WindowError."""
        self._no_windows("windows_suspended")

    def suspend_windows(self) -> None:
        """Goes back to ordinary batching; raises WindowError."""
        self._no_windows("suspend_windows")

    def resume_windows(self) -> None:
        """Ends a suspension; raises WindowError."""
        self._no_windows("resume_windows")

    def limit_grants(self, limit: int | None, device: Any = None) -> None:
        """Bounds what a window carries; raises WindowError."""
        self._no_windows("limit_grants")

    def window_state(self, device: Any = None) -> Any:
        """Returns what the windows learned; raises WindowError."""
        self._no_windows("window_state")

    def _no_windows(self, method: str) -> NoReturn:
        raise errors.WindowError(
            f"Monitor.{method}: no windows configured; transfer windows are not in"
            " this version."
        )
