# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi sql``: a query over the records of a run."""

from __future__ import annotations

import argparse

from jax_dmi.commands import _text

HELP = "query the records of a run with SQL (table: records)"
EXAMPLES = (
    "jax-dmi sql runs/demo 'select name, count(*) from records group by name'",
    "jax-dmi sql runs/demo 'select * from sites' --csv > sites.csv",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("run", metavar="RUN", help="directory or URI of a run")
    parser.add_argument(
        "query",
        help="for example: select name, count(*), max(step) from records group by name",
    )
    parser.add_argument(
        "--most", type=int, default=100, metavar="N", help="rows (%(default)s)"
    )
    parser.add_argument("--csv", action="store_true", help="print all rows as CSV")


def run(args: argparse.Namespace) -> int:
    """Prints the result."""
    import sys

    import pyarrow.csv

    import jax_dmi as dmi

    table = dmi.open_run(args.run).sql(args.query)
    if args.csv:
        sys.stdout.flush()
        pyarrow.csv.write_csv(table, sys.stdout.buffer)
        return 0
    rows = table.slice(0, max(0, args.most)).to_pylist()
    _text.print_table(
        table.column_names,
        [[row[name] for name in table.column_names] for row in rows],
    )
    if table.num_rows > len(rows):
        print(f"... {table.num_rows:,} rows in all; --most or --csv shows them")
    return 0
