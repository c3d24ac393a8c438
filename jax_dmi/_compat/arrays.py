# SPDX-License-Identifier: Apache-2.0
"""Puts arrays on devices."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax._src import config
from jax._src import core
from jax._src.lib import xla_client
import numpy as np


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
