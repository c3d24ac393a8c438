# SPDX-License-Identifier: Apache-2.0
"""The one place where replay data goes to devices."""

from __future__ import annotations

import jax
import numpy as np

from jax_dmi import _compat
from jax_dmi import _native
from jax_dmi import errors

# Also each part of a split image lies on it.
_ALIGN = _native.REPLAY_ALIGN

Target = jax.Device | jax.sharding.Sharding | None


class Transfer:
    """Puts images on the devices of an arena, and counts.

    Attributes:
      copies: Host-to-device transfers so far.
    """

    def __init__(self, target: Target) -> None:
        known = jax.Device | jax.sharding.Sharding
        if target is not None and not isinstance(target, known):
            raise errors.DmiTypeError(
                f"device={target!r} must be a device, a sharding or None."
            )
        self._target = target
        self._multiple = _ALIGN * _shards(target)
        self.copies = 0

    @property
    def multiple(self) -> int:
        """What the bytes of an image must be a multiple of."""
        return self._multiple

    def put(self, words: np.ndarray) -> jax.Array:
        """Copies an image to every device that gets it, or its part of it.

        The image can change as soon as this returns.
        """
        target = self._target
        if not isinstance(target, jax.sharding.Sharding):
            device = _default_device() if target is None else target
            array = self._copy(words, device, committed=target is not None)
        else:
            places = target.addressable_devices_indices_map(words.shape)
            parts = [
                self._copy(words if index is None else words[index], device, True)
                for device, index in places.items()
            ]
            array = jax.make_array_from_single_device_arrays(words.shape, target, parts)
        self.copies += len(array.addressable_shards)
        return array

    def _copy(self, words: np.ndarray, device: jax.Device, committed: bool):
        place = jax.sharding.SingleDeviceSharding(device)
        return _compat.put_copy(words, place, committed)


def _default_device() -> jax.Device:
    chosen = jax.config.jax_default_device
    if isinstance(chosen, jax.Device):
        return chosen
    return jax.local_devices(backend=chosen)[0]


def _shards(target: Target) -> int:
    """Into how many parts the words of an image are split."""
    if not isinstance(target, jax.sharding.Sharding):
        return 1
    # A size that any number of shards divides.
    words = _ALIGN * len(target.device_set)
    try:
        return words // target.shard_shape((words,))[0]
    except (IndexError, ValueError) as error:
        raise errors.DmiValueError(
            f"device={target} cannot hold an image, which is an array of one"
            f" dimension ({error}); use PartitionSpec(axes) or PartitionSpec()."
        ) from None
