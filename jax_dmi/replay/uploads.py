# SPDX-License-Identifier: Apache-2.0
"""Uploads by a call of our own: one copy out of pinned staging per device.

A program without operands, compiled once per staging, size and devices, whose
only call copies what is in the staging when it runs. So staging must not change
until then: an upload that is under way holds a lease on it.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import threading
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from jax.sharding import SingleDeviceSharding
import numpy as np

from jax_dmi import _compat
from jax_dmi import _native
from jax_dmi import errors

_TARGET = "dmi_upload"
_WORD = np.dtype(np.uint32).itemsize

_under_way: list[tuple[_native.ReplayUpload, jax.Array]] = []
_lock = threading.Lock()


@functools.cache
def possible(device: jax.Device) -> bool:
    """Whether this build has the call for a device."""
    platform = _compat.handler_platform(device)
    return _TARGET in _native.registrations().get(platform, {})


def send(
    staging: _native.ReplayStaging,
    used: int,
    parts: Mapping[jax.Device, slice],
    committed: bool,
) -> dict[jax.Device, jax.Array]:
    """Dispatches the upload of what is in the staging; does not wait for it.

    Args:
      staging: Where the image is.
      used: Bytes that are transferred; the rest of the image becomes 0.
      parts: Which words of the image each device gets; all of one size.
      committed: Whether computations must follow the arrays to their devices.

    Returns:
      uint32 arrays of one dimension, by device.

    Raises:
      DmiError: The device refused, as where staging cannot be pinned.
      StateError: The transfer guard of the caller disallows explicit transfers.
    """
    # No transfer that JAX itself would see.
    if jax.config.jax_transfer_guard_host_to_device == "disallow_explicit":
        raise errors.StateError(
            "Disallowed host-to-device transfer: an upload is one, and the transfer"
            ' guard is "disallow_explicit"; "disallow" allows it.'
        )
    land()
    devices = tuple(parts)
    words = parts[devices[0]].stop - parts[devices[0]].start
    wanted = [
        (_compat.handler_ordinal(device), _WORD * part.start, _WORD * words)
        for device, part in parts.items()
    ]
    program = _program(staging.number, words, devices, committed)
    try:
        upload = _native.replay_upload(staging, used, wanted)
    except RuntimeError as error:
        raise errors.DmiError(f"The image cannot be uploaded: {error}") from None
    with jax.disable_jit(False):
        array, ended = program()
    with _lock:
        _under_way.append((upload, ended))
    if len(devices) == 1:
        return {devices[0]: array}
    return {shard.device: shard.data for shard in array.addressable_shards}


def land() -> None:
    """Gives up the leases of uploads that are over."""
    with _lock:
        # A program that failed never gets to its copy.
        _under_way[:] = [
            (upload, ended)
            for upload, ended in _under_way
            if not (upload.passed or _compat.is_ready(ended))
        ]


@functools.cache
def _program(
    number: int, words: int, devices: tuple[jax.Device, ...], committed: bool
) -> Any:
    """Returns the compiled upload from a staging, an image and a word per device."""

    @jax.disable_jit(False)
    def build() -> Any:
        types = [jax.ShapeDtypeStruct((n,), np.uint32) for n in (words, 1)]
        call = jax.ffi.ffi_call(_TARGET, types, has_side_effect=True)

        def dmi_upload():
            return call(staging=np.int64(number))

        first, *others = devices
        if others:
            mesh = Mesh(np.array(devices), ("device",))
            spec = PartitionSpec("device")
            run = jax.shard_map(
                dmi_upload, mesh=mesh, in_specs=(), out_specs=spec, check_vma=False
            )
            compiled = jax.jit(run, out_shardings=NamedSharding(mesh, spec))
        elif committed:
            place = SingleDeviceSharding(first)
            compiled = jax.jit(dmi_upload, out_shardings=place)
        else:
            compiled = jax.jit(dmi_upload)
        with jax.default_device(first):
            return compiled.lower().compile()

    return _compat.in_default_context(build)
