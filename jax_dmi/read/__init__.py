# SPDX-License-Identifier: Apache-2.0
"""Reads runs: as records, NumPy arrays, Arrow tables and SQL."""

from __future__ import annotations

from jax_dmi.read.damage import Damage as Damage
from jax_dmi.read.run import open_run as open_run
from jax_dmi.read.run import Run as Run
from jax_dmi.read.series import Series as Series
from jax_dmi.read.verify import VerifyReport as VerifyReport
