# SPDX-License-Identifier: Apache-2.0
"""A capture in virtual time: real records, ring, drain and windows, a manual clock.

The capture has no thread of its own; this one passes boundaries when a schedule
says so and gives the drain its turns when it asked for them, and shortly after
every boundary. So what comes out is a matter of the code, not of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi import _compat
from jax_dmi import _native
from jax_dmi import spec as capture_spec

_WAKE = 20_000  # ns from a boundary to the drain's turn


class VirtualCapture:
    """One device behind a simulated link, always with more to record.

    Args:
      schedule: Nanoseconds from boundary ``counter`` to the next one.
      config: Windows, or None for ordinary batching.
      bytes_per_second: Of the link.
      jitter: Of the link, uniform.
      record_bytes: Bytes per record.
      ring_bytes: Bytes of the ring.
    """

    def __init__(
        self,
        schedule: Callable[[int], float],
        config: dmi.WindowConfig | None,
        *,
        bytes_per_second: float = 1e8,
        jitter: float = 0.0,
        record_bytes: int = 16 << 10,
        ring_bytes: int = 16 << 20,
    ) -> None:
        self._schedule = schedule
        self.clock = _native.ManualClock()
        self.link = _native.SimulatedLink(
            bytes_per_second=bytes_per_second,
            latency_seconds=10e-6,
            jitter=jitter,
            seed=0,
            clock=self.clock,
        )
        self._queue = _native.BatchQueue()
        self._device = jax.local_devices()[0]
        self._capture = _native.Capture(
            platform="cpu",
            ordinal=_compat.handler_ordinal(self._device),
            device=self._device.id,
            ring_bytes=ring_bytes,
            ring_slots=65536,
            overflow="block",
            stall_seconds=1e6,
            checksum=True,
            batch_bytes=16 << 20,
            batch_records=4096,
            linger_seconds=0.2,
            queue=self._queue,
            staging_bytes=ring_bytes,
            link=self.link,
            clock=self.clock,
            windows=None if config is None else config.native(),
        )
        self._ring_bytes, self._record_bytes = ring_bytes, record_bytes
        self._taken = 0
        self._made = 0
        self._burst = max(1, ring_bytes // 8 // record_bytes)
        self._program = self._recording()
        self.boundaries = [0]
        self._next_boundary = int(schedule(0))
        self._next_turn = 0

    def __enter__(self) -> VirtualCapture:
        self._capture.start(thread=False)
        return self

    def __exit__(self, *_: Any) -> None:
        self._capture.stop()

    def install(self, pattern: dmi.WindowPattern) -> None:
        """Puts a pattern in force."""
        self._capture.install_pattern(1, pattern.native(), 0, False)

    def _recording(self) -> Any:
        count = self._burst

        def body(i, base):
            row = jnp.arange(self._record_bytes // 4, dtype=jnp.uint32) * 7 + base + i
            dmi.record(row, "row")
            return i + 1, None

        def burst(base):
            return jax.lax.scan(
                lambda i, _: body(i, base), jnp.uint32(0), None, length=count
            )[0]

        return jax.jit(burst)

    def _fill(self) -> None:
        waiting = (self._made - self._taken) * self._record_bytes
        while waiting + 2 * self._burst * self._record_bytes < self._ring_bytes:
            spec = capture_spec.CaptureSpec(exact=False)
            with capture_spec.overriding(spec):
                self._program(np.uint32(self._made)).block_until_ready()
            self._made += self._burst
            waiting += self._burst * self._record_bytes

    def _take(self) -> None:
        """Checks every record that came out, and lets go of it."""
        for batch in self._queue.pop(1000, 0.0):
            assert batch.first_seq == self._taken, "a record is missing or came twice"
            rows = np.frombuffer(batch.payload, np.uint32)
            rows = rows.reshape(-1, self._record_bytes // 4)
            numbers = np.arange(self._taken, self._taken + len(rows), dtype=np.uint32)
            row = np.arange(rows.shape[1], dtype=np.uint32) * 7
            assert (rows == row + numbers[:, None]).all(), "bytes changed on the way"
            self._taken = batch.last_seq + 1

    def run(self, boundaries: int) -> None:
        """Runs until so many more boundaries have passed."""
        end = len(self.boundaries) + boundaries
        while len(self.boundaries) < end:
            now = min(self._next_boundary, self._next_turn)
            self.clock.advance(max(0, now - self.clock.now()))
            if now == self._next_boundary:
                self._capture.advance_boundary()
                self.boundaries.append(now)
                self._next_boundary = now + int(
                    self._schedule(len(self.boundaries) - 1)
                )
                self._next_turn = min(self._next_turn, now + _WAKE)
            if now >= self._next_turn:
                self._fill()
                self._next_turn = now + max(1000, self._capture.turn())
                self._take()

    def transfers(self) -> np.ndarray:
        """Returns int64[n, 4]: begin, end, bytes, counter at the begin."""
        offset = self._capture.clock_offset
        return np.array(
            [
                (t[0] - offset, t[1] - offset, t[2], t[7])
                for t in self._capture.transfers()
            ],
            np.int64,
        ).reshape(-1, 4)

    def state(self) -> _native.WindowState:
        """Returns what the windows learned."""
        return self._capture.window_state()
