# SPDX-License-Identifier: Apache-2.0
"""Builds modules, and answers the partitioner."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

from jax._src import xla_bridge
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir
from jax._src.custom_partitioning_sharding_rule import str_to_sdy_sharding_rule
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func as func_dialect
from jax._src.lib.mlir.dialects import hlo
import numpy as np


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
