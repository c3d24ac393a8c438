# SPDX-License-Identifier: Apache-2.0
"""Programs the Monitor itself dispatches: the ambient step, and fences.

A CPU device takes programs from two queues, one of the dispatching thread for
programs on a single device and one for programs on several. So everything here
exists twice: as one program per device, and as one program over all devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import functools
import time
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from jax.sharding import SingleDeviceSharding
import numpy as np

from jax_dmi import _compat

_HAS_STEP = 1
_RECORDING = 2
_WORDS = 4
# The first word of a change of gates is the kind of program.
_GATES = _WORDS - 1
_NO_GATE = 0xFFFFFFFF

# --- Primitive ---------------------------------------------------------------

# Without an effect of its own: the Monitor uses the result, and jit keeps its
# fast path.
control_p = _compat.primitive("dmi_control")

# --- Functions of the Monitor ------------------------------------------------


def set_step(
    devices: Sequence[jax.Device], step: int | None, recording: bool, multi: bool
) -> Any:
    """Sets the ambient step of ``devices`` for the programs dispatched next.

    Never waits for the devices.

    Args:
      devices: Local devices of one platform.
      step: The step, or None for no ambient step.
      recording: Whether records of that step are kept.
      multi: Whether to set the step that programs of several devices read, which
        also takes one program of all ``devices``.

    Returns:
      Arrays that are ready when the step is set.
    """
    value = 0 if step is None else step
    flags = _HAS_STEP * (step is not None) | _RECORDING * recording
    words = np.array(
        [value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF, flags, int(multi)], np.uint32
    )
    return _dispatch("dmi_step", tuple(devices), words, multi)


def set_gates(
    devices: Sequence[jax.Device], changes: Sequence[tuple[int, bool]], multi: bool
) -> None:
    """Opens and closes gates for the programs dispatched next.

    Never waits for the devices.

    Args:
      devices: Local devices of one platform.
      changes: ``(index of the gate, whether it closes)``.
      multi: Whether for programs of several devices.
    """
    for begin in range(0, len(changes), _GATES):
        words = np.full(_WORDS, _NO_GATE, np.uint32)
        words[0] = multi
        for i, (index, closed) in enumerate(changes[begin : begin + _GATES]):
            words[1 + i] = index << 1 | closed
        _dispatch("dmi_gate", tuple(devices), words, multi)


def prepare_fences(devices: Sequence[jax.Device]) -> None:
    """Compiles the fences, which nothing can once the interpreter shuts down."""
    for multi in _kinds(devices):
        for group in [tuple(devices)] if multi else [(d,) for d in devices]:
            _program("dmi_noop", group)


def _kinds(devices: Sequence[jax.Device]) -> tuple[bool, ...]:
    return (False, True) if len(devices) > 1 else (False,)


def dispatch_fences(devices: Sequence[jax.Device]) -> list[Any]:
    """Dispatches programs that end after what this thread dispatched before.

    That is: every program of this thread on one of the devices, and every program
    on several of them from any thread.

    Args:
      devices: Local devices of one platform.

    Returns:
      Arrays that are ready once those programs have ended.
    """
    words = np.zeros(_WORDS, np.uint32)
    fences = [
        _dispatch("dmi_noop", tuple(devices), words, multi) for multi in _kinds(devices)
    ]
    return jax.tree.leaves(fences)


def fences(devices: Sequence[jax.Device]) -> None:
    """Waits for what ``dispatch_fences`` waits for."""
    jax.block_until_ready(dispatch_fences(devices))


def wait_ready(arrays: Iterable[Any], deadline: float) -> bool:
    """Waits until all arrays are ready; False if the deadline passed first.

    Args:
      arrays: JAX arrays; deleted ones and other values count as ready.
      deadline: Time on the monotonic clock, in seconds.
    """
    pause = 20e-6
    for array in arrays:
        while not _compat.is_ready(array):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)
    return True


def _dispatch(target, devices, words, multi):
    # What the caller forbids its own code is no matter for these programs.
    with jax.disable_jit(False), jax.transfer_guard_host_to_device("allow"):
        if multi:
            return _program(target, devices)(np.tile(words, len(devices)))
        return [_program(target, (device,))(words) for device in devices]


@functools.cache
def _program(target: str, devices: tuple[jax.Device, ...]) -> Any:
    """Returns the compiled call of ``target`` on four words per device."""
    return _compat.in_default_context(lambda: _compile(target, devices))


@jax.disable_jit(False)
def _compile(target: str, devices: tuple[jax.Device, ...]) -> Any:
    def run(words):
        return control_p.bind(words, target=target)[0]

    if len(devices) == 1:
        sharding: Any = SingleDeviceSharding(devices[0])
    else:
        mesh = Mesh(np.array(devices), ("device",))
        spec = PartitionSpec("device")
        sharding = NamedSharding(mesh, spec)
        run = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)
    run.__name__ = target
    words = jax.ShapeDtypeStruct((_WORDS * len(devices),), np.uint32)
    return (
        jax.jit(run, in_shardings=sharding, out_shardings=sharding)
        .lower(words)
        .compile()
    )


# --- Lowering ----------------------------------------------------------------


def _lowering(ctx, words, *, target):
    del ctx
    scratch = _compat.ffi_call(target, [words], [_compat.scratch_type()], {})
    return _compat.tie([words, *scratch])[:1]


# --- Rules and registration --------------------------------------------------

control_p.def_abstract_eval(lambda words, *, target: [words])
_compat.def_kept(control_p)
_compat.def_lowering(control_p, _lowering, needs_devices=False)
