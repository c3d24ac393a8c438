# SPDX-License-Identifier: Apache-2.0
"""``verify``: what of a run is there, missing, cut off or damaged."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What ``Run.verify`` found."""

    ok: bool
