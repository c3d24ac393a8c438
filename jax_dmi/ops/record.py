# SPDX-License-Identifier: Apache-2.0
"""``record``: an identity that copies the value it passes into the device ring."""

from __future__ import annotations

from collections.abc import Mapping
import functools
import math
from typing import Any

import jax
import numpy as np

from jax_dmi import _compat
from jax_dmi import errors
from jax_dmi import spec as capture_spec
from jax_dmi.ops import common
from jax_dmi.ops import context
from jax_dmi.ops import partition
from jax_dmi.ops import sites

# --- Primitive ---------------------------------------------------------------

record_p = _compat.primitive("dmi_record")

# --- Public function ---------------------------------------------------------


def record(
    x: Any,
    name: str,
    *,
    step: Any = None,
    layer: Any = None,
    labels: Mapping[str, Any] | None = None,
    when: Any = None,
) -> Any:
    """Records ``x`` each time the program computes it, and returns it unchanged.

    Works anywhere JAX code runs: eagerly, under ``jit``, ``grad``, ``vmap``,
    ``scan``, ``cond``, ``checkpoint`` and ``shard_map``. Without an active Monitor
    it returns ``x`` and leaves nothing in the program.

    Example:
      >>> @jax.jit
      ... def layer(x, i):
      ...     return dmi.record(jax.nn.relu(x), "block/resid", layer=i)

    Args:
      x: An array or a pytree of arrays; the leaves of a pytree are recorded under
        ``name/path``.
      name: 1 to 200 characters of ``A-Z a-z 0-9 _ . : / - [ ]``.
      step: Step number, an integer or integer scalar; by default the step of the
        Monitor.
      layer: Layer number, an integer or integer scalar.
      labels: Further numbers by name; at most four with step and layer.
      when: A boolean scalar; records only where it is true.

    Returns:
      ``x``, bitwise.
    """
    return common.instrument(x, name, "record", _bind, step, layer, labels, when)


def _bind(value, operands, key, spec):
    return bind(value, operands, key, spec, common.new_serial())


def bind(
    value: Any,
    operands: list[Any],
    key: sites.SiteKey,
    spec: capture_spec.CaptureSpec,
    serial: int | None,
) -> Any:
    """Binds one record; returns ``value``, tied to it if it is a JAX array."""
    if serial is not None:
        aval = jax.typeof(value)
        capture_spec.note_traced(spec, serial, key.site(aval.dtype, aval.shape))
    (out,) = record_p.bind(value, *operands, site=key, spec=spec, serial=serial)
    # A NumPy array or a number stays what it is: a device array in its place
    # would compute in another precision.
    return out if isinstance(value, jax.Array) else value


# --- Lowering ----------------------------------------------------------------


def _lowering(ctx, *operands, site, spec, serial):
    capture_spec.note_lowered(spec, serial)
    aval = ctx.avals_in[0]
    common.check_placement(ctx, f"record of {site.name!r}")
    _check_static_shape(site, aval)
    place = _compat.placement(ctx)
    descriptor = site.descriptor(aval.dtype, aval.shape)
    number = sites.identifier(descriptor) & (2**64 - 1)
    capture_spec.note_site(number, descriptor, site.name)
    emit = functools.partial(_emit, site, descriptor, aval.dtype, spec)
    after = _boundaries_before(ctx, operands[0])
    if place is None:
        return emit(operands, None, aval.shape, False, after)
    varying = _varying(ctx, place)
    if place.fully_manual:
        layout = partition.manual_layout(place, varying, aval.shape)
        return emit(operands, layout, aval.shape, True, after)
    # No sharding splits finer than this; the shards themselves are checked later.
    least = sites.payload_bytes(aval.dtype, aval.shape) // math.prod(place.mesh_shape)
    _check_size(site, spec, least)
    (out,) = partition.call(
        operands,
        [len(a.shape) for a in ctx.avals_in],
        place,
        varying,
        ["record", descriptor, site.roles, spec.replicas, spec.size_limit],
        lambda local, layout: emit(local, layout, layout.shard_shape, True),
    )
    return [_compat.with_sharding_of_type(ctx, out, ctx.avals_out[0])]


def _boundaries_before(ctx, value):
    """Returns operands that keep a record after the boundaries ``value`` passed."""
    if _compat.lowering_platforms(ctx) != ("cpu",):
        return []
    # Scalars, that is: holding on to an array could cost a copy of it.
    return [call for call in _compat.calls_before(value) if _compat.rank(call) == 0]


def _emit(site, descriptor, dtype, spec, operands, layout, shape, multi, after=()):
    """Emits the call on local operands and ties the value to it."""
    _check_size(site, spec, sites.payload_bytes(dtype, shape))
    layout_descriptor, recorders = "", ()
    if layout is not None and layout.devices:
        layout_descriptor = layout.descriptor()
        recorders = layout.recorders(spec.replicas)
    layout_id = sites.identifier(layout_descriptor) if layout_descriptor else 0
    (scratch,) = _compat.ffi_call(
        "dmi_record",
        [*operands, *after],
        [_compat.scratch_type()],
        {
            "site": np.int64(sites.identifier(descriptor)),
            "layout": np.int64(layout_id),
            "site_descriptor": descriptor,
            "layout_descriptor": layout_descriptor,
            "roles": site.roles + "-" * len(after),
            "multi": np.int64(multi),
            "recorders": np.array(recorders, np.int64),
        },
    )
    return _compat.tie([operands[0], scratch])[:1]


def _varying(ctx: Any, place: _compat.Placement) -> frozenset[str]:
    """Returns the manual axes over which the operands of ``ctx`` may vary."""
    if not _compat.varying_axes_are_known():
        return place.manual
    return frozenset().union(*map(_compat.varying_axes, ctx.avals_in)) & place.manual


def _check_static_shape(site: sites.SiteKey, aval: Any) -> None:
    if not all(isinstance(size, int) for size in aval.shape):
        raise errors.DmiTypeError(
            f"x of {site.name!r} has the symbolic shape {aval.shape}; record needs"
            " sizes that are known when the program is lowered."
        )


def _check_size(site, spec, size: int) -> None:
    if spec.size_limit is not None and size > spec.size_limit:
        raise errors.DmiValueError(
            f"x of {site.name!r} holds {size} bytes on each device, and a record may"
            f" hold {spec.size_limit}, half the ring; use a larger ring_bytes."
        )


# --- Rules -------------------------------------------------------------------


def _impl(*args, site, spec, serial):
    # The serial number is a cache key of its own for every call; run without it.
    capture_spec.note_lowered(spec, serial)
    with context.outside_contexts():
        return _compat.apply_primitive(
            record_p, *args, site=site, spec=spec, serial=None
        )


def _abstract_eval(x, *operands, site, spec, serial):
    del operands, site, serial
    return [x], {common.EFFECT} if spec.exact else set()


def _batching(args, dims, *, site, **params):
    site = common.batched_key(site, dims)
    return record_p.bind(*args, site=site, **params), [dims[0]]


def _jvp(primals, tangents, **params):
    return record_p.bind(*primals, **params), list(tangents[:1])


# --- Registration ------------------------------------------------------------

record_p.def_impl(_impl)
record_p.def_effectful_abstract_eval(_abstract_eval)
_compat.def_batching(record_p, _batching)
_compat.def_jvp(record_p, _jvp)
_compat.def_passed_back(record_p)
_compat.def_kept(record_p)
_compat.def_once_under_remat(record_p, common.identity_p)
_compat.def_lowering(record_p, _lowering, needs_devices=True)
