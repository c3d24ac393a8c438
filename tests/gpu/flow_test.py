# SPDX-License-Identifier: Apache-2.0
"""Full rings, programs at once, and callbacks beside records, through the kernels.

Needs a GPU, or emulated kernels.
"""

from __future__ import annotations

from concurrent import futures
import functools
import threading

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax.experimental import io_callback
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from support import memory_sink

_SECONDS = 60
_SIZE = 1024  # Values of a record, 4 KiB.
_COUNT = 200  # Records of a program, many times the ring.
_SMALL = {"ring_bytes": "64KiB", "batch_records": 8}


@jax.jit
def _counting(x):
    """Records the first whole numbers."""

    def body(x, _):
        return dmi.record(x + 1, "x"), None

    return lax.scan(body, x, None, length=_COUNT)[0]


def _balanced(stats):
    return stats.recorded == (
        stats.written + sum(stats.dropped.values()) + stats.pending
    )


class FlowTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # A full ring may hold up the thread that dispatches.
        self.pool = futures.ThreadPoolExecutor(4)
        self.addCleanup(self.pool.shutdown, wait=False)

    def dispatch(self, program, *args):
        return self.pool.submit(lambda: jax.block_until_ready(program(*args)))

    def assertIncreasing(self, records, name="x"):
        """Values of one program come in order, each at most once, and whole."""
        values = [r.value for r in records if r.name == name]
        for value in values:
            np.testing.assert_array_equal(value, np.full(value.shape, value[0]))
        firsts = [float(value[0]) for value in values]
        self.assertEqual(firsts, sorted(set(firsts)))
        self.assertEqual([r.seq for r in records], list(range(len(records))))
        return firsts

    def test_a_full_ring_that_blocks_makes_the_device_wait_and_loses_nothing(self):
        sink = memory_sink.GateSink()
        with dmi.Monitor(sink=sink, stall_timeout=_SECONDS, **_SMALL) as monitor:
            running = self.dispatch(_counting, jnp.zeros(_SIZE))
            self.assertTrue(sink.entered.wait(_SECONDS))
            stats = monitor.stats()
            self.assertFalse(running.done())
            self.assertLess(stats.recorded, _COUNT)
            self.assertTrue(_balanced(stats), stats)
            sink.gate.set()
            self.assertEqual(running.result(_SECONDS)[0], _COUNT)
            monitor.flush()
            self.assertEqual(monitor.stats().dropped, {})
        self.assertEqual(
            self.assertIncreasing(sink.records), [float(i + 1) for i in range(_COUNT)]
        )

    # A stream queues about a thousand launches. The thread that adds one more waits
    # inside the driver, for the device, which waits for the drain, which needs the
    # driver too.
    def test_more_launches_than_a_stream_queues_behind_a_full_ring(self):
        count = 3000

        def body(x, _):
            return dmi.record(x + 1, "x"), None

        program = jax.jit(lambda x: lax.scan(body, x, None, length=count)[0])
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink, stall_timeout=5, **_SMALL) as monitor:
            running = self.dispatch(program, jnp.zeros(_SIZE))
            self.assertEqual(running.result(_SECONDS)[0], count)
            monitor.flush()
            self.assertEqual(monitor.stats().dropped, {})
        self.assertEqual(
            self.assertIncreasing(sink.records), [float(i + 1) for i in range(count)]
        )

    def test_a_full_ring_that_drops_counts_what_it_drops(self):
        sink = memory_sink.GateSink()
        with dmi.Monitor(sink=sink, overflow="drop", **_SMALL) as monitor:
            self.dispatch(_counting, jnp.zeros(_SIZE)).result(_SECONDS)
            stats = monitor.stats()
            self.assertGreater(stats.dropped["overflow"], _COUNT // 2)
            self.assertTrue(_balanced(stats), stats)
            sink.gate.set()
            monitor.flush()
            stats = monitor.stats()
        self.assertEqual((stats.recorded, stats.pending), (_COUNT, 0))
        self.assertLen(self.assertIncreasing(sink.records), stats.written)
        self.assertEqual(stats.written + stats.dropped["overflow"], _COUNT)

    def test_a_spent_stall_budget_lets_the_device_go_on(self):
        sink = memory_sink.GateSink()
        monitor = dmi.Monitor(sink=sink, stall_timeout=0.2, **_SMALL).start()
        self.dispatch(_counting, jnp.zeros(_SIZE)).result(_SECONDS)
        sink.gate.set()
        with self.assertRaisesRegex(dmi.CaptureError, "stall_timeout=0.2"):
            monitor.close()
        stats = monitor.stats()
        self.assertEqual((stats.recorded, stats.pending), (_COUNT, 0))
        self.assertGreater(stats.dropped["stalled"], 0)
        self.assertLen(self.assertIncreasing(sink.records), stats.written)

    # The hazard of the sharp-bits page: the program waits for the sink, and the
    # sink for a callback of the program.
    @parameterized.named_parameters(
        ("io_callback", lambda f, x: io_callback(f, None, x)),
        ("debug_callback", jax.debug.callback),
    )
    def test_a_sink_that_waits_for_a_callback_is_waited_for_once(self, call):
        called = threading.Event()

        class Sink(memory_sink.MemorySink):
            def write(self, batch):
                called.wait(_SECONDS)
                super().write(batch)

        @jax.jit
        def program(x):
            x = _counting(x)
            call(lambda _: called.set(), x[0])
            return x

        sink = Sink()
        monitor = dmi.Monitor(sink=sink, stall_timeout=0.5, **_SMALL).start()
        running = self.dispatch(program, jnp.zeros(_SIZE))
        self.assertEqual(running.result(_SECONDS)[0], _COUNT)
        self.assertTrue(called.wait(_SECONDS))
        with self.assertRaisesRegex(dmi.CaptureError, "stall_timeout=0.5"):
            monitor.close()
        stats = monitor.stats()
        self.assertEqual((stats.recorded, stats.pending), (_COUNT, 0))
        self.assertEqual(stats.written + stats.dropped["stalled"], _COUNT)
        self.assertLen(self.assertIncreasing(sink.records), stats.written)

    def test_programs_of_several_threads_at_once(self):
        threads, runs, links = 3, 40, 4

        def chain(x, run, thread):
            for i in range(links):
                x = dmi.record(x + 1, f"thread{thread}", step=run, layer=i)
            return x

        def work(thread):
            program = jax.jit(functools.partial(chain, thread=thread))
            x = jnp.full(100 + 1000 * thread, 0.0)
            for run in range(runs):
                x = program(x, run)
            return jax.block_until_ready(x)

        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink, ring_bytes="256KiB", stall_timeout=_SECONDS):
            working = [self.pool.submit(work, thread) for thread in range(threads)]
            for done in working:
                done.result(_SECONDS)
        self.assertLen(sink.records, threads * runs * links)
        for thread in range(threads):
            name = f"thread{thread}"
            self.assertEqual(
                self.assertIncreasing(sink.records, name),
                [float(i + 1) for i in range(runs * links)],
            )
            self.assertEqual(
                [(r.step, r.layer) for r in sink.records if r.name == name],
                [(run, i) for run in range(runs) for i in range(links)],
            )


if __name__ == "__main__":
    absltest.main()
