# SPDX-License-Identifier: Apache-2.0
"""Transfer windows: recurring parts of a program in which transfers do no harm."""

from __future__ import annotations

from jax_dmi.windows.config import SimulatedLink as SimulatedLink
from jax_dmi.windows.config import WindowConfig as WindowConfig
from jax_dmi.windows.inference import infer_window_pattern as infer_window_pattern
from jax_dmi.windows.pattern import WindowMatch as WindowMatch
from jax_dmi.windows.pattern import WindowPattern as WindowPattern
from jax_dmi.windows.surface import GrantPolicy as GrantPolicy
from jax_dmi.windows.surface import ManualClock as ManualClock
from jax_dmi.windows.surface import pack_progress as pack_progress
from jax_dmi.windows.surface import UNBOUNDED as UNBOUNDED
from jax_dmi.windows.surface import unpack_progress as unpack_progress
from jax_dmi.windows.surface import WindowController as WindowController
