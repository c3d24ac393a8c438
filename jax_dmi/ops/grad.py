# SPDX-License-Identifier: Apache-2.0
"""``record_grad``: records the cotangent of a value in the backward pass.

The value passes a *tap*, an identity that puts a second identity on the tangent.
That one is linear, and its transpose is a record. So forward mode keeps working
and records nothing, and each backward pass records once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jax_dmi import _compat
from jax_dmi.ops import common
from jax_dmi.ops.record import bind

# --- Primitives --------------------------------------------------------------

tap_p = _compat.primitive("dmi_tap")
tangent_tap_p = _compat.primitive("dmi_tangent_tap")

# --- Public function ---------------------------------------------------------


def record_grad(
    x: Any,
    name: str,
    *,
    step: Any = None,
    layer: Any = None,
    labels: Mapping[str, Any] | None = None,
    when: Any = None,
) -> Any:
    """Records the cotangent of ``x`` in every backward pass; returns ``x``.

    Example:
      >>> def loss(params, batch):
      ...     h = dmi.record_grad(hidden(params, batch), "block/resid_grad")
      ...     return head(params, h)

    Args:
      x: An array or a pytree of arrays.
      name: As for ``record``.
      step: As for ``record``.
      layer: As for ``record``.
      labels: As for ``record``.
      when: As for ``record``.

    Returns:
      ``x``, bitwise.
    """
    return common.instrument(x, name, "grad", _tap, step, layer, labels, when)


def _tap(value, operands, key, spec):
    # Only a JAX array can be differentiated.
    if not isinstance(value, jax.Array):
        return value
    (out,) = tap_p.bind(
        value, *operands, site=key, spec=spec, serial=common.new_serial()
    )
    return out


# --- Lowering ----------------------------------------------------------------


def _lowering(ctx, x, *operands, **params):
    del ctx, operands, params
    return [x]


# --- Rules -------------------------------------------------------------------


def _identity(x, *operands, **params):
    del operands, params
    return [x]


def _batching(prim, args, dims, *, site, **params):
    site = common.batched_key(site, dims)
    return prim.bind(*args, site=site, **params), [dims[0]]


def _jvp(prim, primals, tangents, **params):
    out = prim.bind(*primals, **params)
    tangent = tangents[0]
    if isinstance(tangent, _compat.Zero):
        return out, [tangent]
    return out, tangent_tap_p.bind(tangent, *primals[1:], **params)


def _transpose(cotangents, x, *operands, site, spec, serial):
    del x
    (cotangent,) = cotangents
    if not isinstance(cotangent, _compat.Zero):
        # The serial number of the tap: JAX may transpose one program several times
        # and keep one of the results.
        cotangent = bind(cotangent, list(operands), site, spec, serial)
    return [cotangent, *[None] * len(operands)]


# --- Registration ------------------------------------------------------------


def _register(prim: _compat.Primitive) -> None:
    prim.def_impl(_identity)
    prim.def_abstract_eval(_identity)
    _compat.def_batching(prim, lambda *args, **kw: _batching(prim, *args, **kw))
    _compat.def_jvp(prim, lambda *args, **kw: _jvp(prim, *args, **kw))
    _compat.def_lowering(prim, _lowering, needs_devices=False)


_register(tap_p)
_register(tangent_tap_p)
_compat.def_transpose(tangent_tap_p, _transpose)
