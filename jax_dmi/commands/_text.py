# SPDX-License-Identifier: Apache-2.0
"""Tables on a terminal: with rich where it is installed, plain otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import importlib.util
import sys


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    right: Sequence[str] = (),
) -> None:
    """Prints a table; pipes and files always get the plain one.

    Args:
      columns: Headings; all empty for a table without a heading line.
      rows: Cells, shown as ``str`` has them.
      title: A line above the table.
      right: The columns that are aligned to the right.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        _print_rich(columns, cells, title, right)
    else:
        _print_plain(columns, cells, title, right)


def _print_rich(columns, cells, title, right) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        show_header=any(columns),
        box=box.SIMPLE_HEAD if any(columns) else None,
    )
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold"
        )
    for row in cells:
        table.add_row(*map(Text, row))  # Text: brackets in names are no markup
    Console().print(table)


def _print_plain(columns, cells, title, right) -> None:
    lines = [list(columns)] + cells if any(columns) else cells
    widths = [max(map(len, column)) for column in zip(*lines)] if lines else []
    if title:
        print(title)
    for line in lines:
        padded = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns)
        )
        print("  ".join(padded).rstrip())


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Shows on a terminal that something goes on, and for how long."""
    if not (sys.stderr.isatty() and importlib.util.find_spec("rich")):
        yield
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        shown.add_task(text, total=None)
        yield


def size(count: int) -> str:
    """Returns a number of bytes as people write it."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
