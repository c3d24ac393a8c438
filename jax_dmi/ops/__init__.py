# SPDX-License-Identifier: Apache-2.0
"""The operations that programs are instrumented with.

Every file has the same order: primitive, public function, lowering, rules,
registration.
"""

from __future__ import annotations

import jax.ffi

from jax_dmi.ops import control as control
from jax_dmi.ops import partition
from jax_dmi.ops.boundary import advance_boundary as advance_boundary
from jax_dmi.ops.boundary import close_window as close_window
from jax_dmi.ops.boundary import open_window as open_window
from jax_dmi.ops.context import labels as labels
from jax_dmi.ops.context import scope as scope
from jax_dmi.ops.grad import record_grad as record_grad
from jax_dmi.ops.record import record as record

_registered = False


def register() -> None:
    """Registers the native handlers and the partitioner, once per process."""
    global _registered
    if _registered:
        return
    from jax_dmi import _native

    for platform, targets in _native.registrations().items():
        for name, handler in targets.items():
            jax.ffi.register_ffi_target(name, handler, platform=platform)
    partition.register()
    _registered = True
