# SPDX-License-Identifier: Apache-2.0
"""Pauses of transfers: one at a time, each ended by the token it gave."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import itertools
import threading

from jax_dmi import errors


@dataclasses.dataclass(frozen=True)
class Token:
    """The right to end one pause; compared by identity of the pause.

    Attributes:
      number: Which pause of the process it was.
    """

    number: int


_numbers = itertools.count(1)


class Pauses:
    """Hands out pauses one after the other; any thread may call any method."""

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self._changed = threading.Condition()
        self._holder: Token | None = None
        self._ended = False

    def pause(self) -> Token:
        """Waits until nobody else pauses, then stops transfers.

        Raises:
          StateError: The capture ended meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._holder is None or self._ended)
            if self._ended:
                raise errors.StateError("the capture ended while a pause was awaited.")
            token = Token(next(_numbers))
            self._holder = token
            self._pause()
            return token

    def resume(self, token: Token) -> None:
        """Ends a pause.

        Raises:
          StateError: It is not the pause that holds: stale, foreign or made up.
        """
        with self._changed:
            if self._holder is None or token is not self._holder:
                raise errors.StateError(
                    f"resume_transfers({token!r}) does not end the pause that holds"
                    f" ({self._holder!r}); each token works once."
                )
            self._holder = None
            self._resume()
            self._changed.notify_all()

    def end(self) -> None:
        """Ends whatever pause holds, and wakes everyone who waits for one."""
        with self._changed:
            self._ended = True
            if self._holder is not None:
                self._holder = None
                self._resume()
            self._changed.notify_all()
