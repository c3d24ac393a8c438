# SPDX-License-Identifier: Apache-2.0
"""Arrays on devices: puts them there, asks for them."""

from __future__ import annotations

from typing import Any

import jax
from jax._src import config
from jax._src import core
from jax._src.lib import xla_client
import numpy as np


def is_ready(array: Any) -> bool:
    """Whether nobody has to wait for an array, also where its program failed."""
    ready = getattr(array, "is_ready", None)
    try:
        return ready is None or ready()
    except RuntimeError:  # Deleted or donated meanwhile.
        return True


def put_copy(
    array: np.ndarray, sharding: jax.sharding.SingleDeviceSharding, committed: bool
) -> jax.Array:
    """Copies host memory, which may change as soon as this returns, to a device.

    The public ways either keep the memory for the array, where it is aligned, or
    go on reading it after they return, or copy it twice.

    Args:
      array: What to copy.
      sharding: Where to.
      committed: Whether computations must follow the array to its device.
    """
    aval = core.ShapedArray(array.shape, array.dtype)
    # What a caller's transfer guard should take it for.
    with config.explicit_device_put_scope():
        # Only for one device: jaxlib 0.10 fails on several.
        return xla_client.batched_device_put(
            aval,
            sharding,
            [array],
            list(sharding.device_set),
            committed,
            force_copy=True,
        )
