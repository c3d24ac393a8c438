# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_dmi``: the same as ``jax-dmi``."""

from __future__ import annotations

import sys

from jax_dmi import cli

if __name__ == "__main__":
    sys.exit(cli.main())
