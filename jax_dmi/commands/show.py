# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi show``: the records of a site, with their statistics."""

from __future__ import annotations

import argparse
import itertools

from jax_dmi.commands import _text

HELP = "show the records of a site: labels, and statistics of the values"
EXAMPLES = (
    "jax-dmi show runs/demo block/resid --layer 2",
    "jax-dmi show runs/demo 'block/*' --step 3 --values",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("run", metavar="RUN", help="directory or URI of a run")
    parser.add_argument("name", help="name of a site, as ls lists it, or a glob")
    parser.add_argument("--step", type=int, metavar="N", help="only this step")
    parser.add_argument("--layer", type=int, metavar="N", help="only this layer")
    parser.add_argument(
        "--most", type=int, default=20, metavar="N", help="records (%(default)s)"
    )
    parser.add_argument(
        "--values", action="store_true", help="print the arrays themselves too"
    )


def run(args: argparse.Namespace) -> int:
    """Prints a line per record; 1 if there is none."""
    import jax_dmi as dmi

    opened = dmi.open_run(args.run)
    if not set(args.name) & set("*?["):
        opened[args.name]  # Raises with close names.
    found = opened.select(args.name, step=args.step, layer=args.layer)
    shown = list(itertools.islice(found, max(1, args.most)))
    if not shown:
        raise dmi.RunError(
            f"{args.run!r} has no such record of {args.name!r}{_there_are(opened)}."
        )
    columns = ("name", "step", "layer", "device", "labels", "array", *_STATISTICS)
    rows = [_row(record) for record in shown]
    used = [i for i, cells in enumerate(zip(*rows)) if any(c != "" for c in cells)]
    _text.print_table(
        [columns[i] for i in used],
        [[row[i] for i in used] for row in rows],
        right=("step", "layer", "device", *_STATISTICS),
    )
    if next(found, None) is not None:
        print(f"... and more; --most {2 * args.most} shows them")
    if args.values:
        for record in shown:
            print(f"\n{record!r}\n{record.numpy()}")
    return 0


def _there_are(opened) -> str:
    """Tells which steps and layers the run has."""
    table = opened.table()
    told = []
    for label in ("step", "layer"):
        found = [n for n in table[label].unique().to_pylist() if n is not None]
        if found:
            told.append(f"{label}s {min(found)} to {max(found)}")
    return f"; the run has {' and '.join(told)}" if told else ""


_STATISTICS = ("mean", "rms", "min", "max", "not finite")


def _row(record) -> tuple:
    labels = " ".join(f"{key}={value}" for key, value in record.labels.items())
    array = f"{record.dtype.name}[{','.join(map(str, record.shape))}]"
    step = "" if record.step is None else record.step
    layer = "" if record.layer is None else record.layer
    numbers = statistics(record.numpy())
    return record.name, step, layer, record.device, labels, array, *numbers


def statistics(values) -> tuple[str, ...]:
    """Returns mean, root mean square, extremes, and how many are not finite."""
    import numpy as np

    if values.size == 0:
        return ("",) * len(_STATISTICS)
    complex_values = np.iscomplexobj(values)
    wide = np.abs(values) if complex_values else values.astype(np.float64)
    finite = np.isfinite(wide)
    kept = wide[finite]
    if not kept.size:
        return "", "", "", "", str(values.size)
    numbers = (kept.mean(), np.sqrt(np.mean(kept**2)), kept.min(), kept.max())
    return (*(f"{n:.4g}" for n in numbers), str(int((~finite).sum())))
