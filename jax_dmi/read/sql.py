# SPDX-License-Identifier: Apache-2.0
"""SQL over the records of a run, by DuckDB."""

from __future__ import annotations

from collections.abc import Callable
import re
from typing import Any

import pyarrow as pa

from jax_dmi import errors


def query(
    text: str, records: Callable[[bool], pa.Table], sites: Callable[[], pa.Table]
) -> pa.Table:
    """Runs a query, see ``Run.sql``.

    Args:
      text: The query.
      records: Makes the table ``records``, with payloads if the query names them.
      sites: Makes the table ``sites``.

    Raises:
      DmiValueError: The query is wrong.
      DmiError: There is no DuckDB.
    """
    try:
        import duckdb
    except ImportError as error:
        raise errors.DmiError(
            "sql needs duckdb; pip install duckdb, or work on run.table()."
        ) from error
    # Making the column reads from every payload, so only for who asks for it.
    wants_payload = re.search(r"\bpayload\b", text, re.IGNORECASE) is not None
    with duckdb.connect() as database:
        # A misspelled table must not be found among the variables of callers.
        database.execute("SET python_enable_replacements = false")
        database.register("records", records(wants_payload))
        database.register("sites", sites())
        try:
            result = database.sql(text)
            return pa.table({}) if result is None else _table(result)
        except duckdb.Error as error:
            raise errors.DmiValueError(
                f"query={text!r} failed: {error}. The tables are records and sites;"
                " run.table(payload=True).schema lists the columns."
            ) from error


def _table(result: Any) -> pa.Table:
    # Its name changed in version 2.
    if hasattr(result, "to_arrow_table"):
        return result.to_arrow_table()
    return result.fetch_arrow_table()
