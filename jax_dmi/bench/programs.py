# SPDX-License-Identifier: Apache-2.0
"""Programs and captures that the benchmarks share."""

from __future__ import annotations

from typing import Any

import jax

import jax_dmi as dmi
from jax_dmi import _compat

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


def monitor(**settings: Any) -> dmi.Monitor:
    """Returns a Monitor that throws its records away, without checksums."""
    settings = {"sink": dmi.sinks.NullSink(), "checksum": False, **settings}
    return dmi.Monitor(**settings)
