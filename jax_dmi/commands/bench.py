# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi bench``: measures what capture costs on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib

HELP = "measure what capture costs on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from jax_dmi import bench

    def group(text: str) -> str:
        if text not in bench.GROUPS:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not measured; choose from {', '.join(bench.GROUPS)}"
            )
        return text

    parser.add_argument(
        "group",
        nargs="*",
        type=group,
        metavar="GROUP",
        help="what to measure: " + ", ".join(bench.GROUPS) + " (all)",
    )
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="also write the rows there"
    )


def run(args: argparse.Namespace) -> int:
    """Measures, prints a table, and writes JSON if asked."""
    import sys

    from jax_dmi import bench

    rows = bench.run(
        args.group or bench.GROUPS,
        lambda name: print(f"measuring {name} ...", file=sys.stderr, flush=True),
    )
    for row in rows:
        print(_line(row))
    if args.json is not None:
        data = [{**dataclasses.asdict(row), "reached": row.reached} for row in rows]
        args.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


def _line(row) -> str:
    mark = {None: " ", True: "+", False: "-"}[row.reached]
    reach = ""
    if row.reach is not None:
        reach = f"{'>=' if row.at_least else '<='} {row.reach:g}"
    return (
        f"{mark} {row.value:8.3f} [{row.low:.3f}, {row.high:.3f}] {reach:8}"
        f" {row.name}  ({row.detail})"
    )
