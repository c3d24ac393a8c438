# SPDX-License-Identifier: Apache-2.0
"""Run-time switches: which sites record, without compiling anything again.

A gate word per site and device is read by every record. It is changed by a program,
so the change falls between the programs dispatched before and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import threading

from jax_dmi import _native
from jax_dmi import format as run_format
from jax_dmi import selection
from jax_dmi import spec as capture_spec


class Switches:
    """The switches of one session.

    Any thread may call any method.
    """

    def __init__(
        self,
        captures: Mapping[int, _native.Capture],
        dispatch: Callable[[list[tuple[int, bool]]], None],
    ) -> None:
        """Starts with every site enabled.

        Args:
          captures: The captures whose gates are switched.
          dispatch: Changes gates, given as ``(index, closed)``, by programs.
        """
        self._captures = captures
        self._dispatch = dispatch
        self._lock = threading.Lock()
        self._rules: list[tuple[tuple[selection.Pattern, ...], bool]] = []
        self._closed: dict[int, bool] = {}

    def start(self) -> None:
        """Watches for sites that programs bring in later."""
        capture_spec.watch_sites(self._site_lowered)

    def end(self) -> None:
        """Opens every gate again; no program may be recording any more."""
        capture_spec.watch_sites(None)
        with self._lock:
            closed = [index for index, is_closed in self._closed.items() if is_closed]
            for capture in self._captures.values():
                capture.set_gates(closed, False)
            self._captures = {}
            self._closed.clear()
            self._rules.clear()

    def change(
        self, pattern: selection.Pattern | Iterable[selection.Pattern], closed: bool
    ) -> None:
        """Closes or opens the gates of every name that matches, now and later."""
        rule = (selection.as_patterns(pattern), closed)
        with self._lock:
            self._rules.append(rule)
            changes = [
                (index, closed)
                for index, name in enumerate(_names())
                if selection.matches(rule[0], name)
                and self._closed.get(index, False) != closed
            ]
            self._closed.update(changes)
            # Inside the lock: two changes reach the devices in one order.
            if changes:
                self._dispatch(changes)

    def _site_lowered(self, number: int, descriptor: str, name: str) -> None:
        with self._lock:
            if not self._rules:
                return
            index = _native.add_site(number, descriptor)
            if index in self._closed:
                return
            closed = False
            for patterns, rule_closes in self._rules:
                if selection.matches(patterns, name):
                    closed = rule_closes
            self._closed[index] = closed
            if closed:
                # The program is not compiled yet, so none is in flight that this
                # could overtake.
                for capture in self._captures.values():
                    capture.set_gates([index], True)


def _names() -> list[str]:
    """Names of the known sites, by the index of their gate."""
    names = []
    for number in _native.site_ids():
        descriptor = _native.site_descriptor(number)
        assert descriptor is not None
        names.append(run_format.parse_site(descriptor).name)
    return names
