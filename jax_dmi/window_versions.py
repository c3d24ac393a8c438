# SPDX-License-Identifier: Apache-2.0
"""Which window pattern is in force on which device, under which version.

A pattern is installed between programs: everything dispatched before has ended, so
the counter of a device starts where the pattern says, and every boundary after that
counts in the new version.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import contextlib
import dataclasses
import threading
import time

from jax_dmi import _native
from jax_dmi import errors
from jax_dmi import stats
from jax_dmi import windows

# Of 16 bits; 0 stands for no pattern.
_LAST_VERSION = 65535
_NOTICE_SECONDS = 0.5


@dataclasses.dataclass
class _Device:
    """The windows of one device."""

    capture: _native.Capture
    version: int = 0
    pattern: windows.WindowPattern | None = None
    # Where its counter was when windows were suspended.
    suspended_at: int | None = None
    # Every pattern there was, by version.
    installed: dict[int, windows.WindowPattern] = dataclasses.field(
        default_factory=dict
    )

    @property
    def mode(self) -> str:
        return self.capture.window_state().mode

    def install(self, counter: int, keep_learning: bool) -> None:
        assert self.pattern is not None
        self.version += 1
        self.installed[self.version] = self.pattern
        self.capture.install_pattern(
            self.version, self.pattern.native(), counter, keep_learning
        )
        self.wait(lambda state: state.version == self.version)

    def suspend(self) -> None:
        self.suspended_at = self.capture.suspend_windows()
        self.wait(lambda state: state.mode != "active")

    def wait(self, seen: Callable[[_native.WindowState], bool]) -> None:
        """Waits a moment for the drain to notice, which a pause keeps it from."""
        deadline = time.monotonic() + _NOTICE_SECONDS
        while not seen(self.capture.window_state()) and time.monotonic() < deadline:
            time.sleep(50e-6)


class WindowVersions:
    """Installs, suspends and reports the patterns of a session.

    Any thread may call any method; those that change a pattern wait for programs.

    Args:
      captures: By global device id; their drains have windows.
      settle: Waits until every program dispatched before has ended.
      quiesced: Returns a context in which everything recorded before is written and
        nothing moves.
    """

    def __init__(
        self,
        captures: Mapping[int, _native.Capture],
        settle: Callable[[], None],
        quiesced: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._devices = {d: _Device(capture) for d, capture in captures.items()}
        self._settle = settle
        self._quiesced = quiesced
        self._lock = threading.RLock()
        self._last: dict[int, stats.WindowState] = {}
        self._patterns: dict[int, dict[int, windows.WindowPattern]] = {}

    def define(self, pattern: windows.WindowPattern, devices: Iterable[int]) -> bool:
        """Installs a pattern; False, and nothing changed, where fallback holds.

        Raises:
          StateError: Windows are suspended.
        """
        with self._lock:
            chosen = [self._device(d) for d in devices]
            if any(d.suspended_at is not None for d in chosen):
                raise errors.StateError(
                    "define_window_pattern while windows are suspended; call"
                    " resume_windows first."
                )
            if any(d.mode == "fallback" for d in chosen):
                return False
            self._settle()
            self._make_room(chosen)
            for device in chosen:
                device.pattern = pattern
                device.install(pattern.initial_counter, False)
            return True

    def suspend(self) -> None:
        """Takes the patterns out of force; raises StateError if they are."""
        with self._lock:
            if any(d.suspended_at is not None for d in self._devices.values()):
                raise errors.StateError("windows are suspended already.")
            self._settle()
            for device in self._devices.values():
                device.suspend()

    def resume(self) -> None:
        """Puts them in force again where they were; raises StateError if they are."""
        with self._lock:
            if any(d.suspended_at is None for d in self._devices.values()):
                raise errors.StateError("resume_windows needs suspended windows.")
            self._settle()
            self._make_room(list(self._devices.values()))
            for device in self._devices.values():
                counter, device.suspended_at = device.suspended_at, None
                if device.pattern is not None:
                    device.install(counter or 0, True)

    def _make_room(self, devices: list[_Device]) -> None:
        """Starts versions over where one more does not fit."""
        full = [d for d in devices if d.version >= _LAST_VERSION]
        if not full:
            return
        with self._quiesced():
            for device in full:
                device.capture.reset_versions()
                device.version = 0

    def limit(self, most: int | None, devices: Iterable[int]) -> None:
        """Bounds every grant from the next one on; None takes the bound away."""
        for device in devices:
            self._device(device).capture.limit_grants(most)

    def state(self, device: int) -> stats.WindowState:
        """Returns what the windows of a device learned; also after the end."""
        found = self._devices.get(device)
        if found is None:  # Frozen meanwhile: the last states were kept before.
            return self._last[device]
        seen = found.capture.window_state()
        return stats.WindowState(
            mode=seen.mode,
            version=seen.version,
            pattern=found.pattern if seen.pattern is not None else None,
            windows=[_info(window) for window in seen.windows],
            # Native code says 0 for what is not known.
            link_bytes_per_second=seen.link_bytes_per_second or None,
        )

    def patterns(self) -> dict[int, dict[int, windows.WindowPattern]]:
        """Returns the patterns by device and version, after ``freeze``.

        Where versions started over, the newest of each.
        """
        return self._patterns

    def states(self) -> dict[int, stats.WindowState]:
        """Returns the last states by device, after ``freeze``."""
        return self._last

    def freeze(self) -> None:
        """Keeps the last states, so that the captures can be freed."""
        with self._lock:
            self._last = {d: self.state(d) for d in self._devices}
            self._patterns = {n: d.installed for n, d in self._devices.items()}
            self._devices = {}

    def _device(self, number: int) -> _Device:
        found = self._devices.get(number)
        if found is None:
            raise errors.StateError("the capture ended meanwhile.")
        return found


def _info(window: _native.WindowInfo) -> stats.WindowInfo:
    values = {
        field.name: getattr(window, field.name)
        for field in dataclasses.fields(stats.WindowInfo)
    }
    return stats.WindowInfo(**{**values, "length_ns": window.length_ns or None})
