# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi demo``: trains a small transformer and shows it from inside."""

from __future__ import annotations

import argparse
import pathlib

from jax_dmi import errors

HELP = "train a small transformer on real text and look inside it"
EXAMPLES = (
    "jax-dmi demo",
    "jax-dmi demo --out /tmp/demo --steps 50",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("runs/demo"),
        metavar="DIR",
        help="where the run goes; the next free name if it exists (%(default)s)",
    )
    parser.add_argument(
        "--steps", type=int, default=200, metavar="N", help="steps (%(default)s)"
    )
    parser.add_argument(
        "--no-capture", action="store_true", help="only train, to compare times"
    )


def run(args: argparse.Namespace) -> int:
    """Trains, prints a table, and draws the plot."""
    if args.steps < 1:
        raise errors.DmiValueError(f"--steps={args.steps} is too small; use >= 1.")
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        raise errors.DmiError(
            f"the demo needs {error.name}; pip install matplotlib rich"
        ) from error
    if args.no_capture:
        _train("training", args.steps, None)
        return 0
    return _captured(args)


def _captured(args: argparse.Namespace) -> int:
    import matplotlib

    import jax_dmi as dmi
    from jax_dmi import view

    plain = _train("without capture", min(args.steps, 50), None)
    with dmi.Monitor(args.out, exist="new", attrs={"what": "demo"}) as monitor:
        captured = _train("with capture", args.steps, monitor)
        monitor.flush()
    path = pathlib.Path(monitor.path or args.out)
    run = dmi.open_run(path)
    _print_table(run, monitor.stats(), plain, captured)
    picture = path / "rms.png"
    matplotlib.use("Agg")
    figure = view.DRAW["rms"](run, select="block/resid*", step=None, layer=None)
    figure.savefig(picture, dpi=150)
    print(f"run   {path}\nplot  {picture}")
    print(f"next  jax-dmi ls {path}")
    return 0


def _train(title: str, steps: int, monitor):
    from rich.progress import BarColumn
    from rich.progress import MofNCompleteColumn
    from rich.progress import Progress
    from rich.progress import TextColumn
    from rich.progress import TimeElapsedColumn

    from jax_dmi import demo

    columns = (
        TextColumn(f"{title:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task(title, total=steps, loss=float("nan"))
        return demo.train(
            steps,
            monitor,
            lambda step, loss: progress.update(task, completed=step + 1, loss=loss),
        )


def _print_table(run, stats, plain, captured) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="captured", title_justify="left")
    for name in ("site", "array"):
        table.add_column(name)
    for name in ("records", "MB", "dropped"):
        table.add_column(name, justify="right")
    arrays = {row["name"]: row for row in run.sites().to_pylist()}
    for name, counts in stats.by_site.items():
        row = arrays[name]
        shape = "x".join(map(str, row["shape"]))
        table.add_row(
            name,
            f"{row['dtype']} {shape}",
            f"{counts.written:,}",
            f"{counts.bytes / 1e6:,.1f}",
            str(sum(counts.dropped.values())),
        )
    table.add_section()
    total = f"{stats.bytes / 1e6:,.1f}"
    dropped = str(sum(stats.dropped.values()))
    table.add_row("all", "", f"{stats.written:,}", total, dropped)
    console = Console()
    console.print(table)
    with_capture, without = captured.step_seconds, plain.step_seconds
    console.print(
        f"step  {with_capture * 1e3:.1f} ms with capture, {without * 1e3:.1f} ms"
        f" without ({with_capture / without:.2f}x)"
    )
