# SPDX-License-Identifier: Apache-2.0
"""Every exception this package raises on purpose.

All derive from :class:`DmiError`; the ones about wrong arguments are also the
built-in error a reader would expect, so ``except ValueError`` works too. Every
message names the parameter, the value it got and what to do about it.
"""

from __future__ import annotations


class DmiError(Exception):
    """Base of all errors of this package."""


class DmiValueError(DmiError, ValueError):
    """An argument of the right kind holds a value that cannot be used."""


class DmiIndexError(DmiError, IndexError):
    """There is nothing at the index asked for."""


class DmiTypeError(DmiError, TypeError):
    """An argument is of the wrong kind."""


class StateError(DmiError, RuntimeError):
    """A call came at a time, or from a place, where it is not allowed."""


class CaptureError(DmiError, RuntimeError):
    """Capture failed or lost records; raised by ``flush`` and ``close``."""


class FlushTimeoutError(DmiError, TimeoutError):
    """A flush did not finish in the time it was given."""


class RunError(DmiError):
    """A run directory cannot be created, joined or read."""


class RunExistsError(RunError, FileExistsError):
    """The run directory already holds a run of this process."""


class UnknownNameError(DmiError, KeyError):
    """A run holds no site of the name asked for."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which hides line breaks.
        return str(self.args[0]) if self.args else ""


class WindowError(DmiError, ValueError):
    """A transfer window pattern is impossible or cannot be inferred."""
