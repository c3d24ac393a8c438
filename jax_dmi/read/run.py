# SPDX-License-Identifier: Apache-2.0
"""``open_run`` and ``Run``: a run directory as data."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import difflib
import functools
import os
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa

from jax_dmi import arguments
from jax_dmi import errors
from jax_dmi import records
from jax_dmi import selection
from jax_dmi.read import export
from jax_dmi.read import frames
from jax_dmi.read import loading
from jax_dmi.read import rows as run_rows
from jax_dmi.read import series
from jax_dmi.read import sql
from jax_dmi.read import timelines
from jax_dmi.read import verify

# Rows whose columns become Python numbers at once.
_CHUNK = 1024

Select = selection.Pattern | Iterable[selection.Pattern]


def open_run(path: str | os.PathLike[str]) -> Run:
    """Opens a run: one that is finished, being written, or was cut off.

    What is written at this moment is read; open it again for what comes later,
    which is fast for what was read before.

    Example:
      >>> run = dmi.open_run("runs/demo")
      >>> run["block/resid"].stack(layer=2).shape
      (200, 8, 64, 128)

    Args:
      path: Directory, or URI of ``pyarrow.fs``. Files that are not on this machine
        are copied to a temporary directory to read them.

    Raises:
      RunError: There is no run, or one of another version.
      DmiTypeError: ``path`` is no path.
    """
    text = arguments.path("path", path)
    return Run(text, loading.load(text))


class Run:
    """A run as it was when it was opened; made by ``open_run``.

    Rows that are damaged are left out; ``verify`` tells which.

    Attributes:
      path: Where it is.
    """

    def __init__(self, path: str, loaded: loading.Loaded) -> None:
        self.path = path
        self._loaded = loaded

    def __repr__(self) -> str:
        names = self.names()
        shown = ", ".join(map(repr, names[:8])) + (", ..." if names[8:] else "")
        return f"<Run {self.path!r}: {len(self)} records of {shown or 'nothing'}>"

    def __len__(self) -> int:
        return len(self._loaded.rows)

    @property
    def attrs(self) -> dict[str, Any]:
        """The ``attrs`` of the Monitor that wrote the run."""
        attrs = self._loaded.header.get("attrs")
        return dict(attrs) if isinstance(attrs, dict) else {}

    @functools.cached_property
    def _by_name(self) -> dict[str, np.ndarray]:
        """int64[n] rows by name, in the order of the run."""
        return frames.by_name(self._loaded.rows, self._loaded.descriptions)

    def names(self) -> list[str]:
        """Returns the names that have records, sorted."""
        return list(self._by_name)

    def sites(self) -> pa.Table:
        """Returns one row per site that has records, by name.

        Columns: name, kind, dtype, shape, labels, source, records, bytes, devices,
        first_step, last_step and id.
        """
        return frames.sites(self._loaded.rows, self._loaded.descriptions)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __getitem__(self, name: str) -> series.Series:
        """Returns the records of a name.

        Raises:
          UnknownNameError: There are none; the message lists close names.
        """
        rows = self._by_name.get(name)
        if rows is None:
            raise errors.UnknownNameError(self._unknown(name))
        return series.Series(name, self._loaded, rows)

    def _unknown(self, name: object) -> str:
        names = self.names()
        close = difflib.get_close_matches(str(name), names, n=5, cutoff=0.3)
        if not names:
            return f"{name!r} has no records: {self.path!r} has none at all."
        what = "close names are" if close else "there are"
        more = "" if close or len(names) <= 5 else f" and {len(names) - 5} more"
        listed = ", ".join(map(repr, close or names[:5]))
        return f"{name!r} has no records in {self.path!r}; {what} {listed}{more}."

    def select(
        self,
        pattern: Select | None = None,
        step: run_rows.Filter | None = None,
        layer: run_rows.Filter | None = None,
        device: run_rows.Filter | None = None,
    ) -> Iterator[records.Record]:
        """Returns records, by process, device and sequence.

        Example:
          >>> for record in run.select("block/*", step=range(10), layer=0):
          ...     print(record, record.numpy().mean())

        Args:
          pattern: What names have to match: a glob (case-sensitive, ``*`` matches
            ``/``), a compiled regular expression, a callable from name to bool, or
            a collection of these; None for all.
          step: A step, or a range or collection of steps.
          layer: A layer, or a range or collection of layers.
          device: A device id, or a collection of them.
        """
        return self._records(self._chosen(pattern, step, layer, device))

    def _chosen(
        self,
        pattern: Select | None,
        step: run_rows.Filter | None = None,
        layer: run_rows.Filter | None = None,
        device: run_rows.Filter | None = None,
    ) -> np.ndarray:
        """Returns int64[n], the numbers of rows."""
        sites = None
        if pattern is not None:
            patterns = selection.as_patterns(pattern)
            sites = [
                number
                for number, site in self._loaded.descriptions.sites.items()
                if selection.matches(patterns, site.name)
            ]
        return self._loaded.rows.where(sites, step, layer, device)

    def _records(self, chosen: np.ndarray) -> Iterator[records.Record]:
        for begin in range(0, len(chosen), _CHUNK):
            rows = self._loaded.rows.take(chosen[begin : begin + _CHUNK])
            yield from self._loaded.records(rows)

    # --- Everything at once --------------------------------------------------

    def table(self, payload: bool = False) -> pa.Table:
        """Returns one row per record, by process, device and sequence.

        Columns: process, device, replica, seq, name, kind, step, layer, labels (a
        struct with a field per label, if there are labels), boundary, time, time_ns,
        dtype, shape, global_shape and bytes.

        Args:
          payload: Whether to add the bytes, as ``large_binary``: of types below a
            byte packed, and with the padding of uneven shards.
        """
        loaded = self._loaded
        files = loaded.files if payload else None
        table = frames.frame(loaded.rows, loaded.descriptions, files)
        if payload:
            last = table.num_columns - 1
            column = table.column(last).cast(pa.large_binary())
            table = table.set_column(last, "payload", column)
        return table

    def sql(self, query: str) -> pa.Table:
        """Runs a query of SQL; needs the package duckdb.

        Example:
          >>> run.sql("select name, count(*) n from records group by name")

        Args:
          query: Of the dialect of DuckDB. The tables are ``records``, as ``table``
            returns it, and ``sites``. The column ``payload`` is there if the query
            names it.

        Raises:
          DmiValueError: The query is wrong.
          DmiError: There is no DuckDB.
        """
        return sql.query(query, self.table, self.sites)

    # --- The timeline --------------------------------------------------------

    def transfers(self) -> pa.Table:
        """Returns one row per transfer to the host, the newest of each device.

        Columns: process, device and the fields of ``Transfer``. Empty for a process
        that has not closed.
        """
        return timelines.read(self.path, "transfers")

    def boundaries(self) -> pa.Table:
        """Returns one row per boundary passed, the newest of each device.

        Columns: process, device, version (of the window pattern, 0 for none),
        counter, time_ns (UTC), and open: whether a window is open from there on,
        null where no pattern says. Empty for a process that has not closed.
        """
        return timelines.read(self.path, "boundaries")

    def windows(self) -> pa.Table:
        """Returns one row per device and window: what the windows learned.

        Columns: process, device, mode, version, period, link_bytes_per_second,
        window_index, begin, end, and the fields of ``WindowInfo``. Empty for a
        process that has not closed.
        """
        return timelines.read(self.path, "windows")

    # --- Checks and other formats --------------------------------------------

    def verify(self) -> verify.VerifyReport:
        """Reads the run once more, as it is now, and checks every byte of it.

        Example:
          >>> report = run.verify()
          >>> assert report.ok and report.closed, report

        Raises:
          RunError: There is no run any more.
        """
        return verify.verify(self.path)

    def export(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        select: Select | None = None,
        step: run_rows.Filter | None = None,
        shard_bytes: int | str = "512MiB",
    ) -> list[pathlib.Path]:
        """Writes records to files of another format, without holding them in memory.

        ``"parquet"``: a row per record, with the columns of ``table`` and the bytes.
        ``"safetensors"``: a tensor per record, named ``<name>@step=3,layer=1``.
        ``"npy"``: an array per name of stacked records, and an index. In all of
        them the bytes are those of ``Record.numpy()``. Parquet has the type in the
        column dtype; safetensors knows bf16 and fp8; for NumPy they are unsigned
        integers of the same width, and ``index.json`` tells how to view them.

        Example:
          >>> run.export("shards", "safetensors", select="block/resid")
          [PosixPath('shards/records-00000.safetensors')]

        Args:
          path: A directory that is empty, or does not exist.
          format: Which one.
          select: Patterns of the names to export, as in ``select``; None for all.
          step: A step, or a range or collection of steps.
          shard_bytes: Most payload bytes of a file.

        Returns:
          The files, in order.

        Raises:
          RunExistsError: There is something at ``path``.
          RunError: It cannot be written.
        """
        loaded = self._loaded
        rows = loaded.rows.take(self._chosen(select, step))
        source = export.Source(rows, loaded.descriptions, loaded.files)
        return export.export(source, path, format, shard_bytes)
