# SPDX-License-Identifier: Apache-2.0
"""Nothing is lost uncounted: rings, policies, failing sinks, and the books."""

from __future__ import annotations

import threading
import time

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from support import memory_sink

_80_BYTES = 20


def _scan(length, size=_80_BYTES):
    """Records ``carry + 1`` so many times."""

    @jax.jit
    def program(x):
        def body(carry, _):
            return dmi.record(carry + 1, "carry"), None

        return jax.lax.scan(body, x, None, length=length)[0]

    return lambda begin=0: program(jnp.full(size, float(begin), jnp.float32))


def _balanced(stats):
    return stats.recorded == (
        stats.written + sum(stats.dropped.values()) + stats.pending
    )


class AccountingTest(parameterized.TestCase):
    def test_a_tiny_ring_that_blocks_loses_nothing(self):
        count = 10_000
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink, ring_bytes=256, stall_timeout=60.0) as monitor:
            _scan(count)().block_until_ready()
        self.assertLen(sink.records, count)
        for i, record in enumerate(sink.records):
            self.assertEqual(record.seq, i)
            np.testing.assert_array_equal(record.value, np.full(_80_BYTES, i + 1.0))
        stats = monitor.stats()
        self.assertEqual((stats.written, stats.dropped, stats.pending), (count, {}, 0))

    def test_four_producers_of_uneven_sizes_lose_nothing(self):
        sizes, count = (3, 20, 111, 250), 300
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink, ring_bytes=4096, stall_timeout=60.0):

            def produce(size):
                _scan(count, size)(1000 * size).block_until_ready()

            threads = [threading.Thread(target=produce, args=(s,)) for s in sizes]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
        self.assertEqual([r.seq for r in sink.records], list(range(4 * count)))
        for size in sizes:
            mine = [r.value for r in sink.records if r.value.size == size]
            expected = [np.full(size, 1000.0 * size + i + 1) for i in range(count)]
            np.testing.assert_array_equal(mine, expected)

    @parameterized.parameters("8KiB", "64KiB", "1MiB")
    def test_a_training_loop_is_recorded_value_by_value(self, ring_bytes):
        @jax.jit
        def step(w, x):
            loss, grad = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
            grad = dmi.record(grad, "grad")
            loss = dmi.record(loss, "loss")
            return w - 0.01 * grad, loss, grad

        sink = memory_sink.MemorySink()
        w = jnp.ones((16, 16)) / 16
        losses, grads = [], []
        with dmi.Monitor(sink=sink, ring_bytes=ring_bytes, exact=False) as monitor:
            for i in range(300):
                with monitor.step(i):
                    w, loss, grad = step(w, jnp.full((4, 16), 0.01 * i))
                losses.append(np.asarray(loss))
                grads.append(np.asarray(grad))
        for name, returned in (("loss", losses), ("grad", grads)):
            mine = [r for r in sink.records if r.name == name]
            self.assertEqual([r.step for r in mine], list(range(300)))
            np.testing.assert_array_equal([r.value for r in mine], returned)

    def test_drop_counts_exactly_what_it_drops(self):
        sink = memory_sink.GateSink()
        with dmi.Monitor(sink=sink, ring_bytes=1024, overflow="drop") as monitor:
            _scan(500)().block_until_ready()
            stats = monitor.stats()
            self.assertGreater(stats.dropped["overflow"], 400)
            self.assertTrue(_balanced(stats))
            sink.gate.set()
            monitor.flush()
            stats = monitor.stats()
        self.assertEqual(stats.recorded, 500)
        self.assertEqual(stats.pending, 0)
        self.assertTrue(_balanced(stats))
        self.assertLen(sink.records, stats.written)
        self.assertEqual(stats.by_site["carry"].dropped, stats.dropped)
        self.assertEqual(stats.by_device[0].dropped, stats.dropped)

    def test_a_spent_stall_budget_lets_the_device_go_on_and_close_raises(self):
        sink = memory_sink.GateSink()
        monitor = dmi.Monitor(sink=sink, ring_bytes=1024, stall_timeout=0.2).start()
        begin = time.monotonic()
        _scan(500)().block_until_ready()
        self.assertLess(time.monotonic() - begin, 10.0)
        sink.gate.set()
        with self.assertRaisesRegex(dmi.CaptureError, "stall_timeout=0.2"):
            monitor.close()
        stats = monitor.stats()
        self.assertEqual(stats.recorded, 500)
        self.assertGreater(stats.dropped["stalled"], 0)
        self.assertTrue(_balanced(stats))
        self.assertLen(sink.records, stats.written)

    def test_half_the_ring_is_accepted_and_more_is_refused(self):
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink, ring_bytes=4096):
            dmi.record(jnp.zeros(2048, jnp.int8), "half")
            with self.assertRaisesRegex(ValueError, "2049.*2048"):
                dmi.record(jnp.zeros(2049, jnp.int8), "more")
        self.assertEqual([r.name for r in sink.records], ["half"])

    def test_a_program_compiled_under_a_larger_ring_counts_too_large(self):
        x = jnp.zeros(4096, jnp.int8)
        with dmi.Monitor(sink=memory_sink.MemorySink(), ring_bytes="1MiB"):
            compiled = jax.jit(lambda x: dmi.record(x, "x")).lower(x).compile()
            compiled(x)
        with dmi.Monitor(sink=memory_sink.MemorySink(), ring_bytes=4096) as monitor:
            compiled(x)
            monitor.flush()
            self.assertEqual(monitor.stats().dropped, {"too_large": 1})

    def test_records_after_close_are_counted(self):
        x = jnp.zeros(8)
        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            compiled = jax.jit(lambda x: dmi.record(x, "x")).lower(x).compile()
            compiled(x)
        for _ in range(3):
            compiled(x).block_until_ready()
        stats = monitor.stats()
        self.assertEqual(stats.recorded, 4)
        self.assertEqual(stats.dropped, {"closed": 3})

    def test_one_failed_write_loses_its_batch_and_is_raised(self):
        sink = memory_sink.GateSink(opened=True, errors=[OSError("bad day")])
        monitor = dmi.Monitor(sink=sink).start()
        _scan(5)().block_until_ready()
        with self.assertRaisesRegex(dmi.CaptureError, "bad day"):
            monitor.flush()
        _scan(3)().block_until_ready()
        with self.assertRaisesRegex(dmi.CaptureError, "bad day"):
            monitor.close()
        stats = monitor.stats()
        self.assertEqual((stats.written, stats.dropped), (3, {"sink": 5}))
        self.assertTrue(_balanced(stats))

    def test_a_sink_that_raises_what_ends_threads_is_counted_and_raised(self):
        sink = memory_sink.GateSink(opened=True, errors=[SystemExit(3)])
        monitor = dmi.Monitor(sink=sink).start()
        _scan(3)().block_until_ready()
        with self.assertRaisesRegex(dmi.CaptureError, "SystemExit"):
            monitor.flush()
        _scan(5)().block_until_ready()
        with self.assertRaisesRegex(dmi.CaptureError, "SystemExit"):
            monitor.close()
        self.assertEqual(monitor.stats().dropped, {"sink": 3})
        self.assertLen(sink.records, 5)

    def test_flush_times_out_on_a_sink_that_hangs(self):
        sink = memory_sink.GateSink()
        with dmi.Monitor(sink=sink) as monitor:
            _scan(5)().block_until_ready()
            with self.assertRaisesRegex(TimeoutError, "5 records"):
                monitor.flush(timeout=0.2)
            sink.gate.set()
            self.assertEqual(monitor.flush().records, 5)

    def test_flush_reports_what_it_moved(self):
        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            _scan(5)()
            first = monitor.flush()
            second = monitor.flush()
        self.assertEqual((first.records, first.bytes, first.dropped), (5, 400, 0))
        self.assertEqual((second.records, second.bytes), (0, 0))

    def test_methods_from_the_sink_thread_are_refused(self):
        refused = []

        class Asking(memory_sink.MemorySink):
            def write(self, batch):
                super().write(batch)
                for method in (monitor.flush, monitor.close, monitor.step(3).__enter__):
                    try:
                        method()
                    except dmi.StateError as error:
                        refused.append(str(error))

        with dmi.Monitor(sink=Asking()) as monitor:
            _scan(1)()
            monitor.flush()
        self.assertLen(refused, 3)

    def test_a_lone_record_is_written_within_linger_and_fifty_milliseconds(self):
        arrived = threading.Event()

        class Telling(memory_sink.MemorySink):
            def write(self, batch):
                super().write(batch)
                arrived.set()

        program = _scan(1)
        late = []
        with dmi.Monitor(sink=Telling(), linger=0.2):
            for _ in range(5):
                arrived.clear()
                program().block_until_ready()
                begin = time.monotonic()
                self.assertTrue(arrived.wait(5.0))
                late.append(time.monotonic() - begin)
        self.assertLess(sorted(late)[2], 0.25)

    def test_an_idle_monitor_uses_less_than_a_hundredth_of_a_core(self):
        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            _scan(1)()
            monitor.flush()
            begin = time.process_time()
            threading.Event().wait(2.0)
            used = time.process_time() - begin
        self.assertLess(used / 2.0, 0.01)

    def test_boundaries_are_counted_and_stamped(self):
        @jax.jit
        def program(x):
            return jax.lax.fori_loop(0, 7, lambda i, x: dmi.advance_boundary(x + 1), x)

        sink = memory_sink.MemorySink()
        before = time.time_ns()
        with dmi.Monitor(sink=sink) as monitor:
            program(jnp.zeros(4)).block_until_ready()
            stamps = monitor.boundaries()
        np.testing.assert_array_equal(stamps[:, 0], np.arange(1, 8))
        self.assertTrue(np.all(np.diff(stamps[:, 1]) >= 0))
        self.assertBetween(stamps[0, 1], before - 10**9, time.time_ns() + 10**9)
        np.testing.assert_array_equal(monitor.boundaries(), stamps)

    def test_transfers_tell_what_moved(self):
        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            _scan(5)()
            monitor.flush()
            (transfer,) = monitor.transfers()
        self.assertEqual((transfer.bytes, transfer.kind), (400, "forced"))
        self.assertLessEqual(transfer.begin_ns, transfer.end_ns)


if __name__ == "__main__":
    absltest.main()
