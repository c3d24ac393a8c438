# SPDX-License-Identifier: Apache-2.0
"""The sink thread: takes batches from the drains and writes them.

The only Python thread of a capture. It never calls JAX, and holds the memory of a
batch only while the sink writes it.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
import dataclasses
import functools
import threading
import time
import traceback
import weakref

from jax_dmi import _native
from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi.sinks import base

# So many waiting batches are written at once: each write gives up and takes back
# the interpreter lock, which a busy main thread makes slow.
_GROUP = 8
_POLL_SECONDS = 0.5
_ABANDON_SECONDS = 1.0


# Records and payload bytes by (device, site id).
Tally = dict[tuple[int, int], tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What the sink took and what it refused, by device and site."""

    written: Tally
    failed: Tally


def _add(tally: Tally, lease: _native.Batch) -> None:
    for site, records, size in lease.sites:
        before = tally.get((lease.device, site), (0, 0))
        tally[lease.device, site] = (before[0] + records, before[1] + size)


class SinkPump:
    """Moves batches from a queue into a sink, on a thread of its own.

    The control thread starts and stops it. ``wait`` and the counters may be used
    by any other thread.
    """

    def __init__(self, queue: _native.BatchQueue, sink: base.Sink) -> None:
        self._queue = queue
        self._sink = sink
        self._thread = threading.Thread(
            target=self._run, name="jax_dmi sink", daemon=True
        )
        self._changed = threading.Condition()
        self._handled: dict[int, int] = {}
        self._beats = 0
        self._abandoned = False
        self._written: Tally = {}
        self._failed: Tally = {}
        self.error: BaseException | None = None

    def start(self) -> None:
        """Starts the thread."""
        _started.add(self)
        self._thread.start()

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller runs on the sink thread."""
        return threading.current_thread() is self._thread

    def snapshot(self) -> Snapshot:
        """Returns the counters of one moment."""
        with self._changed:
            return Snapshot(dict(self._written), dict(self._failed))

    def wait(self, targets: dict[int, int], deadline: float) -> bool:
        """Waits until the sink has taken every record before the targets.

        Args:
          targets: Sequence number per device id.
          deadline: Time on the monotonic clock, in seconds.

        Returns:
          False if the deadline passed first.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: all(self._handled.get(d, 0) >= s for d, s in targets.items()),
                max(0.0, deadline - time.monotonic()),
            )

    def join(self, patience: float) -> bool:
        """Waits for the thread to write what is queued and end.

        Args:
          patience: Seconds to wait while no batch gets written.

        Returns:
          False if the sink made no progress for that long.
        """
        while self._thread.is_alive():
            beats = self._beats
            self._thread.join(patience)
            if self._thread.is_alive() and beats == self._beats:
                return False
        return True

    def abandon(self) -> None:
        """Ends the thread after the write it is in; what is queued stays there."""
        self._abandoned = True
        self._queue.close()
        if self._thread.is_alive():
            self._thread.join(_ABANDON_SECONDS)

    def call(self, fn: Callable[[], None]) -> None:
        """Runs an operation of the sink, latching what it raises."""
        try:
            fn()
        except BaseException as error:  # The sink is the user's code.
            self._latch(error)

    def _latch(self, error: BaseException) -> None:
        with self._changed:
            if self.error is None:
                self.error = error

    def _run(self) -> None:
        while not (self._queue.finished or self._abandoned):
            self._write(self._queue.pop(_GROUP, _POLL_SECONDS))
            self._beats += 1

    def _write(self, leases: list[_native.Batch]) -> None:
        if not leases:
            return
        # Nothing of a batch may be referenced any more once this returns: that is
        # what gives its memory back to the ring.
        write_many = getattr(self._sink, "write_many", None)
        if write_many is not None:
            self._attempt(leases, lambda: write_many([_batch(x) for x in leases]))
        else:
            for lease in leases:
                self._attempt([lease], lambda x=lease: self._sink.write(_batch(x)))

    def _attempt(self, leases: list[_native.Batch], write: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            write()
        # The sink is the user's code, and a thread that ended would lose all else.
        except BaseException as raised:
            if self.error is None:
                raised.add_note("".join(traceback.format_exception(raised)))
            error = _without_frames(raised)
        with self._changed:
            if error is not None and self.error is None:
                self.error = error
            done = len(leases) if error is None else getattr(error, "written", 0)
            for i, lease in enumerate(leases):
                _add(self._written if i < done else self._failed, lease)
                self._handled[lease.device] = lease.last_seq + 1
            self._changed.notify_all()


# An interpreter that shuts down ends daemon threads wherever they take its lock
# again; inside native code that aborts the process.
@atexit.register
def _abandon_all() -> None:
    for pump in list(_started):
        pump.abandon()


_started: weakref.WeakSet[SinkPump] = weakref.WeakSet()


def _without_frames(error: BaseException) -> BaseException:
    """Drops the tracebacks of an error: their frames hold the batches."""
    found: list[BaseException] = [error]
    for link in found:
        link.__traceback__ = None
        linked = (link.__cause__, link.__context__, *getattr(link, "exceptions", ()))
        found += [e for e in linked if e is not None and e not in found]
    return error


def _batch(lease: _native.Batch) -> base.Batch:
    """Wraps a native batch, with the descriptions of every id it uses."""
    return base.Batch(
        arrow=functools.partial(run_format.record_batch, lease),
        device=lease.device,
        sites=_described([site for site, *_ in lease.sites], _native.site_descriptor),
        layouts=_described(lease.layouts, _native.layout_descriptor),
        first_seq=lease.first_seq,
        last_seq=lease.last_seq,
        bytes=lease.bytes,
    )


def _described(ids: list[int], describe: Callable[[int], str | None]) -> dict[int, str]:
    found = {}
    for number in ids:
        descriptor = describe(number)
        if descriptor is None:
            raise errors.CaptureError(f"records carry the unknown id {number:#x}")
        found[number] = descriptor
    return found
