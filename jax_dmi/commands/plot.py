# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi plot``: pictures of a run."""

from __future__ import annotations

import argparse
import pathlib

HELP = "draw a run: rms per layer over steps, histograms, an image, losses, windows"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("run", metavar="RUN", help="directory or URI of a run")
    parser.add_argument(
        "kind",
        nargs="?",
        choices=("rms", "histogram", "image", "losses", "windows"),
        default="rms",
        help="what to draw (%(default)s); image: the last two axes of one record;"
        " windows: when data moved, over the regions of the program where that harms",
    )
    parser.add_argument(
        "--windows",
        action="store_const",
        dest="kind_option",
        const="windows",
        help="the same as the kind windows",
    )
    parser.add_argument("--select", default="*", metavar="GLOB", help="names (all)")
    parser.add_argument("--step", type=int, metavar="N", help="only this step")
    parser.add_argument("--layer", type=int, metavar="N", help="only this layer")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        metavar="FILE",
        help="picture to write (KIND.png, here)",
    )


def run(args: argparse.Namespace) -> int:
    """Draws, and says where the picture is."""
    import jax_dmi as dmi

    try:
        import matplotlib
    except ImportError as error:
        raise dmi.DmiError("plots need matplotlib; pip install matplotlib") from error
    matplotlib.use("Agg")
    from jax_dmi import view

    kind = args.kind_option or args.kind
    out = args.out or pathlib.Path(f"{kind}.png")
    opened = dmi.open_run(args.run)
    figure = view.DRAW[kind](
        opened, select=args.select, step=args.step, layer=args.layer
    )
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:
        raise dmi.DmiError(f"--out={out} cannot be written: {error}") from error
    print(out)
    return 0
