# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi ls``: what a run holds, a line per site."""

from __future__ import annotations

import argparse

from jax_dmi.commands import _text

HELP = "list the sites of a run: arrays, records, bytes, steps"
EXAMPLES = (
    "jax-dmi ls runs/demo",
    "jax-dmi ls s3://bucket/runs/demo 'block/*'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("run", metavar="RUN", help="directory or URI of a run")
    parser.add_argument(
        "pattern", nargs="?", default="*", help="glob of names (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the table; 1 if no name matches."""
    import fnmatch

    import jax_dmi as dmi

    opened = dmi.open_run(args.run)
    rows = [
        (
            site["name"],
            f"{site['dtype']}[{','.join(map(str, site['shape']))}]",
            f"{site['records']:,}",
            _text.size(site["bytes"]),
            _steps(site),
            site["source"],
        )
        for site in opened.sites().to_pylist()
        if fnmatch.fnmatchcase(site["name"], args.pattern)
    ]
    if not rows:
        raise dmi.RunError(
            f"no name in {args.run!r} matches {args.pattern!r}; there are:"
            f" {', '.join(opened.names()) or 'none'}"
        )
    _text.print_table(
        ("site", "array", "records", "size", "steps", "source"),
        rows,
        right=("records", "size"),
    )
    return 0


def _steps(site: dict) -> str:
    first, last = site.get("first_step"), site.get("last_step")
    return "" if first is None else f"{first}..{last}"
