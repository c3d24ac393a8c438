# SPDX-License-Identifier: Apache-2.0
"""Arguments of users: checked, and brought to one form.

Every function names the parameter, its value and the remedy when it raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import json
import numbers
import operator
import os
import re
from typing import Any

from jax_dmi import errors

_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{k}b": v for k, v in list(_UNITS.items()) if k not in ("", "b")}
_UNITS |= {f"{k}ib": 1024 ** (i + 1) for i, k in enumerate("kmgt")}


MOST_BYTES = 2**62
MOST_RING_BYTES = 64 << 30
MOST_RING_SLOTS = 2**30
MOST_BATCH_RECORDS = 2**32 - 1


def size(parameter: str, value: Any, *, least: int = 1, most: int = MOST_BYTES) -> int:
    """Returns a size in bytes given as an int or a string like ``"256MiB"``.

    Raises:
      DmiValueError: It is not a size, or not between ``least`` and ``most``.
    """
    number = None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
        if match and match[2].lower() in _UNITS:
            number = int(float(match[1]) * _UNITS[match[2].lower()])
    else:
        number = _index(value)
    if number is None:
        raise errors.DmiValueError(
            f"{parameter}={value!r} is not a size; use bytes or a string like '64MiB'."
        )
    if number < least:
        raise errors.DmiValueError(
            f"{parameter}={value!r} is too small; use at least {least} bytes."
        )
    if number > most:
        raise errors.DmiValueError(
            f"{parameter}={value!r} is too large; use at most {most} bytes."
        )
    return number


def count(parameter: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Returns an integer in a range, or raises naming the parameter."""
    number = _index(value)
    if number is None or number < least or (most is not None and number > most):
        limit = f">= {least}" if most is None else f"from {least} to {most}"
        raise errors.DmiValueError(
            f"{parameter}={value!r} cannot be used; use an integer {limit}."
        )
    return number


def _index(value: Any) -> int | None:
    """Returns an integer of any library as an int; None for what is none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def seconds(parameter: str, value: Any) -> float:
    """Returns a time in seconds >= 0, or raises naming the parameter."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not float(value) >= 0:
        raise errors.DmiValueError(
            f"{parameter}={value!r} is not a time; use seconds >= 0."
        )
    return float(value)


def path(parameter: str, value: Any) -> str:
    """Returns a path or a URI as a string, or raises naming the parameter."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise errors.DmiTypeError(
            f"{parameter}={value!r} is a {type(value).__name__}; use a path or a URI."
        )
    text = os.fsdecode(value)
    if not text or "\0" in text:
        raise errors.DmiValueError(
            f"{parameter}={value!r} is no path; name a directory."
        )
    return text


def choice(parameter: str, value: Any, allowed: Sequence[str]) -> str:
    """Returns ``value`` if it is one of ``allowed``, or raises listing them."""
    if value not in allowed:
        raise errors.DmiValueError(
            f"{parameter}={value!r} is not known; use one of {', '.join(allowed)}."
        )
    return value


def json_object(parameter: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a copy of a mapping that JSON can hold, or raises saying why not."""
    if not isinstance(value, (Mapping, type(None))):
        raise errors.DmiTypeError(
            f"{parameter}={value!r} is a {type(value).__name__}; use a dict."
        )
    try:
        return json.loads(json.dumps(dict(value or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        kind = (
            errors.DmiTypeError
            if isinstance(error, TypeError)
            else errors.DmiValueError
        )
        raise kind(
            f"{parameter} cannot be kept as JSON ({error}); use strings, finite"
            " numbers, booleans, None, lists and dicts."
        ) from error
