# SPDX-License-Identifier: Apache-2.0
"""What a program records: the capture spec and how JAX learns about it.

The active spec is the value of a user context of JAX, which makes it part of
the key of every trace and compilation cache: a program traced without a spec
holds nothing of ours, one traced under a spec is found again under any equal
spec, and changing the spec never runs a stale program.

The spec also keeps the account of *never lowered* records: every ``record`` that
is traced gets a serial number, struck off when it reaches a lowered program. What
stays behind was dropped by a transformation, or only ever traced.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import itertools

import jax

from jax_dmi import errors
from jax_dmi import selection


@dataclasses.dataclass(frozen=True)
class Site:
    """One ``record`` call of a program, as traced.

    Attributes:
      name: Full name, with scopes and the path of the leaf.
      dtype: Name of the element type.
      shape: Shape where it was traced.
      source: ``file:line`` of the call.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: str

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"{self.name} {self.dtype}[{shape}] at {self.source}"


@dataclasses.dataclass(frozen=True)
class CaptureSpec:
    """The part of a Monitor's settings that changes programs; compared by value.

    Attributes:
      select: Patterns of the names to record: globs, compiled regular expressions
        (searched), or callables, which compare by identity.
      exact: Whether records carry an effect that no transformation drops.
      replicas: ``"first"`` records a replicated value on one device, ``"all"`` on
        every device that holds it.
      size_limit: Largest payload in bytes, or None for no limit.
    """

    select: tuple[selection.Pattern, ...] = ("*",)
    exact: bool = True
    replicas: str = "first"
    size_limit: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "select", selection.as_patterns(self.select))
        if self.replicas not in ("first", "all"):
            raise errors.DmiValueError(
                f"replicas={self.replicas!r} is not known; use 'first' or 'all'."
            )

    def selects(self, name: str) -> bool:
        """Whether a site of this name is recorded."""
        return selection.matches(self.select, name)


_context = jax.make_user_context(None)


def active() -> CaptureSpec | None:
    """Returns the spec that programs traced by this thread record under."""
    return _context.value


def install(spec: CaptureSpec | None) -> None:
    """Sets the spec of the whole process; None records nothing."""
    _context.set_global(spec)


def overriding(spec: CaptureSpec | None):
    """Returns a context manager that sets the spec of the calling thread."""
    return _context(spec)


_serials = itertools.count(1)
_not_lowered: dict[CaptureSpec, dict[int, Site]] = {}


def new_serial() -> int:
    """Returns the serial number of one more record of a program being traced."""
    return next(_serials)


def note_traced(spec: CaptureSpec, serial: int, site: Site) -> None:
    """Opens the account of a traced record; again if it was struck off before."""
    _not_lowered.setdefault(spec, {})[serial] = site


def note_lowered(spec: CaptureSpec, serial: int | None) -> None:
    """Strikes off a record that reached a lowered program, or ran at once."""
    if serial is not None:
        _not_lowered.get(spec, {}).pop(serial, None)


_watcher: Callable[[int, str, str], None] | None = None


def watch_sites(watcher: Callable[[int, str, str], None] | None) -> None:
    """Has ``watcher(id, descriptor, name)`` called for every site lowered."""
    global _watcher
    _watcher = watcher


def note_site(number: int, descriptor: str, name: str) -> None:
    """Tells the watcher, if there is one, of a site being lowered."""
    if _watcher is not None:
        _watcher(number, descriptor, name)


def never_lowered(spec: CaptureSpec) -> list[Site]:
    """Returns the sites traced under an equal spec that reached no program.

    The list covers the life of the process. It also names records that were only
    seen by ``jax.make_jaxpr`` or ``jax.eval_shape``, and functions that JAX traced
    a second time and then used the second trace of.
    """
    open_serials = dict(_not_lowered.get(spec, {}))
    return list(dict.fromkeys(open_serials.values()))
