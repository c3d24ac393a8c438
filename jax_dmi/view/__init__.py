# SPDX-License-Identifier: Apache-2.0
"""Pictures of runs; needs matplotlib."""

from __future__ import annotations

from jax_dmi.view import plots
from jax_dmi.view import timeline

DRAW = {
    "rms": plots.rms,
    "histogram": plots.histogram,
    "image": plots.image,
    "losses": plots.losses,
    "windows": timeline.windows,
}
