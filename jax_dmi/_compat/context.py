# SPDX-License-Identifier: Apache-2.0
"""Where the caller is: tracing, lowering, on which devices."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
import dataclasses
import threading
from typing import Any

import jax
from jax._src import config
from jax._src import core
from jax._src import distributed
from jax._src import sharding_impls
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir


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


def handler_platform(device: jax.Device) -> str:
    """The platform of a device, as FFI handlers are registered for it."""
    is_cuda = device.platform == "gpu" and "cuda" in device.client.platform_version
    return "CUDA" if is_cuda else device.platform


def in_default_context(build: Callable[[], Any]) -> Any:
    """Returns what ``build`` returns in a thread of its own.

    Meshes and other settings of the calling thread would become part of a program
    that is compiled in it.
    """
    built: futures.Future[Any] = futures.Future()

    def run() -> None:
        try:
            built.set_result(build())
        except BaseException as error:
            built.set_exception(error)

    # No executor: those take no work once the main thread has ended.
    thread = threading.Thread(target=run, name="jax_dmi compile")
    try:
        thread.start()
    except RuntimeError:  # Nor do new threads begin then, from Python 3.12 on.
        run()
    else:
        thread.join()
    return built.result()


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


def publish(key: str, value: str) -> None:
    """Hands a text to the other processes of ``jax.distributed``, under a new key."""
    distributed.global_state.client.key_value_set(key, value)


def receive(key: str, timeout: float) -> str:
    """Waits for what another process published.

    Args:
      key: Its key.
      timeout: Seconds to wait.

    Raises:
      TimeoutError: Nobody published it.
    """
    client = distributed.global_state.client
    try:
        return client.blocking_key_value_get(key, int(timeout * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise TimeoutError(str(error)) from error
