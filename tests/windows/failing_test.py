# SPDX-License-Identifier: Apache-2.0
"""Links that fail, sinks that hold on, and captures that end in between."""

from __future__ import annotations

import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp

import jax_dmi as dmi
from support import memory_sink

_PATTERN = dmi.WindowPattern(period=2, windows=[(1, 2)])


@jax.jit
def _step(x):
    x = dmi.open_window(x)
    x = dmi.record(x + 1, "row")
    return dmi.close_window(x)


def _rows(sink):
    return [float(record.value[0]) for record in sink.records]


class FailingLinkTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        links = []
        native = dmi.SimulatedLink.native

        def kept(config):
            links.append(native(config))
            return links[-1]

        self.links = links
        self.enter_context(mock.patch.object(dmi.SimulatedLink, "native", kept))

    @parameterized.parameters(None, _PATTERN)
    def test_everyone_who_waits_is_told(self, pattern):
        sink = memory_sink.MemorySink()
        monitor = dmi.Monitor(
            sink=sink,
            ring_bytes="4KiB",
            stall_timeout=100.0,
            windows=pattern,
            link=dmi.SimulatedLink(200e6),
        ).start()
        x = _step(jnp.zeros(256))
        monitor.flush()
        self.links[0].fail_after(0)
        begin = time.monotonic()
        for _ in range(20):  # Until the ring is full, and beyond.
            x = _step(x)
        with self.assertRaisesRegex(dmi.CaptureError, "link failed"):
            monitor.flush()
        with monitor.paused_transfers():
            pass
        with self.assertRaisesRegex(dmi.CaptureError, "link failed"):
            monitor.close()
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(_rows(sink), [1.0])
        stats = monitor.stats()
        self.assertEqual(stats.recorded, 21)
        self.assertEqual(
            stats.written + sum(stats.dropped.values()) + stats.pending, 21
        )


class EndsTest(parameterized.TestCase):
    # All of staging is held when the capture ends, and for a while after.
    def test_close_waits_for_a_sink_that_holds_on(self):
        sink = memory_sink.GateSink()
        monitor = dmi.Monitor(
            sink=sink,
            ring_bytes="4KiB",
            staging_bytes="2KiB",
            batch_records=1,
            linger=0.0,
            link=dmi.SimulatedLink(200e6),
        ).start()
        x = jnp.zeros(256)
        for _ in range(6):
            x = _step(x)
        x.block_until_ready()
        self.assertTrue(sink.entered.wait(20))
        closer = threading.Thread(target=monitor.close)
        closer.start()
        closer.join(0.3)
        self.assertTrue(closer.is_alive())
        sink.gate.set()
        closer.join(60)
        self.assertFalse(closer.is_alive())
        self.assertEqual(_rows(sink), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        self.assertEqual(monitor.stats().pending, 0)

    @parameterized.parameters("suspended", "paused", "both")
    def test_a_capture_may_end_while(self, state):
        sink = memory_sink.MemorySink()
        monitor = dmi.Monitor(
            sink=sink,
            ring_bytes="64KiB",
            windows=_PATTERN,
            link=dmi.SimulatedLink(200e6),
        ).start()
        x = _step(jnp.zeros(256))
        if state != "paused":
            monitor.suspend_windows()
        if state != "suspended":
            monitor.pause_transfers()
        for _ in range(5):
            x = _step(x)
        monitor.close()
        self.assertEqual(_rows(sink), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    def test_a_pattern_shows_while_transfers_are_paused(self):
        with dmi.Monitor(
            sink=memory_sink.MemorySink(),
            windows=dmi.WindowConfig(),
            link=dmi.SimulatedLink(200e6),
        ) as monitor:
            with monitor.paused_transfers():
                monitor.define_window_pattern(_PATTERN)
                self.assertEqual(monitor.window_state().version, 1)
                monitor.suspend_windows()
                self.assertEqual(monitor.window_state().mode, "suspended")
                monitor.resume_windows()
                self.assertEqual(monitor.window_state().mode, "active")


if __name__ == "__main__":
    absltest.main()
