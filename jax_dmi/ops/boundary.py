# SPDX-License-Identifier: Apache-2.0
"""Boundaries: places in a program that count, and that windows are made of.

A boundary is an identity too: everything that produced ``x`` is before it, and
everything that uses the result is after it. One small value goes through the call
in place, and barriers hold the leaves of ``x`` together around it. On CUDA the
barriers last until the program is scheduled, so any scalar will do. On the CPU
they do not, so it has to be a leaf: the smallest; and records and boundaries that
follow each other on one value take each other's results as operands.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import jax
import numpy as np

from jax_dmi import _compat
from jax_dmi import errors
from jax_dmi import spec as capture_spec
from jax_dmi.ops import common
from jax_dmi.ops import partition
from jax_dmi.ops import sites

# --- Primitive ---------------------------------------------------------------


class Role(enum.IntEnum):
    """What a boundary means to the windows of its device."""

    ADVANCE = 0
    OPEN_WINDOW = 1
    CLOSE_WINDOW = 2


boundary_p = _compat.primitive("dmi_boundary")

# --- Public functions --------------------------------------------------------


def advance_boundary(x: Any) -> Any:
    """Advances the boundary counter of each device; returns ``x`` unchanged.

    Args:
      x: A pytree with at least one array leaf. A scalar among the leaves makes the
        boundary free of copies everywhere.
    """
    return _bind(x, Role.ADVANCE)


def open_window(x: Any) -> Any:
    """Marks that transfers do no harm from here on; returns ``x`` unchanged.

    Counts as one boundary.

    Args:
      x: A pytree with at least one array leaf.
    """
    return _bind(x, Role.OPEN_WINDOW)


def close_window(x: Any) -> Any:
    """Marks that transfers would do harm from here on; returns ``x`` unchanged.

    Counts as one boundary.

    Args:
      x: A pytree with at least one array leaf.
    """
    return _bind(x, Role.CLOSE_WINDOW)


def _bind(x: Any, role: Role) -> Any:
    spec = capture_spec.active()
    if spec is None:
        return x
    leaves, tree = jax.tree_util.tree_flatten(x)
    ordered = [i for i, leaf in enumerate(leaves) if _is_ordered(leaf)]
    if not any(sites.is_recordable(leaves[i].dtype) for i in ordered):
        raise errors.DmiTypeError(
            f"x={x!r} holds no array of numbers; a boundary orders what produced x"
            " before what uses it, so pass a value of the program."
        )
    out = boundary_p.bind(*[leaves[i] for i in ordered], role=role, spec=spec)
    for i, leaf in zip(ordered, out):
        leaves[i] = leaf
    return jax.tree_util.tree_unflatten(tree, leaves)


def _is_ordered(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and hasattr(jax.typeof(leaf), "dtype")


# --- Lowering ----------------------------------------------------------------


def _lowering(ctx, *operands, role, spec):
    del spec
    common.check_placement(ctx, f"boundary ({role.name.lower()})")
    platforms = _compat.lowering_platforms(ctx)
    through, rank = _smallest(ctx.avals_in)
    values = list(operands)
    in_place = rank == 0 or platforms != ("cuda",)
    if not in_place:
        # A constant of its own, which is no buffer to be written to.
        through, rank = len(values), 0
        values.append(_compat.constant(np.uint32(0)))
    values = _compat.tie(values)
    place = _compat.placement(ctx)
    if place is None or place.fully_manual:
        after = []
        if platforms == ("cpu",):
            after = [call for value in operands for call in _compat.calls_before(value)]
        values[through] = _emit(role, [values[through], *after], in_place)[0]
    else:
        values[through] = partition.call(
            [values[through]],
            [rank],
            place,
            place.manual,
            ["boundary", int(role), in_place],
            lambda local, layout: _emit(role, local, in_place),
        )[0]
    values = _compat.tie(values)
    return [
        _compat.with_sharding_of_type(ctx, value, aval)
        for value, aval in zip(values, ctx.avals_out)
    ]


def _emit(role, operands, in_place):
    """Emits the call that counts, and returns its first operand."""
    return _compat.ffi_call(
        "dmi_advance",
        operands,
        [operands[0].type],
        {"role": np.int64(role)},
        aliases={0: 0} if in_place else None,
    )


def _smallest(avals) -> tuple[int, int]:
    """Returns the place and the rank of the smallest operand that has bytes."""

    def cost(i):
        if not sites.is_recordable(avals[i].dtype):
            return (2, 0)
        size = math.prod(avals[i].shape)
        return (int(size == 0), size)

    place = min(range(len(avals)), key=cost)
    return place, len(avals[place].shape)


# --- Rules -------------------------------------------------------------------


def _abstract_eval(*avals, role, spec):
    del role
    return list(avals), {common.EFFECT} if spec.exact else set()


def _batching(args, dims, **params):
    return boundary_p.bind(*args, **params), list(dims)


def _jvp(primals, tangents, **params):
    return boundary_p.bind(*primals, **params), list(tangents)


# --- Registration ------------------------------------------------------------

boundary_p.def_effectful_abstract_eval(_abstract_eval)
_compat.def_batching(boundary_p, _batching)
_compat.def_jvp(boundary_p, _jvp)
_compat.def_passed_back(boundary_p)
_compat.def_kept(boundary_p)
_compat.def_once_under_remat(boundary_p, common.identity_p)
_compat.def_lowering(boundary_p, _lowering, needs_devices=True)
