# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks on a GPU share."""

from __future__ import annotations

import jax

from jax_dmi import _native
from jax_dmi.bench import harness


def need_gpu() -> None:
    """Raises Unavailable where programs do not run on a GPU, with our kernels."""
    if jax.default_backend() != "gpu":
        raise harness.Unavailable("needs a GPU")
    cuda = _native.build_info()["cuda"]
    if not cuda["built"]:
        raise harness.Unavailable(f"needs CUDA: {cuda['why_not']}")
