# SPDX-License-Identifier: Apache-2.0
"""Labels: how step, layer and free labels reach a record, and their defaults.

Every label is an operand of the record. Python numbers travel as two 32-bit words
instead of constants of the program, so a loop over steps compiles once; traced
scalars travel as they are.

``labels`` and ``scope`` set defaults for the records traced inside them. Both are
user contexts of JAX: a function that was traced under one layer number is traced
again under the next, instead of being found in a cache with the old number in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_dmi import errors
from jax_dmi.ops import sites

_MOST = 4
_NATIVE_WIDTHS = frozenset(
    ["bool", "float16", "bfloat16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


class _Held:
    """A traced default: the cache key is the object, the value leaves with it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_scope = jax.make_user_context(None)
_defaults = jax.make_user_context(None)


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Prefixes the names of the records traced inside with ``name/``.

    Also enters ``jax.named_scope``, so that profiles show the same names.

    Args:
      name: One or more parts of a name, as in ``"decoder/block[3]"``.
    """
    with _scope(scoped(sites.check_name(name))), jax.named_scope(name):
        yield


def scoped(name: str) -> str:
    """Returns ``name`` with the prefix of the scopes around the caller."""
    prefix = _scope.value
    return name if prefix is None else f"{prefix}/{name}"


@contextlib.contextmanager
def labels(step: Any = None, layer: Any = None, **labels: Any) -> Iterator[None]:
    """Sets default labels for the records traced inside.

    Inner contexts and the arguments of ``record`` win over outer ones.

    Args:
      step: Default step number.
      layer: Default layer number.
      **labels: Further default labels, numbers or scalars.
    """
    entries = dict(_defaults.value or ())
    held = []
    for name, value in _given(step, layer, labels).items():
        kind, number = _classify(name, value)
        if isinstance(number, jax.Array):
            number = _Held(number)
            held.append(number)
        entries[name] = (kind, number)
    try:
        with _defaults(tuple(entries.items())):
            yield
    finally:
        for traced in held:
            traced.value = None


@contextlib.contextmanager
def outside_contexts() -> Iterator[None]:
    """Hides scopes and default labels, whose values would be cache keys."""
    if _scope.value is None and _defaults.value is None:
        yield
    else:
        with _scope(None), _defaults(None):
            yield


def resolve(
    step: Any, layer: Any, labels: Mapping[str, Any] | None, when: Any
) -> tuple[tuple[tuple[str, str], ...], str, list[Any]]:
    """Returns the label types, the roles and the operands of one record.

    Args:
      step: The ``step`` argument of the record.
      layer: The ``layer`` argument.
      labels: The ``labels`` argument.
      when: The ``when`` argument, None if the record is unconditional.
    """
    found = {name: _unheld(entry) for name, entry in _defaults.value or ()}
    for name, value in _given(step, layer, labels or {}).items():
        found[name] = _classify(name, value)
    if len(found) > _MOST:
        raise errors.DmiValueError(
            f"labels={sorted(found)} are {len(found)}; a record carries at most"
            f" {_MOST}, step and layer included."
        )
    ordered = sorted(found, key=lambda n: {"step": 0, "layer": 1}.get(n, 2))
    types = tuple((name, found[name][0]) for name in ordered)
    free = iter("0123")
    roles = "".join({"step": "s", "layer": "l"}.get(n) or next(free) for n in ordered)
    operands = [_operand(*found[name]) for name in ordered]
    if when is not None:
        roles += "w"
        operands.append(_condition(when))
    return types, roles, operands


def never(when: Any) -> bool:
    """Whether ``when`` is a plain False, for which nothing need be traced."""
    return isinstance(when, (bool, np.bool_)) and not when


def _given(step: Any, layer: Any, labels: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(labels, Mapping):
        raise errors.DmiTypeError(
            f"labels={labels!r} is a {type(labels).__name__}; use a dict of numbers."
        )
    for name in labels:
        sites.check_name(name, "label name")
        if name in ("step", "layer"):
            raise errors.DmiValueError(
                f"labels[{name!r}] has an argument of its own; use {name}=."
            )
    given = {"step": step, "layer": layer, **labels}
    return {name: value for name, value in given.items() if value is not None}


def _classify(name: str, value: Any) -> tuple[str, Any]:
    """Returns the type of a label and its value as a number or a ``jax.Array``."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, jax.Array):
        kind = _array_kind(value)
    elif isinstance(value, (bool, np.bool_)):
        kind, value = "bool", bool(value)
    elif isinstance(value, np.unsignedinteger):
        kind, value = "uint", int(value)
    elif isinstance(value, (int, np.integer)):
        kind, value = "int", int(value)
    elif isinstance(value, (float, np.generic)) and _is_float(value):
        kind, value = "float", float(value)
    else:
        kind = None
    if kind is None or (name in ("step", "layer") and kind not in ("int", "uint")):
        wanted = "an integer" if name in ("step", "layer") else "a number"
        raise errors.DmiTypeError(
            f"{name}={value!r} cannot be a label; use {wanted} or a scalar array."
        )
    if kind == "int" and isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise errors.DmiValueError(f"{name}={value} does not fit 64 bits.")
    return kind, value


def _array_kind(value: jax.Array) -> str | None:
    if value.shape != ():
        return None
    for kind, family in (
        ("bool", jnp.bool_),
        ("uint", jnp.unsignedinteger),
        ("int", jnp.signedinteger),
        ("float", jnp.floating),
    ):
        if jnp.issubdtype(value.dtype, family):
            return kind
    return None


def _is_float(value: Any) -> bool:
    return isinstance(value, float) or jnp.issubdtype(value.dtype, jnp.floating)


def _unheld(entry: tuple[str, Any]) -> tuple[str, Any]:
    kind, value = entry
    return kind, value.value if isinstance(value, _Held) else value


def _operand(kind: str, value: Any) -> Any:
    if isinstance(value, jax.Array):
        if value.dtype.name in _NATIVE_WIDTHS:
            return value
        return value.astype(jnp.float32 if kind == "float" else jnp.int32)
    if kind == "float":
        return np.frombuffer(struct.pack("<d", value), np.uint32)
    return np.frombuffer(struct.pack("<Q", value & (2**64 - 1)), np.uint32)


def _condition(when: Any) -> Any:
    if isinstance(when, np.ndarray) and when.ndim == 0:
        when = when[()]
    if isinstance(when, (bool, np.bool_)):
        return np.bool_(when)
    if not (isinstance(when, jax.Array) and _array_kind(when) == "bool"):
        raise errors.DmiTypeError(
            f"when={when!r} is not a condition; use a boolean scalar."
        )
    return when
