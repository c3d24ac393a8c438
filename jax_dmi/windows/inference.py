# SPDX-License-Identifier: Apache-2.0
"""The window pattern of a program, read off its jaxpr.

The walk adds up what each equation passes: a loop of known length its body so
many times, a branch what all branches have in common, a call what it calls. Where
the number of boundaries depends on data there is no pattern, and the error names
the place.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any
import warnings

import jax
from jax.extend import core

from jax_dmi import _compat
from jax_dmi import errors
from jax_dmi import spec as capture_spec
from jax_dmi.ops import boundary
from jax_dmi.ops import sites
from jax_dmi.windows import order
from jax_dmi.windows.pattern import WindowPattern

MOST_WINDOWS = 65_536

# Primitives that run the jaxpr they hold exactly once.
_CALLS = frozenset(
    (
        "call",
        "checkpoint",
        "closed_call",
        "composite",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vmap_call",
        "eval_jaxpr",
        "jit",
        "pjit",
        "remat2",
        "shard_map",
    )
)
_FUNCTIONS = {
    boundary.Role.OPEN_WINDOW: "open_window",
    boundary.Role.CLOSE_WINDOW: "close_window",
}

# --- Public function ---------------------------------------------------------


def infer_window_pattern(
    fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> WindowPattern:
    """Returns the recurring windows of a program that calls ``fn`` over and over.

    The period is the number of boundaries that one call passes on each device. A
    window begins at the counter after an ``open_window`` and ends at the counter
    after the ``close_window`` that follows. A window that a call leaves open lasts
    until the first ``close_window`` of the next call; ``initial_counter`` is then
    chosen so that it lies within one period.

    ``fn`` is only traced, and no Monitor need be active. A warning names boundaries
    that do not depend on the ones before: JAX keeps no other order, and they may
    pass in another one than was traced. The pattern holds for ``exact=True``, where
    no boundary is ever dropped.

    Example:
      >>> pattern = dmi.infer_window_pattern(train_step, state, batch)
      >>> with dmi.Monitor("runs/demo", windows=pattern) as monitor:
      ...     for batch in batches:
      ...         state = train_step(state, batch)

    Args:
      fn: The function, jitted or not. Static arguments are those of its ``jit``.
      *args: Its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
      **kwargs: Its keyword arguments.

    Raises:
      WindowError: A loop or a branch passes a number of boundaries that depends on
        data; windows overlap, do not close or are missing; or there are more than
        65,536 of them.
      DmiTypeError: ``fn`` is no function.
    """
    if not callable(fn):
        raise errors.DmiTypeError(
            f"fn={fn!r} is a {type(fn).__name__}; use the function that is called"
            " over and over, jitted or not."
        )
    with capture_spec.overriding(capture_spec.CaptureSpec(select=())):
        walk = _Walk()
        passed = walk.through(_jaxpr(fn, args, kwargs))
    if not passed.count:
        raise errors.WindowError(
            f"fn={_name(fn)} passes no boundary; put open_window and close_window"
            " around its windows."
        )
    if not passed.marks:
        raise errors.WindowError(
            f"fn={_name(fn)} passes {passed.count} boundaries and no window; put"
            " open_window where transfers begin to do no harm and close_window where"
            " they would again."
        )
    pattern = _pattern(passed)
    if walk.loose:
        warnings.warn(
            "{} does not wait for {}, so that they pass in any order and the pattern"
            " may be wrong; give it a value that depends on the one before.".format(
                *reversed(walk.loose[0])
            ),
            stacklevel=2,
        )
    return pattern


def _jaxpr(fn, args, kwargs):
    if isinstance(fn, jax.stages.Wrapped):
        return fn.trace(*args, **kwargs).jaxpr
    return jax.make_jaxpr(fn)(*args, **kwargs)


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", None) or repr(fn)


# --- What a program passes ---------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Mark:
    """A boundary that opens or closes a window; ``place`` counts from 1."""

    place: int
    role: boundary.Role
    source: str

    def moved(self, by: int) -> _Mark:
        return dataclasses.replace(self, place=self.place + by)

    def __str__(self) -> str:
        return f"{_FUNCTIONS[self.role]} at {self.source}"


@dataclasses.dataclass(frozen=True)
class _Passed:
    """The boundaries of a piece of program.

    Attributes:
      count: How many there are.
      marks: Those that open or close a window.
      first: Where the first of all stands.
      last: Where the last of all stands.
      flow: How they lie in a call; None in a single operation.
    """

    count: int = 0
    marks: tuple[_Mark, ...] = ()
    first: str = ""
    last: str = ""
    flow: order.Flow | None = None

    @classmethod
    def sequence(cls, parts: Sequence[_Passed]) -> _Passed:
        """Returns what the parts, each with boundaries, pass one after the other."""
        if not parts:
            return cls()
        count, marks = 0, []
        for part in parts:
            marks += [mark.moved(count) for mark in part.marks]
            count += part.count
        return cls(count, tuple(marks), parts[0].first, parts[-1].last)

    def times(self, n: int, source: str) -> _Passed:
        _check_number(len(self.marks) * n, f"scan at {source}")
        # Without marks, n may be any number.
        whole = self.sequence([self] * (n if self.marks else 1))
        return dataclasses.replace(whole, count=n * self.count)

    def agrees(self, other: _Passed) -> bool:
        """Whether both are the same to a counter."""

        def seen(passed):
            return passed.count, [(mark.place, mark.role) for mark in passed.marks]

        return seen(self) == seen(other)

    def __str__(self) -> str:
        marks = ", ".join(map(str, self.marks[:4]))
        return f"{self.count}" + (f" ({marks})" if marks else "")


class _Walk:
    """Adds up the boundaries of a jaxpr; each jaxpr within is walked once.

    Attributes:
      loose: Pairs of places where nothing makes the second boundary wait for the
        first.
    """

    def __init__(self) -> None:
        self.loose: list[tuple[str, str]] = []
        self._known: dict[int, _Passed] = {}

    def through(self, jaxpr: Any) -> _Passed:
        """Returns what a jaxpr, closed or not, passes."""
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = self._walk(jaxpr)
        return self._known[id(jaxpr)]

    def _walk(self, jaxpr: core.Jaxpr) -> _Passed:
        ordered = order.Order(jaxpr.invars)
        parts = []
        for eqn in jaxpr.eqns:
            part = self._equation(eqn)
            if not ordered.follow(eqn, part.count, part.flow):
                self.loose.append((parts[-1].last, part.first))
            if part.count:
                parts.append(part)
        flow = ordered.flow(jaxpr.outvars)
        return dataclasses.replace(_Passed.sequence(parts), flow=flow)

    def _equation(self, eqn: core.JaxprEqn) -> _Passed:
        name = eqn.primitive.name
        if eqn.primitive is boundary.boundary_p:
            role, source = eqn.params["role"], _source(eqn)
            marks = () if role == boundary.Role.ADVANCE else (_Mark(1, role, source),)
            return _Passed(1, marks, first=source, last=source)
        inner = [self.through(jaxpr) for jaxpr in core.jaxprs_in_params(eqn.params)]
        if not any(passed.count for passed in inner):
            return _Passed()
        if name == "scan":
            return inner[0].times(eqn.params["length"], _source(eqn))
        if name == "cond":
            return self._cond(eqn, inner)
        if name == "while":
            raise errors.WindowError(
                f"while loop at {_source(eqn)} passes boundaries, and how often"
                " depends on data; use scan or a fori_loop of constant length, or"
                " take the boundaries out of it."
            )
        if name not in _CALLS or len(inner) > 1:
            raise errors.WindowError(
                f"{name} at {_source(eqn)} passes boundaries, and nothing says how"
                " often; take them out of it."
            )
        return inner[0]

    def _cond(self, eqn: core.JaxprEqn, branches: list[_Passed]) -> _Passed:
        for other in branches[1:]:
            if not branches[0].agrees(other):
                raise errors.WindowError(
                    f"cond at {_source(eqn)} passes {branches[0]} boundaries in one"
                    f" branch and {other} in another; pass the same in every branch,"
                    " or take them out of it."
                )
        return dataclasses.replace(branches[0], flow=None)


def _source(eqn: core.JaxprEqn) -> str:
    return sites.nearest_source(_compat.frames(eqn))


# --- The pattern -------------------------------------------------------------


def _pattern(passed: _Passed) -> WindowPattern:
    first, last = passed.marks[0], passed.marks[-1]
    for one, other in itertools.pairwise(passed.marks):
        _check_turns(one, other, "")
    _check_turns(last, first, " of the next call")
    _check_number(len(passed.marks), "fn")
    # What the last call left open begins at counter 0 of the period.
    left_open = last.role == boundary.Role.OPEN_WINDOW
    start = passed.count - last.place if left_open else 0
    edges = [start + mark.place for mark in passed.marks]
    if left_open:
        edges = [0, *edges[:-1]]
    windows = tuple(zip(edges[::2], edges[1::2]))
    return WindowPattern(passed.count, windows, initial_counter=start)


def _check_turns(one: _Mark, other: _Mark, call: str) -> None:
    if one.role == other.role:
        opened = one.role == boundary.Role.OPEN_WINDOW
        missing = "close_window" if opened else "open_window"
        raise errors.WindowError(
            f"{one} is followed by {other}{call}; windows take turns, so put"
            f" {missing} between them."
        )


def _check_number(marks: int, what: str) -> None:
    if marks > 2 * MOST_WINDOWS:
        raise errors.WindowError(
            f"{what} passes {marks // 2} windows, and a pattern holds {MOST_WINDOWS};"
            " infer the pattern of the body of its loop, which recurs as well."
        )
