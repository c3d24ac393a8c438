# SPDX-License-Identifier: Apache-2.0
"""Every private JAX name and every version branch of this package.

Nothing outside this file imports from ``jax._src``. The supported range starts
at jax 0.10.2; where a release changed the shape of a rule, the rule is written
once here in our terms and adapted to the installed version.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
from jax._src import config
from jax._src import core
from jax._src import dispatch
from jax._src import effects as jax_effects
from jax._src import sharding_impls
from jax._src import xla_bridge
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir
from jax._src.custom_partitioning_sharding_rule import str_to_sdy_sharding_rule
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.interpreters import remat
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func as func_dialect
from jax._src.lib.mlir.dialects import hlo
import numpy as np

Primitive = core.Primitive
Zero = ad.Zero
apply_primitive = dispatch.apply_primitive

_REMAT_RULES_SPLIT_RESIDUALS = jax.__version_info__ >= (0, 12)


# --- Where we are -----------------------------------------------------------


def tracing() -> bool:
    """Whether the caller runs inside a JAX transformation or a traced function."""
    return not core.trace_state_clean()


def varying_axes(aval: Any) -> frozenset[str]:
    """Names of the manual mesh axes over which a value is known to vary."""
    manual_type = getattr(aval, "mat", None)
    if manual_type is not None:
        return frozenset(manual_type.varying)
    return frozenset(getattr(aval, "vma", ()))


def varying_axes_are_known() -> bool:
    """Whether the ``shard_map`` being traced or lowered checks varying axes."""
    return bool(config._check_vma.value)


def handler_ordinal(device: jax.Device) -> int:
    """The number by which FFI handlers know a local device."""
    # XLA:CPU hands handlers the global id, the GPU backends a local ordinal.
    return device.id if device.platform == "cpu" else device.local_hardware_id


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a multi-device program being lowered, as a mesh.

    Attributes:
      mesh_names: Axis names; one made-up name where the program has no mesh.
      mesh_shape: Axis sizes.
      devices: Global device ids in mesh order; empty where not known.
      manual: The axes that are lowered in manual mode.
    """

    mesh_names: tuple[str, ...]
    mesh_shape: tuple[int, ...]
    devices: tuple[int, ...]
    manual: frozenset[str]

    @property
    def fully_manual(self) -> bool:
        return self.manual == frozenset(self.mesh_names)


def placement(ctx: mlir.LoweringRuleContext) -> Placement | None:
    """Returns where the module of ``ctx`` will run; None for a single device."""
    axis_context = ctx.module_context.axis_context
    if isinstance(axis_context, sharding_impls.SPMDAxisContext):
        mesh = axis_context.mesh
        if mesh.size == 1:
            return None
        flat = () if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.devices.flat
        return Placement(
            mesh_names=tuple(map(str, mesh.axis_names)),
            mesh_shape=tuple(mesh.shape.values()),
            devices=tuple(device.id for device in flat),
            manual=frozenset(map(str, axis_context.manual_axes)),
        )
    if not isinstance(axis_context, sharding_impls.ShardingContext):
        return None
    if axis_context.num_devices == 1:
        return None
    mesh = axis_context.abstract_mesh
    has_mesh = mesh is not None and mesh.size == axis_context.num_devices
    return Placement(
        mesh_names=tuple(map(str, mesh.axis_names)) if has_mesh else ("device",),
        mesh_shape=mesh.axis_sizes if has_mesh else (axis_context.num_devices,),
        devices=tuple(device.id for device in axis_context.device_assignment or ()),
        manual=frozenset(),
    )


def lowering_platforms(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    """Platforms the rule being run has to serve."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def enclosing_operations() -> list[str]:
    """Names of the operations whose regions are being lowered, innermost first."""
    names = []
    operation = ir.InsertionPoint.current.block.owner
    while operation is not None:
        operation = operation.operation
        names.append(operation.name)
        operation = operation.parent if operation.attached else None
    return names


# --- Placing arrays ---------------------------------------------------------


def put_copies(
    parts: Sequence[np.ndarray],
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    devices: Sequence[jax.Device],
    committed: bool,
) -> jax.Array:
    """Makes an array of host memory that may change as soon as this returns.

    The public ways either keep the memory for the array, where it is aligned, or
    go on reading it after they return, or copy it twice.

    Args:
      parts: What each device gets, one transfer each.
      shape: Of the whole array.
      sharding: Of the whole array.
      devices: The local devices of ``sharding``.
      committed: Whether computations must follow the array to its devices.
    """
    aval = core.ShapedArray(shape, parts[0].dtype)
    # What a caller's transfer guard should take it for.
    with config.explicit_device_put_scope():
        return xla_client.batched_device_put(
            aval, sharding, list(parts), list(devices), committed, force_copy=True
        )


# --- Rules of a primitive ---------------------------------------------------


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


# --- Building modules -------------------------------------------------------


def scratch_type() -> ir.Type:
    """The u64[8] a call keeps its per-execution state in."""
    return ir.RankedTensorType.get([8], ir.IntegerType.get_unsigned(64))


def ffi_call(
    target: str,
    operands: Sequence[ir.Value],
    result_types: Sequence[ir.Type],
    attributes: dict[str, Any],
    aliases: dict[int, int] | None = None,
) -> list[ir.Value]:
    """Emits a side-effecting typed-FFI call with row-major buffers."""
    op = mlir.custom_call(
        target,
        result_types=result_types,
        operands=operands,
        backend_config={k: mlir.ir_attribute(v) for k, v in attributes.items()},
        has_side_effect=True,
        api_version=4,
        operand_output_aliases=aliases,
        operand_layouts=[_row_major(value.type) for value in operands],
        result_layouts=[_row_major(kind) for kind in result_types],
    )
    return list(op.results)


def _row_major(kind: ir.Type) -> tuple[int, ...]:
    return tuple(reversed(range(ir.RankedTensorType(kind).rank)))


def calls_before(value: ir.Value) -> list[ir.Value]:
    """Returns results of calls that barriers tie to ``value``, nearest first.

    XLA:CPU removes barriers early, and with them the order of the calls; a call
    that takes such a result as an operand stays behind the one that made it.
    """
    found: list[ir.Value] = []
    while isinstance(value, ir.OpResult):
        barrier = value.owner
        if barrier.name != "stablehlo.optimization_barrier":
            break
        passed = barrier.operands[value.result_number]
        found += [v for v in barrier.operands if v != passed and _is_call(v)]
        value = passed
    return found


def _is_call(value: ir.Value) -> bool:
    return (
        isinstance(value, ir.OpResult) and value.owner.name == "stablehlo.custom_call"
    )


def rank(value: ir.Value) -> int:
    """Returns the number of dimensions of a value."""
    return ir.RankedTensorType(value.type).rank


def constant(value: np.generic) -> ir.Value:
    """Emits a constant."""
    return mlir.ir_constant(value)


def tie(values: Sequence[ir.Value]) -> list[ir.Value]:
    """Emits a barrier that makes every value wait for all of them."""
    return list(hlo.OptimizationBarrierOp(list(values)).results)


def with_sharding_of_type(ctx, value: ir.Value, aval: Any) -> ir.Value:
    """Pins the sharding that explicit mesh axes put into the type."""
    return mlir.lower_with_sharding_in_types(ctx, value, aval)


def partitioned_call(
    target: str,
    operands: Sequence[ir.Value],
    result_types: Sequence[ir.Type],
    key: str,
    sharding_rule: str,
    replicated_factors: tuple[str, ...],
) -> list[ir.Value]:
    """Emits the call that a registered partitioner replaces on each device."""
    op = hlo.CustomCallOp(
        list(result_types),
        list(operands),
        call_target_name=ir.StringAttr.get(target),
        has_side_effect=ir.BoolAttr.get(True),
        api_version=mlir.i32_attr(2),
        called_computations=ir.ArrayAttr.get([]),
        backend_config=ir.StringAttr.get(key),
        operand_layouts=None,
        result_layouts=None,
    )
    rule = str_to_sdy_sharding_rule(
        sharding_rule, need_replication_factors=replicated_factors
    )
    op.attributes["sdy.sharding_rule"] = sdy_sharding_rule_to_mlir(
        rule, [value.type for value in operands], list(result_types)
    )
    return list(op.results)


def build_module(
    shapes: Sequence[tuple[tuple[int, ...], np.dtype]],
    emit: Callable[[list[ir.Value]], list[ir.Value]],
) -> bytes:
    """Returns the bytecode of a module whose main function is ``emit``."""
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [
            ir.RankedTensorType.get(shape, mlir.dtype_to_ir_type(dtype))
            for shape, dtype in shapes
        ]
        with ir.InsertionPoint(module.body):
            main = func_dialect.FuncOp("main", (types, types[:1]))
            main.attributes["sym_visibility"] = ir.StringAttr.get("public")
            block = main.add_entry_block()
            with ir.InsertionPoint(block):
                func_dialect.ReturnOp(emit(list(block.arguments)))
        return mlir.module_to_bytecode(module)


# --- Partitioning -----------------------------------------------------------


def register_partitioner(name: str, partition: Callable) -> None:
    """Registers ``partition(key, shapes, shardings) -> bytecode`` for a call.

    The call is an identity on its first operand: the sharding of that operand is
    kept and everything else is whatever the compiler chose.
    """

    def run(arg_shapes, arg_shardings, result_shape, result_sharding, key):
        del result_shape, result_sharding
        shapes = [(s.dimensions(), s.numpy_dtype()) for s in arg_shapes]
        tiled = [
            (sharding.tile(shape).dimensions(), shape.numpy_dtype())
            for sharding, shape in zip(arg_shardings, arg_shapes)
        ]
        module = partition(key.decode(), shapes, tiled, arg_shardings[0])
        return module, arg_shardings, arg_shardings[0]

    register = functools.partial(
        xla_client.register_custom_call_partitioner,
        name=name,
        prop_user_sharding=lambda sharding, shape, key: sharding,
        partition=run,
        infer_sharding_from_operands=lambda shapes, shardings, out, key: shardings[0],
        can_side_effecting_have_replicated_sharding=True,
    )
    register()
    xla_bridge.register_plugin_callbacks(register)
