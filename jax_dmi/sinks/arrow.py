# SPDX-License-Identifier: Apache-2.0
"""The sink that writes a run directory: segments of Arrow, and a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import os
import threading
import time
from typing import Any

import pyarrow as pa

from jax_dmi import arguments
from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import timeline as run_timeline
from jax_dmi.sinks import base
from jax_dmi.sinks import claim
from jax_dmi.sinks import files
from jax_dmi.sinks import ipc
from jax_dmi.sinks import segments
from jax_dmi.sinks import storage


class ArrowSink:
    """Writes a run that ``jax_dmi.open_run`` reads, also while it is written.

    Batches go to a local file straight from the ring, several with one system
    call, and are visible to readers at once. In an object store a segment is
    visible when it is sealed, which ``flush`` does there. A write that fails costs
    at most the batch in flight: the segment ends before it, and the batch is tried
    once more in a new one.

    Safe to use from several threads.

    Args:
      uri: Directory, or any URI that ``pyarrow.fs`` knows, such as
        ``s3://bucket/runs/demo?region=eu-central-1``.
      exist: ``"error"`` refuses a run that exists, ``"new"`` takes the next free
        name: ``<run>-2``, ``<run>-3``, ...
      segment_bytes: A segment is sealed when it has so many bytes,
      segment_seconds: or at the first batch after so many seconds.
      seal_on_flush: Whether ``flush`` seals; by default where readers see nothing
        before.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        exist: str = "error",
        segment_bytes: int | str = "1GiB",
        segment_seconds: float | None = None,
        seal_on_flush: bool | None = None,
    ) -> None:
        self._uri = storage.absolute(arguments.path("uri", uri))
        self._exist = arguments.choice("exist", exist, ("error", "new"))
        self._segment_bytes = arguments.size("segment_bytes", segment_bytes)
        self._segment_seconds = (
            None
            if segment_seconds is None
            else arguments.seconds("segment_seconds", segment_seconds)
        )
        self._seal_on_flush = seal_on_flush
        self._lock = threading.Lock()
        self._path: str | None = None
        self._state = "new"

    @property
    def path(self) -> str | None:
        """Where the run is; known once ``open`` returned."""
        return self._path

    def open(self, run_info: base.RunInfo) -> None:
        """Creates the run, or joins the one that process 0 created.

        Raises:
          RunExistsError: The run exists and ``exist="error"``.
          RunError: It cannot be written there.
        """
        with self._lock:
            if self._state == "open":
                raise errors.StateError("this sink writes a run; make one per Monitor.")
            self._path, self._place = claim.claim(self._uri, self._exist, run_info)
            self._info = run_info
            self._folder = run_format.process_dir(run_info.process)
            self._writers: dict[int, segments.SegmentWriter] = {}
            self._manifest: dict[str, Any] = {"closed": False, "segments": []}
            self._unsaved = True
            self._unsynced: set[str] = set()
            self._failures: list[str] = []
            if self._seal_on_flush is None:
                self._seal_on_flush = self._place.seals_on_flush
            self._state = "open"
            self._save()
            self._raise_failures()

    # --- Writing -------------------------------------------------------------

    def write(self, batch: base.Batch) -> None:
        """Writes a batch."""
        self.write_many([batch])

    def write_many(self, batches: Sequence[base.Batch]) -> None:
        """Writes batches, those of one device that follow each other at once.

        Raises:
          RunError: A batch could not be written, not in a new segment either. The
            attribute ``written`` is how many batches from the front are safe.
        """
        with self._lock:
            self._check_open("write")
            done = 0
            for device, group in itertools.groupby(batches, lambda b: b.device):
                run = list(group)
                try:
                    self._writer(device).write(run)
                except OSError as error:
                    raise self._failure(error, done) from error
                done += len(run)
            self._save()

    def _failure(self, error: OSError, done: int) -> errors.RunError:
        self._save()
        failure = errors.RunError(
            f"records cannot be written to {self._shown}: {storage.reason(error)}."
            " Later ones are tried again."
        )
        failure.written = done + getattr(error, "written", 0)  # pyright: ignore
        return failure

    @property
    def _shown(self) -> str:
        return repr(storage.shown(self._path or self._uri))

    def _check_open(self, method: str) -> None:
        if self._state != "open":
            raise errors.StateError(
                f"ArrowSink.{method} needs an open sink; this one is {self._state}."
            )

    def _writer(self, device: int) -> segments.SegmentWriter:
        writer = self._writers.get(device)
        if writer is None:
            writer = self._writers[device] = segments.SegmentWriter(
                lambda number: self._create(device, number),
                lambda number: self._header(device, number),
                self._segment_bytes,
                self._sealed,
            )
        segment = writer.open_segment
        if segment is not None and self._is_old(segment):
            writer.seal()
        return writer

    def _is_old(self, segment: segments.Segment) -> bool:
        return (
            self._segment_seconds is not None
            and time.monotonic() - segment.opened >= self._segment_seconds
        )

    def _create(self, device: int, number: int) -> tuple[str, files.SegmentFile]:
        name = run_format.segment_path(self._info.process, device, number)
        return name, self._place.segment(name)

    def _header(self, device: int, number: int) -> bytes:
        info = self._info
        schema = run_format.segment_schema(info.process, device, number, info.nonce)
        return ipc.encode_schema(schema)

    # --- The manifest --------------------------------------------------------

    def _sealed(self, segment: segments.Segment, error: OSError | None) -> None:
        self._unsaved = True
        if error is None or segment.file.keeps_unsealed:
            self._manifest["segments"].append(segment.entry())
            self._unsynced.add(segment.name)
            return
        lost = segments.lost_by(segment)
        self._manifest.setdefault("lost", []).append(lost)
        self._failures.append(
            f"{lost['records']} records of device {lost['device']}, from number"
            f" {lost['first_seq']} on, are lost with {segment.name}:"
            f" {storage.reason(error)}"
        )

    def _save(self) -> None:
        """Writes the manifest if it changed; if that fails, it is tried again."""
        if not self._unsaved:
            return
        name = f"{self._folder}/{run_format.MANIFEST_FILE}"
        try:
            self._place.replace(name, claim.encoded(self._manifest))
        except OSError as error:
            self._unsaved_because = storage.reason(error)
            return
        self._unsaved = False
        self._unsynced.add(name)

    def _raise_failures(self) -> None:
        problems, self._failures = self._failures, []
        if self._unsaved:
            problems.append(f"its manifest cannot be written: {self._unsaved_because}")
        if problems:
            raise errors.RunError(f"the run {self._shown}: {'; '.join(problems)}")

    def note_accounting(self, account: Mapping[str, Any]) -> None:
        """Puts what was recorded and dropped into the manifest."""
        with self._lock:
            self._check_open("note_accounting")
            self._manifest.update(account)
            self._unsaved = True

    def note_timeline(self, timeline: pa.Table) -> None:
        """Writes when data moved; ``close`` raises if that cannot be written."""
        with self._lock:
            self._check_open("note_timeline")
            name = run_format.timeline_path(self._info.process)
            try:
                self._place.replace(name, run_timeline.encoded(timeline))
            except OSError as error:
                self._failures.append(
                    f"{name} cannot be written: {storage.reason(error)}"
                )
            else:
                self._unsynced.add(name)

    # --- Ends ----------------------------------------------------------------

    def flush(self, fsync: bool = False) -> None:
        """Makes everything written visible to readers.

        Args:
          fsync: Whether it has to survive a power failure too.

        Raises:
          RunError: Something could not be written, or is lost.
        """
        with self._lock:
            self._check_open("flush")
            if self._seal_on_flush:
                self._seal_all()
            self._save()
            names = self._to_sync() if fsync else set()
            self._raise_failures()
        # Syncing takes long; writing goes on meanwhile.
        if names:
            self._sync(names)

    def sync(self) -> None:
        """As ``flush``, and what is written survives a power failure."""
        self.flush(fsync=True)

    def _to_sync(self) -> set[str]:
        growing = {
            writer.open_segment.name
            for writer in self._writers.values()
            if writer.open_segment is not None
        }
        names = self._unsynced
        self._unsynced = set(growing)
        return names | growing

    def _sync(self, names: set[str]) -> None:
        try:
            self._place.sync(names)
        except OSError as error:
            with self._lock:
                self._unsynced |= names
            raise errors.RunError(
                f"the run {self._shown} cannot be synced: {storage.reason(error)}"
            ) from error

    def _seal_all(self) -> None:
        for writer in self._writers.values():
            writer.seal()

    def close(self) -> None:
        """Seals every segment and marks the run closed.

        Raises:
          RunError: Something could not be written, or is lost.
        """
        with self._lock:
            if self._state != "open":
                return
            self._state = "closed"
            self._seal_all()
            self._manifest["closed"] = True
            self._unsaved = True
            self._save()
            self._raise_failures()
