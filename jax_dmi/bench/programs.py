# SPDX-License-Identifier: Apache-2.0
"""Programs and captures that the benchmarks share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import jax_dmi as dmi
from jax_dmi import _compat
from jax_dmi import spec as capture_spec

# --- An empty call -----------------------------------------------------------

_empty_p = _compat.primitive("dmi_empty")


def empty_call(x: jax.Array) -> jax.Array:
    """Returns ``x`` behind a side-effecting FFI call that does nothing."""
    return _empty_p.bind(x)[0]


def _lower_empty(ctx, x):
    del ctx
    scratch = _compat.ffi_call("dmi_noop", [x], [_compat.scratch_type()], {})
    return _compat.tie([x, *scratch])[:1]


_empty_p.def_abstract_eval(lambda x: [x])
_compat.def_kept(_empty_p)
_compat.def_lowering(_empty_p, _lower_empty, needs_devices=False)

# --- Captures ----------------------------------------------------------------


def warm(active: dmi.Monitor, ring_bytes: int) -> None:
    """Takes the ring once around, so that all its pages are in memory."""
    chunk = jnp.zeros(1 << 18, jnp.float32)

    @jax.jit
    def lap(chunk):
        def body(i, _):
            dmi.record(chunk, "warm")
            return i + 1, None

        laps = ring_bytes // chunk.nbytes + 1
        return jax.lax.scan(body, 0, None, length=laps)[0]

    lap(chunk).block_until_ready()
    active.flush()


def unrecorded():
    """Returns a context in which programs are traced as without a Monitor."""
    return capture_spec.overriding(None)


def monitor(**settings: Any) -> dmi.Monitor:
    """Returns a Monitor that throws its records away, without checksums."""
    settings = {"sink": dmi.sinks.NullSink(), "checksum": False, **settings}
    return dmi.Monitor(**settings)
