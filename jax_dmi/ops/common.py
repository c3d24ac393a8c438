# SPDX-License-Identifier: Apache-2.0
"""What the operations share: their effect, their leaves, and where they may stand."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax

from jax_dmi import _compat
from jax_dmi import errors
from jax_dmi import spec as capture_spec
from jax_dmi.ops import context
from jax_dmi.ops import sites

_PLATFORMS = ("cpu", "cuda")
_REDUCTIONS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_reduce",
        "map",
        "reduce",
        "reduce_scatter",
        "reduce_window",
        "scatter",
        "select_and_scatter",
        "sort",
    )
)

# --- Primitive and effect ----------------------------------------------------


class RecordEffect(_compat.Effect):
    """Unordered effect of operations that no transformation may drop."""

    def __repr__(self) -> str:
        return "Record"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordEffect)

    # A constant, so that keys of compilation caches agree between processes.
    def __hash__(self) -> int:
        return 0x646D69


EFFECT = RecordEffect()

# What stays of an operation where its value is only computed again.
identity_p = _compat.primitive("dmi_identity")

# --- Leaves ------------------------------------------------------------------

Bind = Callable[[Any, list[Any], sites.SiteKey, capture_spec.CaptureSpec], Any]


def instrument(
    x: Any,
    name: str,
    kind: str,
    bind: Bind,
    step: Any,
    layer: Any,
    labels: Mapping[str, Any] | None,
    when: Any,
) -> Any:
    """Applies ``bind`` to the leaves of ``x`` that the active spec selects.

    Args:
      x: A pytree.
      name: Name of the site, without scopes and paths.
      kind: Kind of the site.
      bind: ``bind(value, operands, key, spec)``, returns what replaces the value.
      step: As for ``record``.
      layer: As for ``record``.
      labels: As for ``record``.
      when: As for ``record``.
    """
    sites.check_name(name)
    spec = capture_spec.active()
    if spec is None or context.never(when):
        return x
    leaves, tree = jax.tree_util.tree_flatten_with_path(x)
    prefix = context.scoped(name)
    names = [_leaf_name(prefix, path) for path, _ in leaves]
    wanted = [spec.selects(leaf) for leaf in names]
    if not any(wanted):
        return x
    types, roles, operands = context.resolve(step, layer, labels, when)
    source = sites.source()
    out = []
    for leaf_wanted, leaf, (_, value) in zip(wanted, names, leaves):
        if leaf_wanted:
            _check_recordable(leaf, value)
            key = sites.SiteKey(leaf, kind, types, roles, source)
            value = bind(value, operands, key, spec)
        out.append(value)
    return jax.tree_util.tree_unflatten(tree, out)


def new_serial() -> int | None:
    """Returns a serial number for a record; None outside of traced programs."""
    return capture_spec.new_serial() if _compat.tracing() else None


def _leaf_name(name: str, path: Any) -> str:
    if not path:
        return sites.check_name(name)
    keys = jax.tree_util.keystr(path, simple=True, separator="/")
    return sites.check_name(f"{name}/{keys}", "name of a leaf")


def _check_recordable(name: str, value: Any) -> None:
    try:
        dtype = getattr(jax.typeof(value), "dtype", None)
    except TypeError:
        dtype = None
    if not sites.is_recordable(dtype):
        kind = type(value).__name__ if dtype is None else dtype
        raise errors.DmiTypeError(
            f"x of {name!r} is a {kind}, which cannot be recorded; record arrays"
            " of numbers (for a PRNG key, its jax.random.key_data)."
        )


# --- Rules -------------------------------------------------------------------


def check_placement(ctx: Any, what: str) -> None:
    """Raises if a call is lowered where no handler can run.

    That is, for another platform, and inside the function of a reduction, which
    the compiler turns into code for single elements, or else crashes.
    """
    for operation in _compat.enclosing_operations():
        if operation in _REDUCTIONS:
            raise errors.DmiValueError(
                f"{what} stands in the function of a {operation}, which the compiler"
                " applies to single elements; record what goes in or comes out."
            )
    for platform in _compat.lowering_platforms(ctx):
        if platform not in _PLATFORMS:
            raise errors.DmiValueError(
                f"{what} cannot be lowered for platform {platform!r}; it runs on"
                " 'cpu' and 'cuda'. Run without a Monitor there."
            )


def batched_key(
    key: sites.SiteKey, dims: tuple[int | None, ...] | list[int | None]
) -> sites.SiteKey:
    """Returns the key under ``vmap``; raises if a label or ``when`` is batched.

    Args:
      key: The site without the batch.
      dims: Batch axis of the value and of each further operand, None for none.
    """
    axis, *others = dims
    for role, dim in zip(key.roles, others):
        if dim is not None:
            what = "when" if role == "w" else key.labels[key.roles.index(role)][0]
            raise errors.DmiValueError(
                f"{what} of {key.name!r} differs along an axis of vmap; one record"
                f" holds the whole batch and one {what}. Pass a value that is not"
                " mapped over."
            )
    return key if axis is None else key.batched(axis)


def _identity_jvp(primals, tangents):
    return identity_p.bind(*primals), list(tangents)


# --- Registration ------------------------------------------------------------

_compat.register_effect(RecordEffect)
identity_p.def_abstract_eval(lambda *avals: list(avals))
_compat.def_batching(identity_p, lambda args, dims: (identity_p.bind(*args), dims))
_compat.def_jvp(identity_p, _identity_jvp)
_compat.def_passed_back(identity_p)
_compat.def_lowering(identity_p, lambda ctx, *xs: list(xs), needs_devices=False)
