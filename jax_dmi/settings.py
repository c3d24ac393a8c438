# SPDX-License-Identifier: Apache-2.0
"""What a Monitor was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from typing import Any

import jax

from jax_dmi import errors
from jax_dmi import spec as capture_spec
from jax_dmi import windows as transfer_windows


def window_settings(
    value: Any,
) -> tuple[transfer_windows.WindowConfig | None, transfer_windows.WindowPattern | None]:
    """Returns the configuration and the first pattern of ``windows=``."""
    if value is None or isinstance(value, transfer_windows.WindowConfig):
        return value, None
    if isinstance(value, transfer_windows.WindowPattern):
        return transfer_windows.WindowConfig(), value
    raise errors.DmiTypeError(
        f"windows={value!r} is a {type(value).__name__}; use a WindowPattern or a"
        " WindowConfig."
    )


def link(value: Any) -> transfer_windows.SimulatedLink | None:
    """Returns ``link=`` if it can be used, or raises saying what can."""
    if value is None or isinstance(value, transfer_windows.SimulatedLink):
        return value
    raise errors.DmiTypeError(
        f"link={value!r} is a {type(value).__name__}; use a SimulatedLink."
    )


def local_devices(devices: Any) -> tuple[jax.Device, ...]:
    """Returns the local devices to capture on; None means all of them."""
    local = tuple(jax.local_devices())
    if devices is None:
        return local
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise errors.DmiValueError(
            f"devices={devices!r} is no sequence; use a list of jax.Device."
        )
    chosen = tuple(devices)
    if not chosen:
        raise errors.DmiValueError("devices=[] captures nothing; name a device.")
    if len(set(chosen)) < len(chosen):
        raise errors.DmiValueError(
            f"devices={list(chosen)} names a device twice; name each once."
        )
    for device in chosen:
        if device not in local:
            raise errors.DmiValueError(
                f"devices holds {device!r}, which is no local device of the default"
                f" backend; choose from {list(local)}."
            )
    return chosen


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a Monitor was asked for; sizes in bytes, times in seconds."""

    spec: capture_spec.CaptureSpec
    every: int
    warmup: int
    ring_bytes: int
    ring_slots: int
    staging_bytes: int
    batch_bytes: int
    batch_records: int
    linger: float
    segment_bytes: int
    overflow: str
    stall_timeout: float
    checksum: bool
    exist: str
    attrs: Mapping[str, Any]
    windows: transfer_windows.WindowConfig | None
    pattern: transfer_windows.WindowPattern | None
    link: transfer_windows.SimulatedLink | None

    def records_step(self, step: int) -> bool:
        """Whether ``every`` and ``warmup`` keep the records of a step."""
        return step >= self.warmup and (step - self.warmup) % self.every == 0
