# SPDX-License-Identifier: Apache-2.0
"""A Monitor while programs are in flight: steps, flush, stats, close, memory.

Needs a GPU, or emulated kernels.
"""

from __future__ import annotations

import functools
import itertools
import threading

from absl.testing import absltest
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi import _native
from support import backend
from support import busy
from support import memory_sink

_STEPS = 6


@jax.jit
def _step(x, matrix):
    """Computes for a while and then records ``x + 1``."""
    x = dmi.record(x + busy.zero(matrix) + 1, "x")
    return x, busy.work(matrix)


class MonitorTest(absltest.TestCase):
    def test_steps_and_flush_keep_their_place_among_programs_in_flight(self):
        sink = memory_sink.MemorySink()
        in_flight = []
        with dmi.Monitor(sink=sink) as monitor:
            x, matrix = jnp.zeros(1000), busy.matrix()
            jax.block_until_ready(_step(x, matrix))
            for i in range(_STEPS):
                with monitor.step(i):
                    x, matrix = _step(x, matrix)
                in_flight.append(not matrix.is_ready())
            x, matrix = _step(x, matrix)
            monitor.flush()
            self.assertEqual(monitor.stats().written, _STEPS + 2)
            self.assertEqual(
                [r.step for r in sink.records], [None, *range(_STEPS), None]
            )
        values = [1, *range(1, _STEPS + 2)]
        for record, value in zip(sink.records, values):
            np.testing.assert_array_equal(record.value, np.full(1000, value))
        if backend.platform() == "cuda":
            self.assertIn(True, in_flight)

    def test_flush_sees_a_program_whose_result_nobody_holds(self):
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink) as monitor:
            x, matrix = jnp.zeros(1000), busy.matrix()
            for i in range(3):
                _step(x + i, matrix)
                monitor.flush()
                self.assertEqual(float(sink.records[-1].value[0]), i + 1)

    def test_stats_while_programs_run(self):
        sink = memory_sink.MemorySink()
        found, stop = [], threading.Event()
        with dmi.Monitor(sink=sink, ring_bytes="16KiB", batch_records=5) as monitor:

            def look():
                while not stop.is_set():
                    found.append(monitor.stats())

            thread = threading.Thread(target=look)
            thread.start()
            try:
                x, matrix = jnp.zeros(200), busy.matrix()
                for _ in range(20):
                    x, matrix = _step(x, matrix)
                monitor.flush()
            finally:
                stop.set()
                thread.join(60)
            self.assertFalse(thread.is_alive())
            found.append(monitor.stats())
        self.assertEqual((found[-1].recorded, found[-1].written), (20, 20))
        for before, after in itertools.pairwise(found):
            self.assertLessEqual(before.recorded, after.recorded)
            self.assertLessEqual(before.written, after.written)
        for stats in found:
            self.assertGreaterEqual(stats.pending, 0, stats)
            self.assertEqual(stats.recorded, stats.written + stats.pending, stats)

    def test_close_waits_for_programs_that_run(self):
        for _ in range(3):
            sink = memory_sink.MemorySink()
            monitor = dmi.Monitor(sink=sink, ring_bytes="16KiB").start()
            x, matrix = jnp.zeros(1000), busy.matrix()
            for _ in range(_STEPS):
                x, matrix = _step(x, matrix)
            monitor.close()
            self.assertEqual(monitor.stats().written, _STEPS)
            self.assertEqual(monitor.stats().dropped, {})
            self.assertEqual(
                [float(r.value[0]) for r in sink.records], list(range(1, _STEPS + 1))
            )

    # Which of the records are before the end nobody can say; each is counted.
    def test_close_while_another_thread_dispatches(self):
        sink = memory_sink.MemorySink()
        x = jnp.zeros(100)
        with dmi.Monitor(sink=memory_sink.MemorySink()):

            def body(x, _):
                return dmi.record(x + 1, "x"), None

            program = (
                jax.jit(lambda x: lax.scan(body, x, None, length=50)[0])
                .lower(x)
                .compile()
            )
        closed = functools.partial(_native.control_losses, jax.devices()[0].id)
        before = closed().get("closed", 0)
        monitor = dmi.Monitor(sink=sink, ring_bytes="4KiB").start()
        runs, stop = 0, threading.Event()

        def work():
            nonlocal runs
            while not stop.is_set():
                jax.block_until_ready(program(x))
                runs += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            while monitor.stats().recorded < 200:
                pass
            monitor.close()
        finally:
            stop.set()
            thread.join(60)
        self.assertFalse(thread.is_alive())
        lost = closed()["closed"] - before
        self.assertEqual(len(sink.records) + lost, 50 * runs)
        self.assertEqual([r.seq for r in sink.records], list(range(len(sink.records))))

    def test_a_ring_that_does_not_fit_names_the_share_of_the_pool(self):
        if backend.platform() == "cuda":
            # What XLA keeps for itself is more than what it leaves.
            size = jax.devices()[0].memory_stats()["bytes_limit"]
        else:
            size = 9 << 30  # The emulated device has 8 GiB.
        size = min(size, _native.limits()["ring_bytes"])
        with self.assertRaisesRegex(
            dmi.CaptureError, "(?s)ring_bytes.*XLA_PYTHON_CLIENT_MEM_FRACTION"
        ):
            dmi.Monitor(sink=memory_sink.MemorySink(), ring_bytes=size).start()
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink):
            dmi.record(jnp.ones(3), "after")
        self.assertLen(sink.records, 1)


if __name__ == "__main__":
    absltest.main()
