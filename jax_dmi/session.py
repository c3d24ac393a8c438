# SPDX-License-Identifier: Apache-2.0
"""A session: everything that lives from the start of a capture to its end.

    rings and drains, one per device  ->  queue  ->  pump  ->  sink

The Monitor decides what is allowed when; the session does it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import importlib.metadata
import os
import secrets
import time
from typing import Any

import jax

from jax_dmi import _compat
from jax_dmi import _native
from jax_dmi import accounts
from jax_dmi import arguments
from jax_dmi import errors
from jax_dmi import joining
from jax_dmi import ops
from jax_dmi import pauses
from jax_dmi import pump
from jax_dmi import settings
from jax_dmi import sinks
from jax_dmi import spec as capture_spec
from jax_dmi import switches
from jax_dmi import window_versions
from jax_dmi.ops import control

# How long the end of a session waits for a sink that makes no progress, and for
# programs that are still running.
SINK_PATIENCE = 30.0
_PROGRAM_PATIENCE = 60.0


class Session:
    """One capture on some devices into one sink.

    Made and ended by the thread that owns the Monitor; ``flush`` may be called by
    any thread but the sink's.
    """

    def __init__(
        self,
        chosen: settings.Settings,
        sink: sinks.Sink,
        devices: tuple[jax.Device, ...],
    ) -> None:
        ops.register()
        _check_devices(chosen, devices)
        self.settings = chosen
        self.devices = devices
        self.hung = False
        self._sink = sink
        self._queue = _native.BatchQueue()
        self._captures = {
            device.id: self._capture(chosen, device) for device in devices
        }
        self.pump = pump.SinkPump(self._queue, sink)
        self.accounts = accounts.Accounts(self._captures, self.pump)
        self.switches = switches.Switches(self._captures, self._set_gates)
        self.pauses = pauses.Pauses(self._pause, self._resume)
        self.windows: window_versions.WindowVersions | None = None
        if chosen.windows is not None:
            self.windows = window_versions.WindowVersions(
                self._captures, self._settle, self._quiesced
            )

    def _capture(self, s: settings.Settings, device: jax.Device) -> _native.Capture:
        try:
            return self._native_capture(s, device)
        except RuntimeError as error:
            hint = ""
            if "cudaErrorMemoryAllocation" in str(error):
                share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")
                hint = (
                    f" A ring of ring_bytes={s.ring_bytes} lies on the device beside"
                    " the pool of XLA, which takes"
                    f" XLA_PYTHON_CLIENT_MEM_FRACTION={share} of its memory; lower one"
                    " of the two."
                )
            raise errors.CaptureError(f"no ring on {device}: {error}.{hint}") from error

    def _native_capture(
        self, s: settings.Settings, device: jax.Device
    ) -> _native.Capture:
        return _native.Capture(
            platform=device.platform,
            ordinal=_compat.handler_ordinal(device),
            device=device.id,
            ring_bytes=s.ring_bytes,
            ring_slots=s.ring_slots,
            overflow=s.overflow,
            stall_seconds=s.stall_timeout,
            checksum=s.checksum,
            batch_bytes=s.batch_bytes,
            batch_records=s.batch_records,
            linger_seconds=s.linger,
            queue=self._queue,
            staging_bytes=s.staging_bytes,
            link=None if s.link is None else s.link.native(),
            clock=None if s.link is None else s.link.clock,
            windows=None if s.windows is None else s.windows.native(),
        )

    def start(self) -> None:
        """Opens the sink and lets records in."""
        control.prepare_fences(self.devices)
        for device in jax.local_devices():
            self._select(device)
        try:
            joining.open_sink(self._sink, _run_info(self.settings, self.devices))
            self.pump.start()
            for capture in self._captures.values():
                capture.start()
            self.switches.start()
            if self.windows is not None and self.settings.pattern is not None:
                self.windows.define(self.settings.pattern, self._captures)
            capture_spec.install(self.settings.spec)
        except BaseException:
            # An interrupt, or a thread too many: nobody else ends what has begun.
            capture_spec.install(None)
            self._end_threads()
            self.pump.call(self._sink.close)
            raise

    def _select(self, device: jax.Device) -> None:
        """Tells a device whether its records count."""
        ordinal = _compat.handler_ordinal(device)
        left_out = device not in self.devices
        try:
            _native.deselect(device.platform, ordinal, device.id, left_out)
        except RuntimeError as error:
            raise errors.CaptureError(f"{device} does not answer: {error}") from error

    def end(self) -> None:
        """Waits for programs, writes what was recorded, and frees the rings.

        What goes wrong is latched in the pump and the accounts.
        """
        capture_spec.install(None)
        self.pauses.end()
        try:
            with contextlib.suppress(errors.FlushTimeoutError):
                self.wait_for_programs(time.monotonic() + _PROGRAM_PATIENCE, None)
        finally:
            self._write_rest()

    def _end_threads(self) -> None:
        """Hands the sink what the rings hold and ends every thread."""
        for capture in self._captures.values():
            capture.stop()
        self.switches.end()
        self._queue.close()
        self.hung = not self.pump.join(SINK_PATIENCE)
        self.accounts.freeze()
        if self.windows is not None:
            self.windows.freeze()
        # Not cleared: other threads may be reading it.
        self._captures = {}

    def _write_rest(self) -> None:
        """Writes what the rings hold and ends every thread, come what may."""
        self._end_threads()
        if self.hung:
            return
        self._note("note_accounting", self.accounts.for_manifest)
        self._note("note_timeline", self._timeline)
        self.pump.call(self._sink.flush)
        self.pump.call(self._sink.close)

    def _timeline(self) -> Any:
        if self.windows is None:
            return self.accounts.timeline({}, {})
        return self.accounts.timeline(self.windows.patterns(), self.windows.states())

    def _note(self, method: str, what: Callable[[], Any]) -> None:
        """Tells the sink, if it wants to know."""
        note = getattr(self._sink, method, None)
        if note is not None:
            self.pump.call(lambda: note(what()))

    def set_step(self, step: int | None, recording: bool) -> None:
        """Sets the ambient step for the programs dispatched from now on."""
        control.set_step(self.devices, step, recording, False)
        if len(self.devices) == 1:
            return
        if _native.multi_device_site_seen():
            control.set_step(self.devices, step, recording, True)
        else:
            # No program of several devices ever recorded, so none is in flight
            # that the step could overtake.
            for capture in self._captures.values():
                capture.set_multi_device_step(step or 0, step is not None, recording)

    def _set_gates(self, changes: list[tuple[int, bool]]) -> None:
        control.set_gates(self.devices, changes, False)
        if len(self.devices) > 1:
            control.set_gates(self.devices, changes, True)

    def _pause(self) -> None:
        for capture in self._captures.values():
            capture.pause()

    def _resume(self) -> None:
        for capture in self._captures.values():
            capture.resume()

    def _settle(self) -> None:
        self.wait_for_programs(time.monotonic() + _PROGRAM_PATIENCE, None)

    @contextlib.contextmanager
    def _quiesced(self) -> Iterator[None]:
        """Everything recorded before is written, and nothing moves inside."""
        self.flush(time.monotonic() + _PROGRAM_PATIENCE, None, False)
        token = self.pauses.pause()
        try:
            yield
        finally:
            self.pauses.resume(token)

    def wait_for_programs(self, deadline: float, wait: Any) -> None:
        """Waits for what was dispatched before, see ``Monitor.flush``."""
        fences = control.dispatch_fences(self.devices)
        pending = [*jax.tree.leaves((fences, wait)), *jax.live_arrays()]
        if not control.wait_ready(pending, deadline):
            raise errors.FlushTimeoutError(
                "programs dispatched before are still running; allow more time."
            )

    def flush(self, deadline: float, wait: Any, fsync: bool) -> None:
        """Waits until everything recorded so far is written and visible."""
        self.wait_for_programs(deadline, wait)
        captures = self._captures
        targets = {device: capture.reserved for device, capture in captures.items()}
        queued = {
            device: min(capture.seal(max(0.0, deadline - time.monotonic())), target)
            for (device, target), capture in zip(targets.items(), captures.values())
        }
        if not self.pump.wait(queued, deadline) or queued != targets:
            for failure in filter(None, self.accounts.failures()):
                raise errors.CaptureError(failure)
            pending = self.accounts.stats(self.settings.spec).pending
            raise errors.FlushTimeoutError(
                f"the flush ended with {pending} records on their way; allow more"
                " time or look at the sink."
            )
        self.pump.call(self._sync if fsync else self._sink.flush)
        if self.pump.error is not None:
            error = self.pump.error
            raise errors.CaptureError(
                f"the sink failed: {type(error).__name__}: {error}"
            ) from error

    def _sync(self) -> None:
        getattr(self._sink, "sync", self._sink.flush)()


def _check_devices(s: settings.Settings, devices: tuple[jax.Device, ...]) -> None:
    """Raises where the settings and the devices do not go together."""
    if all(device.platform == "cpu" for device in devices):
        return
    if s.link is not None:
        raise errors.DmiValueError(
            f"link={s.link!r} simulates the way from a device to the host; {devices[0]}"
            " has a real one. Leave link out, or capture on CPU devices."
        )
    if s.staging_bytes < s.ring_bytes // 2:
        raise errors.DmiValueError(
            f"staging_bytes={s.staging_bytes} holds less than the largest record, half"
            f" of ring_bytes={s.ring_bytes}; make it at least that."
        )


def sink_of(run: Any, sink: sinks.Sink | None, s: settings.Settings) -> sinks.Sink:
    """Returns the sink a Monitor was given, or one on its run.

    Raises:
      DmiError: Both or neither were given, or they cannot be used.
    """
    if (run is None) == (sink is None):
        raise errors.DmiValueError(
            f"run={run!r} with sink={sink!r}; give a run directory or a sink."
        )
    if sink is not None:
        lacks = [
            method
            for method in ("open", "write", "flush", "close")
            if isinstance(sink, type) or not callable(getattr(sink, method, None))
        ]
        if lacks:
            raise errors.DmiTypeError(
                f"sink={sink!r} is no sink: it cannot {', '.join(lacks)}; use an"
                " object with the methods of jax_dmi.sinks.Sink."
            )
        return sink
    path = arguments.path("run", run)
    return sinks.ArrowSink(path, exist=s.exist, segment_bytes=s.segment_bytes)


def _run_info(s: settings.Settings, devices: tuple[jax.Device, ...]) -> sinks.RunInfo:
    return sinks.RunInfo(
        path=None,
        process=jax.process_index(),
        process_count=jax.process_count(),
        attrs=s.attrs,
        devices=tuple(device.id for device in devices),
        created_ns=time.time_ns(),
        nonce=secrets.token_hex(8),
        versions={
            name: importlib.metadata.version(name)
            for name in ("jax", "jaxlib", "pyarrow")
        },
    )
