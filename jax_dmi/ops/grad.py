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
from jax_dmi import spec as capture_spec
from jax_dmi.ops import labels as record_labels
from jax_dmi.ops import record as forward
from jax_dmi.ops import sites

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
    sites.check_name(name)
    spec = capture_spec.active()
    if spec is None or record_labels.never(when):
        return x
    leaves, tree = jax.tree_util.tree_flatten_with_path(x)
    prefix = record_labels.scoped(name)
    names = [forward.leaf_name(prefix, path) for path, _ in leaves]
    wanted = [spec.selects(leaf) for leaf in names]
    if not any(wanted):
        return x
    types, roles, operands = record_labels.resolve(step, layer, labels, when)
    source = sites.source()
    out = []
    for leaf_wanted, leaf, (_, value) in zip(wanted, names, leaves):
        if leaf_wanted:
            forward.check_recordable(leaf, value)
        # Only a JAX array can be differentiated.
        if leaf_wanted and isinstance(value, jax.Array):
            key = sites.SiteKey(leaf, "grad", types, roles, source)
            (value,) = tap_p.bind(
                value, *operands, site=key, spec=spec, serial=forward.new_serial()
            )
        out.append(value)
    return jax.tree_util.tree_unflatten(tree, out)


# --- Lowering ----------------------------------------------------------------


def _lowering(ctx, x, *operands, **params):
    del ctx, operands, params
    return [x]


# --- Rules -------------------------------------------------------------------


def _identity(x, *operands, **params):
    del operands, params
    return [x]


def _batching(prim, args, dims, *, site, **params):
    axis = dims[0]
    for role, dim in zip(site.roles, dims[1:]):
        if dim is not _compat.not_mapped:
            forward.refuse_batched(site, role)
    site = site if axis is _compat.not_mapped else site.batched(axis)
    return prim.bind(*args, site=site, **params), [axis]


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
        cotangent = forward.bind(cotangent, list(operands), site, spec, serial)
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
