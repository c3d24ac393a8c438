# SPDX-License-Identifier: Apache-2.0
"""Patterns that choose records by name."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import fnmatch
import re

from jax_dmi import errors

Pattern = str | re.Pattern | Callable[[str], bool]


def as_patterns(select: Pattern | Iterable[Pattern]) -> tuple[Pattern, ...]:
    """Returns ``select`` as a tuple of patterns, or raises naming the bad one."""
    if isinstance(select, (str, re.Pattern)) or callable(select):
        select = (select,)
    patterns = tuple(select) if isinstance(select, Iterable) else (select,)
    for pattern in patterns:
        if not (isinstance(pattern, (str, re.Pattern)) or callable(pattern)):
            raise errors.DmiTypeError(
                f"select holds {pattern!r}; use globs, compiled regular expressions"
                " or callables that take a name."
            )
    return patterns


def matches(patterns: Iterable[Pattern], name: str) -> bool:
    """Whether any of the patterns accepts ``name``."""
    return any(_matches(pattern, name) for pattern in patterns)


def _matches(pattern: Pattern, name: str) -> bool:
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern)
    if isinstance(pattern, re.Pattern):
        return pattern.search(name) is not None
    return bool(pattern(name))
