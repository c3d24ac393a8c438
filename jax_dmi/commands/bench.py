# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi bench``: measures what capture costs on this machine."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
from typing import Any
from typing import TextIO

from jax_dmi import errors
from jax_dmi.commands import _text

HELP = "measure what capture costs on this machine"
EXAMPLES = (
    "jax-dmi bench",
    "jax-dmi bench scan reading --json rows.json",
)


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
    from jax_dmi import bench

    rows: list[bench.Row] = []
    # Opened first: not to find after minutes that it cannot be.
    with _created(args.json) as file:
        for group in args.group or bench.GROUPS:
            try:
                with _text.working(f"measuring {group}"):
                    found = bench.run([group])
            except bench.Unavailable as why:
                print(f"{group}: not measured, {why}")
                continue
            _text.print_table(
                ("measure", "median", "quartiles", "aim", "", "behind it"),
                [_cells(row) for row in found],
                right=("median",),
            )
            rows += found
            _write(file, rows)
        _write(file, rows)
    return 0


def _write(file: TextIO | None, rows: list[Any]) -> None:
    """Replaces what is in the file: what comes later may take too long."""
    if file is None:
        return
    data = [{**dataclasses.asdict(row), "reached": row.reached} for row in rows]
    file.seek(0)
    file.truncate()
    file.write(json.dumps(data, indent=1) + "\n")
    file.flush()


def _created(path: pathlib.Path | None) -> contextlib.AbstractContextManager:
    if path is None:
        return contextlib.nullcontext()
    try:
        return path.open("w")
    except OSError as error:
        raise errors.DmiError(f"--json={path} cannot be written: {error}") from error


def _cells(row) -> tuple[str, ...]:
    aim = ""
    if row.reach is not None:
        aim = f"{'>=' if row.at_least else '<='} {row.reach:g}"
    mark = {None: "", True: "reached", False: "short"}[row.reached]
    quartiles = f"{row.low:.3f} {row.high:.3f}"
    value = f"{row.value:.3f} {row.unit}".rstrip()
    return row.name, value, quartiles, aim, mark, row.detail
