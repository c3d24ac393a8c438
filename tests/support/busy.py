# SPDX-License-Identifier: Apache-2.0
"""Work that keeps a device busy: milliseconds on a GPU, as much on a CPU."""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp

from support import backend


def matrix() -> jax.Array:
    """Returns something to work on."""
    size = 4096 if backend.platform() == "cuda" else 256
    return jnp.eye(size) / 2 + 0.5


def work(x: jax.Array) -> jax.Array:
    """Returns a matrix that takes a few products of ``matrix()`` to make."""

    def body(_, x):
        x = x @ x
        return x / (1 + jnp.max(jnp.abs(x)))

    return lax.fori_loop(0, 4, body, x)


def zero(x: jax.Array) -> jax.Array:
    """Returns 0.0 that is there only once ``x`` has been worked on."""
    return 0 * work(x)[0, 0]
