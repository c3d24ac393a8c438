# SPDX-License-Identifier: Apache-2.0
"""The one place where replay data goes to devices."""

from __future__ import annotations

import jax
import numpy as np

from jax_dmi import _compat
from jax_dmi import _native
from jax_dmi import errors
from jax_dmi.replay import uploads

# Also each part of a split image lies on it.
_ALIGN = _native.REPLAY_ALIGN

Target = jax.Device | jax.sharding.Sharding | None


class Transfer:
    """Puts images on the devices of an arena, and counts.

    Attributes:
      copies: Host-to-device transfers so far.
      bytes: What they transferred to one device.
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
        self.bytes = 0

    @property
    def multiple(self) -> int:
        """What the bytes of an image must be a multiple of."""
        return self._multiple

    def put(
        self, words: np.ndarray, used: int, staging: _native.ReplayStaging
    ) -> jax.Array:
        """Copies an image to every device that gets it, or its part of it.

        The image can change once its staging has no leases left.

        Args:
          words: uint32[n], the image.
          used: Bytes of it that are not zero.
          staging: Where it is.
        """
        target = self._target
        parts = self._parts(words.size)
        committed = target is not None
        own = all(uploads.possible(device) for device in parts)
        if own:
            arrays = uploads.send(staging, used, parts, committed)
        else:
            arrays = {
                device: _compat.put_copy(
                    words[part], jax.sharding.SingleDeviceSharding(device), committed
                )
                for device, part in parts.items()
            }
        self.copies += len(parts)
        self.bytes += used if own else words.nbytes
        if not isinstance(target, jax.sharding.Sharding):
            (array,) = arrays.values()
            return array
        return jax.make_array_from_single_device_arrays(
            words.shape, target, list(arrays.values())
        )

    def _parts(self, words: int) -> dict[jax.Device, slice]:
        """Which words of an image each device gets."""
        target = self._target
        if not isinstance(target, jax.sharding.Sharding):
            return {_default_device() if target is None else target: slice(0, words)}
        places = target.addressable_devices_indices_map((words,))
        return {
            device: slice(*index[0].indices(words)[:2]) if index else slice(0, words)
            for device, index in places.items()
        }


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
