# SPDX-License-Identifier: Apache-2.0
"""Primitives and their rules, in one form for every version."""

from __future__ import annotations

from collections.abc import Callable
import functools

import jax
from jax._src import core
from jax._src import dispatch
from jax._src import effects as jax_effects
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.interpreters import remat

Primitive = core.Primitive
Zero = ad.Zero
apply_primitive = dispatch.apply_primitive
not_mapped = None

_REMAT_RULES_SPLIT_RESIDUALS = jax.__version_info__ >= (0, 12)


def register_effect(effect_type: type[jax_effects.Effect]) -> None:
    """Lets an unordered effect pass every transformation."""
    for allowed in (
        jax_effects.lowerable_effects,
        jax_effects.control_flow_allowed_effects,
        jax_effects.remat_allowed_effects,
        jax_effects.custom_derivatives_allowed_effects,
        jax_effects.partial_eval_kept_effects,
    ):
        allowed.add_type(effect_type)


Effect = jax_effects.Effect


def primitive(name: str) -> Primitive:
    """Returns a new primitive of several results that runs eagerly as a program."""
    result = Primitive(name)
    result.multiple_results = True
    result.def_impl(functools.partial(apply_primitive, result))
    return result


def def_batching(prim: Primitive, rule: Callable) -> None:
    """Sets ``rule(args, dims, **params) -> (outs, out_dims)``."""
    batching.primitive_batchers[prim] = rule


def def_jvp(prim: Primitive, rule: Callable) -> None:
    """Sets ``rule(primals, tangents, **params) -> (outs, out_tangents)``."""
    ad.primitive_jvps[prim] = rule


def def_transpose(prim: Primitive, rule: Callable) -> None:
    """Sets ``rule(cotangents, *args, **params) -> cotangents of the args``."""
    ad.primitive_transposes[prim] = rule


def def_passed_back(prim: Primitive) -> None:
    """Hands cotangents through: in reverse mode a tangent is never computed."""

    def transpose(cotangents, *args, **params):
        del params
        missing = len(args) - len(cotangents)
        pairs = zip(args, [*cotangents, *[None] * missing])
        return [ct if ad.is_undefined_primal(arg) else None for arg, ct in pairs]

    def_transpose(prim, transpose)


def def_kept(prim: Primitive) -> None:
    """Keeps every equation of ``prim``, and all its inputs, whoever uses it."""

    def keep(used_outputs, *live_and_eqn):
        *_, eqn = live_and_eqn
        return [True] * len(eqn.invars), eqn

    pe.dce_rules[prim] = keep


def def_once_under_remat(prim: Primitive, identity: Primitive) -> None:
    """Runs ``prim`` once under rematerialization, as ``identity`` on recompute.

    Args:
      prim: A primitive whose results are its leading operands, unchanged.
      identity: A primitive without parameters that returns its operands.
    """

    def partial_eval_rule(saveable, unknown, available, eqn):
        missing = [
            v
            for v, there in zip(eqn.invars, available)
            if isinstance(v, core.Var) and not there
        ]
        count = len(eqn.outvars)
        if any(unknown):
            return None, eqn, [True] * count, [True] * count, missing
        # The recomputed side needs its input, and its result counts as present:
        # otherwise policies fail on an unknown variable, or the recorded value
        # turns into a residual.
        passed = eqn.invars[:count]
        recomputed = eqn.replace(
            primitive=identity, params={}, invars=passed, effects=set()
        )
        needed = [v for v in missing if any(v is p for p in passed)]
        return eqn, recomputed, [False] * count, [True] * count, needed

    def remat_rule(trace_or_policy, *args, **params):
        del trace_or_policy
        out = prim.bind(*args, **params)
        count = len(out)
        if _REMAT_RULES_SPLIT_RESIDUALS:
            return out, (), lambda res, *again: identity.bind(*again[:count])
        return out, lambda *again: identity.bind(*again[:count])

    pe.partial_eval_jaxpr_custom_rules[prim] = partial_eval_rule
    remat.rules[prim] = remat_rule


def def_lowering(prim: Primitive, rule: Callable, *, needs_devices: bool) -> None:
    """Sets ``rule(ctx, *operands, **params) -> results`` for every platform."""
    mlir.register_lowering(prim, rule, cacheable=False)
    if needs_devices:
        dispatch.prim_requires_devices_during_lowering.add(prim)
