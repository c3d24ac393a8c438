# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi verify``: is anything of a run missing or damaged?"""

from __future__ import annotations

import argparse

from jax_dmi.commands import _text

HELP = "check a run: gaps, checksums, cut files; exits with 1 if it is not ok"
EXAMPLES = ("jax-dmi verify runs/demo && echo whole",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("run", metavar="RUN", help="directory or URI of a run")


def run(args: argparse.Namespace) -> int:
    """Prints the report."""
    import jax_dmi as dmi

    with _text.working(f"verifying {args.run}"):
        report = dmi.open_run(args.run).verify()
    print(report)
    return 0 if report.ok else 1
