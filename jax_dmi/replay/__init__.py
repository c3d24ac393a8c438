# SPDX-License-Identifier: Apache-2.0
"""Replay: the arguments of many submissions in one upload."""

from __future__ import annotations

from jax_dmi.replay.arena import ArenaStats as ArenaStats
from jax_dmi.replay.arena import Plan as Plan
from jax_dmi.replay.arena import ReplayArena as ReplayArena
from jax_dmi.replay.block import ReplayBlock as ReplayBlock
from jax_dmi.replay.definition import Definition as Definition
