# SPDX-License-Identifier: Apache-2.0
"""``open_run`` and ``Run``: a run directory as data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
import difflib
import fnmatch
import functools
import os
import re
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import records
from jax_dmi.read import index as run_index
from jax_dmi.read import segments
from jax_dmi.read import series
from jax_dmi.read import tables

Filter = int | range | Collection[int]


def open_run(path: str | os.PathLike[str]) -> Run:
    """Opens a run: one that is finished, being written, or was cut off.

    What is written at this moment is read; open it again for what comes later.

    Example:
      >>> run = dmi.open_run("runs/demo")
      >>> run["block/resid"].stack(layer=2).shape
      (200, 8, 64, 128)

    Args:
      path: Directory, or URI of ``pyarrow.fs``.

    Raises:
      RunError: There is no run.
    """
    text = os.fspath(path)
    filesystem, root = _locate(text)
    header = segments.load_json(filesystem, f"{root}/{run_format.RUN_FILE}")
    found = list(segments.find(filesystem, root))
    if header is None and not found:
        raise errors.RunError(f"{text!r} holds no run; name the directory of one.")
    version = (header or {}).get("format", run_format.VERSION)
    if version != run_format.VERSION:
        raise errors.RunError(
            f"{text!r} has format {version}, this version reads"
            f" {run_format.VERSION}; read it with the version that wrote it."
        )
    for segment in found:
        segments.read(segment, filesystem, root)
    return Run(text, filesystem, root, header or {}, found)


def _locate(path: str) -> tuple[fs.FileSystem, str]:
    try:
        if re.match(r"[a-z][a-z0-9+.-]*://", path):
            filesystem, root = fs.FileSystem.from_uri(path)
        else:
            filesystem, root = fs.LocalFileSystem(), os.path.abspath(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise errors.RunError(f"{path!r} cannot be opened: {error}") from error
    return filesystem, root.rstrip("/")


class Run:
    """A run as it was when it was opened; made by ``open_run``."""

    def __init__(
        self,
        path: str,
        filesystem: fs.FileSystem,
        root: str,
        header: Mapping[str, Any],
        found: list[segments.Segment],
    ) -> None:
        self.path = path
        self._filesystem = filesystem
        self._root = root
        self._header = header
        self._segments = found

    def __repr__(self) -> str:
        return f"<Run {self.path!r}: {len(self.index)} records, {self.names()}>"

    @property
    def attrs(self) -> dict[str, Any]:
        """The ``attrs`` of the Monitor that wrote the run."""
        return dict(self._header.get("attrs", {}))

    @functools.cached_property
    def index(self) -> run_index.Index:
        """The columns of all rows."""
        return run_index.build(self._segments)

    @functools.cached_property
    def descriptions(self) -> records.Descriptions:
        """The sites and layouts of the run."""
        found = records.Descriptions()
        for segment in self._segments:
            found.add(segment.sites, segment.layouts)
        return found

    @property
    def _sites(self) -> Mapping[int, run_format.SiteInfo]:
        return self.descriptions.sites

    def site(self, number: int) -> run_format.SiteInfo:
        """Returns the description of a site id.

        Raises:
          RunError: The run does not describe it: a file is damaged.
        """
        try:
            return self._sites[int(number)]
        except KeyError:
            raise errors.RunError(
                f"site {int(number):#x} is not described in {self.path!r}; see verify()"
            ) from None

    def layout(self, number: int) -> run_format.LayoutInfo | None:
        """Returns the description of a layout id, None for a single device."""
        return self.descriptions.layouts.get(int(number))

    def names(self) -> list[str]:
        """Returns the names that have records, sorted."""
        present = np.unique(self.index.site)
        return sorted({self.site(number).name for number in present})

    def sites(self) -> pa.Table:
        """Returns one row per site: name, kind, dtype, shape, records, and so on."""
        return tables.sites(self)

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __getitem__(self, name: str) -> series.Series:
        """Returns the records of a name.

        Raises:
          UnknownNameError: There are none; the message lists close names.
        """
        numbers = [number for number, s in self._sites.items() if s.name == name]
        rows = self.index.where(sites=numbers)
        if not len(rows):
            names = self.names()
            close = difflib.get_close_matches(name, names, n=5, cutoff=0.3) or names[:5]
            raise errors.UnknownNameError(
                f"{name!r} has no records in {self.path!r}; there are: "
                + ", ".join(map(repr, close))
            )
        return series.Series(self, name, rows)

    def rows(
        self,
        pattern: str | re.Pattern[str] | None = None,
        step: Filter | None = None,
        layer: Filter | None = None,
        device: Filter | None = None,
    ) -> np.ndarray:
        """Returns int64[n], the index rows that ``select`` yields."""
        sites = None
        if pattern is not None:
            sites = [n for n, s in self._sites.items() if _matches(pattern, s.name)]
        return self.index.where(sites, step, layer, device)

    def select(
        self,
        pattern: str | re.Pattern[str] | None = None,
        step: Filter | None = None,
        layer: Filter | None = None,
        device: Filter | None = None,
    ) -> Iterator[records.Record]:
        """Yields records by process, device and sequence.

        Args:
          pattern: Glob or compiled regular expression of names; None for all.
          step: A step, or a range or collection of steps.
          layer: A layer, or a range or collection of layers.
          device: A device id, or a collection.
        """
        return map(self.record, self.rows(pattern, step, layer, device))

    def record(self, i: int) -> records.Record:
        """Returns the record in a row of the index."""
        index = self.index
        payloads = index.payloads(int(index.batch[i]))
        row = int(index.row[i])
        if not payloads.sound[row]:
            raise errors.RunError(
                f"record {int(index.seq[i])} of device {int(index.device[i])} points"
                " outside its file; see verify()"
            )
        site = self.site(index.site[i])
        columns = (
            int(index.seq[i]),
            int(index.site[i]),
            int(index.layout[i]),
            int(index.step[i]),
            int(index.layer[i]),
            index.words(i) if site.labels else (),
            int(index.boundary[i]),
            int(index.time[i]),
            int(index.has_step[i]) * run_format.HAS_STEP
            + int(index.has_layer[i]) * run_format.HAS_LAYER,
        )
        process, device = int(index.process[i]), int(index.device[i])
        return records.build(
            self.descriptions, columns, payloads[row], process, device
        )

    def table(self, payload: bool = False) -> pa.Table:
        """Returns one row per record, with names and labels spelled out.

        Args:
          payload: Whether to add the bytes, as ``large_binary``.
        """
        return tables.records(self, payload)


def _matches(pattern: str | re.Pattern[str], name: str) -> bool:
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern.search(name) is not None
