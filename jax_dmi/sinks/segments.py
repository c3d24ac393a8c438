# SPDX-License-Identifier: Apache-2.0
"""Segments: the files that hold the records of one device, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import time
from typing import Any

import numpy as np

from jax_dmi import _native
from jax_dmi import format as run_format
from jax_dmi.sinks import base
from jax_dmi.sinks import files
from jax_dmi.sinks import ipc

# Bytes of the column `check` that wait to be digested at once.
_MOST_CHECKS = 1 << 20


class Segment:
    """One Arrow stream that is being written."""

    def __init__(self, name: str, file: files.SegmentFile, header: bytes) -> None:
        """Starts the stream.

        Args:
          name: Path relative to the run.
          file: An empty file.
          header: Message of the schema.

        Raises:
          OSError: The header could not be written.
        """
        self.name = name
        self.file = file
        self.opened = time.monotonic()
        self._described: set[tuple[bytes, int]] = set()
        self._entry: dict[str, Any] = {"file": name, "records": 0, "check": 0}
        self._checks = bytearray()
        file.append([ipc.Message([header], len(header))])

    @property
    def is_empty(self) -> bool:
        """Whether no batch is in the file."""
        return not self._entry["records"]

    def append(self, batches: Sequence[base.Batch], limit: int) -> int:
        """Appends batches until the file reaches ``limit`` bytes.

        Returns:
          The number of batches that are in the file now.

        Raises:
          OSError: As ``SegmentFile.append``; ``entry`` counts the whole batches.
        """
        messages: list[ipc.Message] = []
        described = set(self._described)
        size = self.file.size
        for batch in batches:
            if size >= limit and messages:
                break
            metadata = _new_descriptions(batch, described)
            messages.append(ipc.encode(batch.record_batch, metadata))
            size += messages[-1].size
        before = self.file.messages
        try:
            self.file.append(messages)
        finally:
            for batch in batches[: self.file.messages - before]:
                self._count(batch)
        self._described = described
        return len(messages)

    def _count(self, batch: base.Batch) -> None:
        entry = self._entry
        entry["device"] = batch.device
        entry.setdefault("first_seq", batch.first_seq)
        entry["last_seq"] = batch.last_seq
        entry["records"] += batch.record_batch.num_rows
        self._checks += batch.record_batch.column("check").to_numpy().data
        if len(self._checks) >= _MOST_CHECKS:
            self._digest()

    def _digest(self) -> None:
        # Seldom, because it gives up the interpreter lock.
        checks = np.frombuffer(self._checks, np.uint8)
        self._entry["check"] = _native.crc32c(checks, self._entry["check"])
        self._checks = bytearray()

    def entry(self) -> dict[str, Any]:
        """Returns what the manifest tells of the segment."""
        self._digest()
        return {**self._entry, "bytes": self.file.size}


def _new_descriptions(
    batch: base.Batch, described: set[tuple[bytes, int]]
) -> dict[bytes, str]:
    """Returns what a message has to describe, and adds it to ``described``."""
    metadata = {}
    for key, table in (
        (run_format.META_SITES, batch.sites),
        (run_format.META_LAYOUTS, batch.layouts),
    ):
        new = {i: text for i, text in table.items() if (key, i) not in described}
        described.update((key, i) for i in new)
        if new:
            metadata[key] = run_format.descriptions(new)
    return metadata


class SegmentWriter:
    """Writes the batches of one device into segments.

    Not for several threads at a time.
    """

    def __init__(
        self,
        create: Callable[[int], tuple[str, files.SegmentFile]],
        header: Callable[[int], bytes],
        limit: int,
        sealed: Callable[[Segment, OSError | None], None],
    ) -> None:
        """Prepares; files are made when there is something to write.

        Args:
          create: Makes the file of a segment by number; returns its name as well.
          header: Makes the first message of a segment by number.
          limit: A segment of this many bytes is sealed.
          sealed: Called with every segment that holds batches when it is closed,
            and with the error if it could not be sealed.
        """
        self._create = create
        self._header = header
        self._limit = limit
        self._sealed = sealed
        self._number = 0
        self._current: Segment | None = None

    @property
    def open_segment(self) -> Segment | None:
        """The segment that is being written."""
        return self._current

    def write(self, batches: Sequence[base.Batch]) -> None:
        """Writes batches; one that fails is tried once more in a new segment.

        Raises:
          OSError: A batch failed twice. Its attribute ``written`` is the number of
            batches that are safe.
        """
        done = 0
        retried = False
        while done < len(batches):
            count, error = self._attempt(batches[done:])
            done += count
            if error is None:
                continue
            # Behind a torn batch nothing can be read, so the file ends before it.
            self.seal()
            if retried and not count:
                error.written = done  # pyright: ignore[reportAttributeAccessIssue]
                raise error
            retried = True

    def _attempt(self, batches: Sequence[base.Batch]) -> tuple[int, OSError | None]:
        """Writes some batches; returns how many, and why not more if it failed."""
        segment = self._current
        before = 0
        try:
            if segment is None:
                segment = self._current = self._begin()
            before = segment.file.messages
            count = segment.append(batches, self._limit)
        except OSError as error:
            count = segment.file.messages - before if segment is not None else 0
            return count, error.with_traceback(None)
        if segment.file.size >= self._limit:
            self.seal()
        return count, None

    def _begin(self) -> Segment:
        while True:
            try:
                name, file = self._create(self._number)
                break
            except FileExistsError:
                self._number += 1
        try:
            return Segment(name, file, self._header(self._number))
        except OSError:
            file.discard()
            raise

    def seal(self) -> None:
        """Ends the current segment, if there is one; a failure is reported on."""
        segment, self._current = self._current, None
        if segment is None:
            return
        if segment.is_empty:
            segment.file.discard()
            return
        self._number += 1
        error = None
        try:
            segment.file.seal()
        except OSError as raised:
            error = raised.with_traceback(None)
        self._sealed(segment, error)


def lost_by(segment: Segment) -> Mapping[str, Any]:
    """Returns what is gone with a segment that its store did not keep."""
    entry = segment.entry()
    return {key: entry[key] for key in ("device", "first_seq", "last_seq", "records")}
