# SPDX-License-Identifier: Apache-2.0
"""The sink that gives everything to several sinks."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any

import pyarrow as pa

from jax_dmi import errors
from jax_dmi.sinks import base


class TeeSink:
    """Gives every batch to several sinks, one after the other.

    One that fails does not keep the others from getting the batch; the first error
    is raised when all had it. A record counts as written when every sink took it.

    Example:
      >>> sink = TeeSink(ArrowSink("runs/demo"), CallbackSink(watch, select="loss"))

    Args:
      *sinks: The sinks, in the order in which they get a batch.
    """

    def __init__(self, *sinks: base.Sink) -> None:
        for sink in sinks:
            if not callable(getattr(sink, "write", None)):
                raise errors.DmiTypeError(
                    f"TeeSink got {sink!r}, which has no method write; give it sinks."
                )
        self._sinks = sinks
        self._is_open = False

    @property
    def path(self) -> str | None:
        """Where the run of the first sink that writes one can be opened."""
        paths = (getattr(sink, "path", None) for sink in self._sinks)
        return next((path for path in paths if path is not None), None)

    def open(self, run_info: base.RunInfo) -> None:
        """Opens all; if one fails, those before it are closed again."""
        with contextlib.ExitStack() as opened:
            for sink in self._sinks:
                sink.open(run_info)
                opened.callback(_close_quietly, sink)
            opened.pop_all()
        self._is_open = True

    def write(self, batch: base.Batch) -> None:
        """Gives a batch to every sink."""
        self._each(lambda sink: sink.write(batch))

    def write_many(self, batches: Sequence[base.Batch]) -> None:
        """Gives batches to every sink, together to those that can."""
        self._each(lambda sink: write_all(sink, batches))

    def note_accounting(self, account: Mapping[str, Any]) -> None:
        """Gives the account to the sinks that keep it."""
        self._each(lambda sink: _call(sink, "note_accounting", account))

    def note_timeline(self, timeline: pa.Table) -> None:
        """Gives the timeline to the sinks that keep it."""
        self._each(lambda sink: _call(sink, "note_timeline", timeline))

    def flush(self) -> None:
        """Flushes every sink."""
        self._each(lambda sink: sink.flush())

    def sync(self) -> None:
        """Syncs the sinks that can, and flushes the others."""
        self._each(
            lambda sink: sink.sync() if hasattr(sink, "sync") else sink.flush()  # pyright: ignore
        )

    def close(self) -> None:
        """Closes every sink, unless ``open`` failed and did so."""
        if self._is_open:
            self._each(lambda sink: sink.close())

    def _each(self, fn: Callable[[base.Sink], None]) -> None:
        failed: list[Exception] = []
        for sink in self._sinks:
            try:
                fn(sink)
            except Exception as error:  # A sink is the user's code.
                failed.append(error)
        if failed:
            first = failed[0]
            first.written = min(getattr(error, "written", 0) for error in failed)  # pyright: ignore
            raise first


def write_all(sink: base.Sink, batches: Sequence[base.Batch]) -> None:
    """Writes batches to a sink that may or may not take several at once.

    What is raised has the attribute ``written``.
    """
    write_many = getattr(sink, "write_many", None)
    if write_many is not None:
        write_many(batches)
        return
    failed: Exception | None = None
    written = 0
    for i, batch in enumerate(batches):
        try:
            sink.write(batch)
        except Exception as error:  # A sink is the user's code.
            if failed is None:
                failed, written = error, i
    if failed is not None:
        failed.written = written  # pyright: ignore
        raise failed


def _call(sink: base.Sink, method: str, *args: Any) -> None:
    fn = getattr(sink, method, None)
    if fn is not None:
        fn(*args)


def _close_quietly(sink: base.Sink) -> None:
    with contextlib.suppress(Exception):
        sink.close()
