# SPDX-License-Identifier: Apache-2.0
"""Where the equations of a traced program come from."""

from __future__ import annotations

from collections.abc import Iterator

from jax._src import source_info_util
from jax.extend import core


def frames(equation: core.JaxprEqn) -> Iterator[tuple[str, int]]:
    """File and line of each caller outside JAX, the innermost first."""
    for frame in source_info_util.user_frames(equation.source_info.traceback):
        yield frame.file_name, frame.start_line
