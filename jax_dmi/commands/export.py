# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi export``: a run in other formats."""

from __future__ import annotations

import argparse

from jax_dmi.commands import _text

HELP = "write the records of a run as Parquet, safetensors or npy files"
EXAMPLES = (
    "jax-dmi export runs/demo out",
    "jax-dmi export runs/demo out --format safetensors --select 'block/*'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("run", metavar="RUN", help="directory or URI of a run")
    parser.add_argument("out", metavar="DIR", help="directory for the files")
    parser.add_argument(
        "--format",
        choices=("parquet", "safetensors", "npy"),
        default="parquet",
        help="(%(default)s)",
    )
    parser.add_argument("--select", metavar="GLOB", help="only these names")
    parser.add_argument("--step", type=int, metavar="N", help="only this step")
    parser.add_argument(
        "--shard-bytes",
        default="512MiB",
        metavar="SIZE",
        help="a new file at this size (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the files and lists them; 1 if no record is meant."""
    import jax_dmi as dmi

    opened = dmi.open_run(args.run)
    if next(opened.select(args.select, step=args.step), None) is None:
        raise dmi.RunError(
            f"{args.run!r} has no such record to export;"
            f" there are: {', '.join(opened.names()) or 'none'}"
        )
    with _text.working(f"exporting {args.run}"):
        paths = opened.export(
            args.out,
            format=args.format,
            select=args.select,
            step=args.step,
            shard_bytes=args.shard_bytes,
        )
    _text.print_table(
        ("file", "size"),
        [(path, _text.size(path.stat().st_size)) for path in paths],
        right=("size",),
    )
    return 0
