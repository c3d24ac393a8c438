# SPDX-License-Identifier: Apache-2.0
"""Run-time control: gates per site, and pauses of transfers."""

from __future__ import annotations

import collections
import re
import threading

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from support import isolated
from support import memory_sink


@jax.jit
def _program(x):
    x = dmi.record(x + 1, "a/first")
    x = dmi.record(x * 2, "a/second")
    return dmi.record(x.sum(), "b")


def _counts(sink):
    return dict(collections.Counter(r.name for r in sink.records))


class GateTest(parameterized.TestCase):
    @parameterized.parameters(
        ("a/*", {"b": 1}),
        (re.compile("second|b"), {"a/first": 1}),
        (lambda name: name == "b", {"a/first": 1, "a/second": 1}),
        (("a/first", "b"), {"a/second": 1}),
        ("c", {"a/first": 1, "a/second": 1, "b": 1}),
    )
    def test_a_disabled_name_is_not_recorded_and_not_counted(self, pattern, left):
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink) as monitor:
            monitor.disable(pattern)
            _program(jnp.ones(3))
            monitor.flush()
            self.assertEqual(monitor.stats().recorded, sum(left.values()))
        self.assertEqual(_counts(sink), left)

    def test_switching_compiles_nothing(self):
        @jax.jit
        def program(x):
            return dmi.record(x, "switched")

        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink, exact=False) as monitor:
            inputs = [jnp.full(3, float(i)) for i in range(6)]
            program(inputs[1])
            monitor.disable("switched")
            with jax.log_compiles(True), self.assertNoLogs("jax", "WARNING"):
                for i, x in enumerate(inputs):
                    (monitor.disable if i % 2 else monitor.enable)("switched")
                    program(x).block_until_ready()
        values = [r.value[0] for r in sink.records]
        self.assertEqual(values, [1.0, 0.0, 2.0, 4.0])

    def test_a_change_falls_between_the_programs_around_it(self):
        @jax.jit
        def slow(x):
            for _ in range(4):
                x = jnp.tanh(x @ x)
            return dmi.record(x[0, 0], "slow"), x

        sink = memory_sink.MemorySink()
        x = jnp.ones((400, 400)) / 400
        with dmi.Monitor(sink=sink) as monitor:
            slow(x)
            monitor.flush()
            for i in range(20):
                # Nothing is waited for: the programs are still in flight.
                (monitor.disable if i % 2 else monitor.enable)("slow")
                _, x = slow(x)
        self.assertLen(sink.records, 1 + 10)

    def test_names_that_come_later_are_switched_too(self):
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink) as monitor:
            monitor.disable("late/*")
            monitor.enable("late/but_this")
            for name in ("late/one", "late/but_this", "late/two"):
                dmi.record(jnp.ones(2), name)
                jax.jit(lambda x, name=name: dmi.record(x, name + "/jit"))(jnp.ones(2))
        self.assertEqual(_counts(sink), {"late/but_this": 1})

    def test_the_next_monitor_begins_with_everything_enabled(self):
        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            monitor.disable("*")
            _program(jnp.ones(3))
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink):
            _program(jnp.ones(3))
        self.assertLen(sink.records, 3)

    def test_more_gates_than_one_program_takes(self):
        names = [f"many/{i}" for i in range(50)]

        @jax.jit
        def program(x):
            for name in names:
                x = dmi.record(x, name)
            return x

        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink) as monitor:
            program(jnp.ones(2))
            monitor.disable("many/*")
            monitor.enable("many/4?")
            program(jnp.ones(2))
        counts = _counts(sink)
        self.assertEqual({counts[n] for n in names[:40]}, {1})
        self.assertEqual({counts[n] for n in names[40:]}, {2})

    def test_what_is_no_pattern_is_named(self):
        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            with self.assertRaisesRegex(TypeError, "3"):
                monitor.disable(3)
        with self.assertRaisesRegex(dmi.StateError, "closed"):
            monitor.enable("*")


class PauseTest(absltest.TestCase):
    def test_nothing_is_transferred_in_a_pause_and_nothing_is_lost(self):
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink, linger=0.0) as monitor:
            with monitor.paused_transfers():
                for _ in range(5):
                    _program(jnp.ones(3)).block_until_ready()
                with self.assertRaises(dmi.FlushTimeoutError):
                    monitor.flush(timeout=0.3)
                self.assertEmpty(sink.records)
                self.assertEqual(monitor.stats().pending, 15)
            monitor.flush()
            self.assertLen(sink.records, 15)

    def test_a_second_pause_waits_for_the_first(self):
        order = []
        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            token = monitor.pause_transfers()

            def second():
                other = monitor.pause_transfers()
                order.append("second")
                monitor.resume_transfers(other)

            thread = threading.Thread(target=second)
            thread.start()
            thread.join(0.2)
            order.append("first ends")
            monitor.resume_transfers(token)
            thread.join(10)
        self.assertEqual(order, ["first ends", "second"])

    def test_stale_and_foreign_tokens_are_refused(self):
        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            token = monitor.pause_transfers()
            self.assertIsInstance(token, dmi.Token)
            monitor.resume_transfers(token)
            for wrong in (token, None, 1):
                with self.assertRaisesRegex(dmi.StateError, "token"):
                    monitor.resume_transfers(wrong)
            with monitor.paused_transfers():
                with self.assertRaisesRegex(dmi.StateError, "token"):
                    monitor.resume_transfers(token)

    def test_close_ends_a_pause_and_loses_nothing(self):
        sink = memory_sink.MemorySink()
        monitor = dmi.Monitor(sink=sink).start()
        monitor.pause_transfers()
        _program(jnp.ones(3))
        monitor.close()
        self.assertLen(sink.records, 3)


class ManyDevicesTest(isolated.IsolatedTestCase):
    """Gates of programs on one device and on four."""

    environment = isolated.FOUR_DEVICES

    def case_a_gate_closes_for_both_kinds_of_programs(self):
        mesh = jax.make_mesh((4,), ("d",))
        spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
        whole = jax.device_put(np.arange(8.0, dtype=np.float32), spec)
        sharded = jax.jit(lambda x: dmi.record(x * 2, "x"))
        single = jax.jit(lambda x: dmi.record(x * 3, "y"))
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink) as monitor:
            for i in range(12):
                if i % 3 == 1:
                    monitor.disable("*")
                if i % 3 == 2:
                    monitor.enable("*")
                sharded(whole)
                for device in jax.devices():
                    single(jax.device_put(np.ones(2, np.float32), device))
        # Of three rounds, one is switched off; both programs run on four devices.
        self.assertEqual(_counts(sink), {"x": 8 * 4, "y": 8 * 4})


if __name__ == "__main__":
    absltest.main()
