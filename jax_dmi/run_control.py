# SPDX-License-Identifier: Apache-2.0
"""The part of a Monitor that steers a running capture."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib

from jax_dmi import pauses
from jax_dmi import selection
from jax_dmi import session


class RunControl:
    """Switches sites and pauses transfers while programs run."""

    _session: session.Session

    def _check_active(self, method: str) -> None:
        raise NotImplementedError

    def enable(self, pattern: selection.Pattern | Iterable[selection.Pattern]) -> None:
        """Records names that match again, see ``disable``."""
        self._check_active("enable")
        self._session.switches.change(pattern, False)

    def disable(self, pattern: selection.Pattern | Iterable[selection.Pattern]) -> None:
        """Stops recording names that match, without compiling anything.

        For programs dispatched after the call; names traced later included. The
        last call that matches a name counts. Records that are switched off are
        not counted.

        Example:
          >>> monitor.disable("*")
          >>> monitor.enable("block/resid")

        Args:
          pattern: Globs, compiled regular expressions or callables.
        """
        self._check_active("disable")
        self._session.switches.change(pattern, True)

    def pause_transfers(self) -> pauses.Token:
        """Stops transfers until ``resume_transfers``; the ring still fills.

        A second caller waits for the first to resume. A flush does not end before
        the pause does.

        Returns:
          What ``resume_transfers`` needs.
        """
        self._check_active("pause_transfers")
        return self._session.pauses.pause()

    def resume_transfers(self, token: pauses.Token) -> None:
        """Ends the pause that gave ``token``.

        Raises:
          StateError: The token is stale, or not of this Monitor.
        """
        self._check_active("resume_transfers")
        self._session.pauses.resume(token)

    @contextlib.contextmanager
    def paused_transfers(self) -> Iterator[None]:
        """Stops transfers inside the ``with`` block."""
        token = self.pause_transfers()
        try:
            yield
        finally:
            self.resume_transfers(token)
