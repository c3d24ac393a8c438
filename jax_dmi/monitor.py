# SPDX-License-Identifier: Apache-2.0
"""The Monitor: owns a capture from its start to its last written byte."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import threading
import time
from typing import Any
import warnings

import jax
import numpy as np

from jax_dmi import _compat
from jax_dmi import arguments
from jax_dmi import errors
from jax_dmi import run_control
from jax_dmi import session
from jax_dmi import settings
from jax_dmi import sinks
from jax_dmi import spec as capture_spec
from jax_dmi import stats
from jax_dmi import window_control

_active_lock = threading.Lock()
_active: Monitor | None = None


class Monitor(run_control.RunControl, window_control.WindowControl):
    """Captures what the programs of this process record, into a run.

    While a Monitor is active, every ``record`` in every program of every thread
    goes through the ring of its device to the sink. One per process can be active.

    Example:
      >>> with dmi.Monitor("runs/demo", select="block/*") as monitor:
      ...     for i in range(steps):
      ...         with monitor.step(i):
      ...             state = train_step(state)

    Args:
      run: Directory or ``pyarrow.fs`` URI of the run; None with an explicit sink.
      select: Patterns of the names to record: globs (case-sensitive, ``*`` matches
        ``/``), compiled regular expressions, or callables from name to bool.
      every: Record one of so many ambient steps.
      warmup: Record nothing in the first so many ambient steps.
      exact: Whether no transformation of JAX may drop a record; False keeps jit's
        fast dispatch and may lose records of sub-programs that nobody uses.
      replicas: ``"first"`` or ``"all"``: which copies of a replicated value.
      ring_bytes: Payload bytes of the ring, per device. A record may hold half.
      ring_slots: Records the ring can hold, per device.
      staging_bytes: Host staging per device, by default ``ring_bytes``, at least half
        of that; unused where the host is the device.
      batch_bytes: A batch is cut at so many bytes,
      batch_records: or so many records,
      linger: or when its oldest record waited so many seconds.
      segment_bytes: Files are sealed at this size.
      overflow: ``"block"`` makes a program wait for space in the ring, ``"drop"``
        drops and counts the record.
      stall_timeout: Seconds a ring may wait in all while nothing is freed, after
        which it drops and counts, and ``close`` raises.
      checksum: Whether payloads carry a crc32c.
      sink: Where records go; by default an ``ArrowSink`` on ``run``.
      windows: A ``WindowPattern`` or ``WindowConfig``: when transfers may run.
      devices: Local devices to capture on; all by default.
      link: A ``SimulatedLink`` to reach the devices through.
      exist: ``"error"`` refuses a run that exists, ``"new"`` takes the next name.
      attrs: JSON data to keep with the run.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        select: Any = ("*",),
        every: int = 1,
        warmup: int = 0,
        exact: bool = True,
        replicas: str = "first",
        ring_bytes: int | str = "256MiB",
        ring_slots: int = 65536,
        staging_bytes: int | str | None = None,
        batch_bytes: int | str = "16MiB",
        batch_records: int = 4096,
        linger: float = 0.2,
        segment_bytes: int | str = "1GiB",
        overflow: str = "block",
        stall_timeout: float = 10.0,
        checksum: bool = True,
        sink: sinks.Sink | None = None,
        windows: Any = None,
        devices: Sequence[jax.Device] | None = None,
        link: Any = None,
        exist: str = "error",
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        ring = arguments.size(
            "ring_bytes", ring_bytes, least=128, most=arguments.MOST_RING_BYTES
        )
        config, pattern = settings.window_settings(windows)
        self._settings = settings.Settings(
            spec=capture_spec.CaptureSpec(
                select=select,
                exact=bool(exact),
                replicas=replicas,
                size_limit=ring // 2,
            ),
            every=arguments.count("every", every, least=1),
            warmup=arguments.count("warmup", warmup, least=0),
            ring_bytes=ring,
            ring_slots=arguments.count(
                "ring_slots", ring_slots, least=2, most=arguments.MOST_RING_SLOTS
            ),
            staging_bytes=arguments.size(
                "staging_bytes",
                ring if staging_bytes is None else staging_bytes,
                least=ring // 2 if link is not None else 1,
            ),
            batch_bytes=arguments.size("batch_bytes", batch_bytes),
            batch_records=arguments.count(
                "batch_records",
                batch_records,
                least=1,
                most=arguments.MOST_BATCH_RECORDS,
            ),
            linger=arguments.seconds("linger", linger),
            segment_bytes=arguments.size("segment_bytes", segment_bytes),
            overflow=arguments.choice("overflow", overflow, ("block", "drop")),
            stall_timeout=arguments.seconds("stall_timeout", stall_timeout),
            checksum=bool(checksum),
            exist=arguments.choice("exist", exist, ("error", "new")),
            attrs=arguments.json_object("attrs", attrs),
            windows=config,
            pattern=pattern,
            link=settings.link(link),
        )
        self._sink = session.sink_of(run, sink, self._settings)
        self._asked_devices = devices
        self._lock = threading.RLock()
        self._state = "new"
        self._pid = os.getpid()
        self._stepping: threading.Thread | None = None
        self._stepped = False
        self._flushed = (0, 0, 0)

    # --- Life ----------------------------------------------------------------

    def start(self) -> Monitor:
        """Begins to capture; ``with`` does it for you.

        Raises:
          StateError: Another Monitor is active, this one was started before, or
            the call is inside a traced function.
          RunExistsError: The run exists and ``exist="error"``.
        """
        global _active
        self._check_untraced("start")
        with _active_lock:
            if self._state != "new":
                raise errors.StateError(
                    f"this Monitor is {self._state}; make a new one for another run."
                )
            if _active is not None:
                raise errors.StateError(
                    f"a Monitor on {_active.path or 'a sink'} is active; close it"
                    " first: one captures per process."
                )
            devices = settings.local_devices(self._asked_devices)
            self._session = session.Session(self._settings, self._sink, devices)
            self._session.start()
            _active = self
            self._state = "active"
        return self

    def close(self) -> None:
        """Ends the capture after everything recorded so far is written.

        Idempotent. What could be saved is saved before anything is raised.

        Raises:
          CaptureError: The sink failed, a ring spent its stall budget, or the sink
            made no progress; the first failure is named.
        """
        global _active
        self._check_process()
        self._check_thread("close")
        with self._lock:
            if self._state != "active":
                self._state = "closed"
                return
            self._state = "closing"
            try:
                self._session.end()
            finally:
                self._state = "closed"
                with _active_lock:
                    if _active is self:
                        _active = None
            self._warn()
        self._raise_failures()

    def _warn(self) -> None:
        s = self._settings
        if (s.every > 1 or s.warmup > 0) and not self._stepped:
            warnings.warn(
                f"every={s.every}, warmup={s.warmup} had no effect: they count the"
                " steps of `with monitor.step(i)`, which was never entered.",
                stacklevel=4,
            )
        lost = capture_spec.never_lowered(s.spec)
        if lost:
            shown = "; ".join(map(str, lost[:3])) + ("; ..." if lost[3:] else "")
            warnings.warn(
                f"{len(lost)} records were traced but reached no program, so nothing"
                f" was recorded there: {shown}. See stats().never_lowered.",
                stacklevel=4,
            )

    def _raise_failures(self) -> None:
        error = self._session.pump.error
        problems = list(filter(None, self._session.accounts.failures()))
        if error is not None:
            problems.insert(0, f"the sink failed: {type(error).__name__}: {error}")
        if self._session.hung:
            problems.append(
                f"the sink made no progress for {session.SINK_PATIENCE:.0f} s"
            )
        dropped = self.stats().dropped
        if dropped.get("stalled"):
            problems.append(
                f"a ring stayed full for stall_timeout={self._settings.stall_timeout} s"
                " or kept other devices waiting for four times as long"
            )
        if problems:
            lost = f"; dropped: {dropped}" if dropped else ""
            raise errors.CaptureError("; ".join(problems) + lost) from error

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            self.close()
        except errors.DmiError as failure:
            if error is None:
                raise
            # The error of the body is what the user has to see.
            error.add_note(f"jax_dmi: closing the Monitor failed too: {failure}")

    # --- Steps ---------------------------------------------------------------

    @contextlib.contextmanager
    def step(self, step: int):
        """Sets the step of the records of programs dispatched inside.

        Never waits for a device. Records with a ``step=`` of their own keep it;
        ``every`` and ``warmup`` look at this one.

        Args:
          step: Number of the step.

        Raises:
          StateError: Another step is open, in whatever thread.
        """
        self._check_active("step")
        self._check_untraced("step")
        number = arguments.count("step", step, least=-(2**63), most=2**63 - 1)
        with self._lock:
            if self._stepping is not None:
                raise errors.StateError(
                    f"step({number}) while another step is open in thread"
                    f" {self._stepping.name!r}; give records of other threads step=."
                )
            self._stepping = threading.current_thread()
        self._stepped = True
        try:
            self._session.set_step(number, self._settings.records_step(number))
            yield
        finally:
            # Another thread may enter only once this step is over.
            try:
                if self._state == "active":
                    self._session.set_step(None, True)
            finally:
                self._stepping = None

    # --- Results -------------------------------------------------------------

    @property
    def path(self) -> str | None:
        """Where the run is; None for a sink without a place."""
        path = getattr(self._sink, "path", None)
        return None if path is None else str(path)

    def flush(
        self, timeout: float = 60.0, wait: Any = None, fsync: bool = False
    ) -> stats.FlushResult:
        """Waits until every record of the programs dispatched so far is written.

        Covers the programs of this thread, all programs of several devices, and
        all whose results are alive or in ``wait``. Not covered: a program on one
        device that another thread dispatched and whose results are gone.

        Args:
          timeout: Seconds to wait.
          wait: Results of further programs to wait for.
          fsync: Whether to force files to the disk.

        Returns:
          What was written since the flush before.

        Raises:
          FlushTimeoutError: It took longer; records may still be written later.
          CaptureError: The sink or a drain failed.
        """
        self._check_active("flush")
        begin = time.monotonic()
        deadline = begin + arguments.seconds("timeout", timeout)
        self._session.flush(deadline, wait, fsync)
        return self._since_last_flush(time.monotonic() - begin)

    def _since_last_flush(self, seconds: float) -> stats.FlushResult:
        now = self.stats()
        totals = (now.written, now.bytes, sum(now.dropped.values()))
        before, self._flushed = self._flushed, totals
        moved = [a - b for a, b in zip(totals, before)]
        return stats.FlushResult(*moved, seconds=seconds)

    def stats(self) -> stats.MonitorStats:
        """Returns the account so far; also after close."""
        self._check_started("stats")
        return self._session.accounts.stats(self._settings.spec)

    def transfers(self) -> list[stats.Transfer]:
        """Returns the newest transfers to the host, oldest first per device."""
        self._check_started("transfers")
        return self._session.accounts.transfers()

    def boundaries(self, device: jax.Device | int | None = None) -> np.ndarray:
        """Returns int64[n, 2]: counter and UTC time in ns of the newest boundaries.

        Args:
          device: Which device; by default the first one captured.
        """
        self._check_started("boundaries")
        return self._session.accounts.boundaries(self._numbers(device)[0])

    # --- Guards --------------------------------------------------------------

    def _check_started(self, method: str) -> None:
        self._check_process()
        if self._state == "new":
            raise errors.StateError(f"Monitor.{method} needs a started Monitor.")

    def _check_active(self, method: str) -> None:
        self._check_process()
        self._check_thread(method)
        if self._state != "active":
            raise errors.StateError(
                f"Monitor.{method} needs an active Monitor; this one is {self._state}."
            )

    def _check_thread(self, method: str) -> None:
        if self._state != "new" and self._session.pump.is_current_thread:
            raise errors.StateError(
                f"Monitor.{method} from the sink thread would wait for itself."
            )

    def _check_untraced(self, method: str) -> None:
        if _compat.tracing():
            raise errors.StateError(
                f"Monitor.{method} inside a traced function would run once, at trace"
                " time; use it around the call of the jitted function."
            )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise errors.StateError(
                "this Monitor belongs to the parent process; a forked child records"
                " nothing."
            )


def _close_at_exit() -> None:
    monitor = _active
    if monitor is None or monitor._pid != os.getpid():
        return
    try:
        monitor.close()
    except errors.DmiError as error:
        warnings.warn(f"closing the Monitor at exit: {error}", stacklevel=2)


# Registered after jax was imported, so it runs before jax tears its backends down.
atexit.register(_close_at_exit)
