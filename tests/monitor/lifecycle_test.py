# SPDX-License-Identifier: Apache-2.0
"""A Monitor's life: what is allowed when, and what every wrong use is told."""

from __future__ import annotations

import threading
import warnings

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp

import jax_dmi as dmi
from support import memory_sink


@jax.jit
def _program(x):
    return dmi.record(x * 2, "doubled")


def _monitor(run=None, **settings):
    return dmi.Monitor(run, **{"sink": memory_sink.MemorySink(), **settings})


class LifecycleTest(parameterized.TestCase):
    def test_records_only_while_it_is_open(self):
        sink = memory_sink.MemorySink()
        _program(jnp.ones(3))
        with dmi.Monitor(sink=sink) as monitor:
            _program(jnp.full(3, 5.0))
        _program(jnp.full(3, 7.0))
        self.assertLen(sink.records, 1)
        self.assertEqual(sink.records[0].value.tolist(), [10.0] * 3)
        self.assertTrue(sink.closed)
        self.assertEqual(monitor.stats().recorded, 1)

    def test_a_program_compiled_under_a_closed_monitor_is_used_again(self):
        for _ in range(3):
            sink = memory_sink.MemorySink()
            with dmi.Monitor(sink=sink):
                _program(jnp.ones(4))
            self.assertLen(sink.records, 1)

    def test_close_is_idempotent(self):
        monitor = _monitor().start()
        monitor.close()
        monitor.close()

    def test_a_second_monitor_is_refused_while_one_is_active(self):
        with _monitor(), self.assertRaisesRegex(dmi.StateError, "close it first"):
            _monitor().start()
        with _monitor():
            pass

    def test_a_monitor_starts_once(self):
        monitor = _monitor()
        with monitor, self.assertRaisesRegex(dmi.StateError, "is active"):
            monitor.start()
        with self.assertRaisesRegex(dmi.StateError, "is closed"):
            monitor.start()

    def test_start_inside_a_traced_function_is_refused(self):
        @jax.jit
        def traced(x):
            with _monitor():
                return x

        with self.assertRaisesRegex(dmi.StateError, "traced"):
            traced(jnp.ones(2))
        with _monitor():
            pass

    @parameterized.parameters("flush", "stats", "transfers", "boundaries")
    def test_methods_need_a_started_monitor(self, method):
        with self.assertRaisesRegex(dmi.StateError, method):
            getattr(_monitor(), method)()

    @parameterized.parameters(
        ("define_window_pattern", None),
        ("windows_suspended",),
        ("suspend_windows",),
        ("resume_windows",),
        ("limit_grants", 1),
        ("window_state",),
    )
    def test_calls_for_windows_say_that_there_are_none(self, method, *arguments):
        with _monitor() as monitor:
            with self.assertRaisesRegex(dmi.WindowError, "no windows configured"):
                getattr(monitor, method)(*arguments)

    def test_flush_and_step_need_an_active_monitor(self):
        monitor = _monitor()
        with monitor:
            pass
        with self.assertRaisesRegex(dmi.StateError, "closed"):
            monitor.flush()
        with self.assertRaisesRegex(dmi.StateError, "closed"), monitor.step(1):
            pass

    def test_the_error_of_the_body_is_not_hidden_by_one_of_close(self):
        sink = memory_sink.GateSink(opened=True, errors=[OSError("no space")])
        with self.assertRaisesRegex(ZeroDivisionError, "body") as caught:
            with dmi.Monitor(sink=sink):
                _program(jnp.ones(2)).block_until_ready()
                raise ZeroDivisionError("body")
        self.assertIn("no space", "".join(caught.exception.__notes__))

    def test_other_threads_are_captured(self):
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink):
            threads = [
                threading.Thread(
                    target=lambda: _program(jnp.ones(3)).block_until_ready()
                )
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        self.assertLen(sink.records, 4)

    @parameterized.parameters(
        dict(ring_bytes=1, why="ring_bytes"),
        dict(ring_bytes="many", why="ring_bytes"),
        dict(ring_bytes=True, why="ring_bytes"),
        dict(batch_bytes=-1, why="batch_bytes"),
        dict(batch_records=0, why="batch_records"),
        dict(ring_slots=1, why="ring_slots"),
        dict(linger=-0.1, why="linger"),
        dict(linger=float("nan"), why="linger"),
        dict(stall_timeout="1", why="stall_timeout"),
        dict(overflow="overwrite", why="overflow"),
        dict(replicas="none", why="replicas"),
        dict(every=0, why="every"),
        dict(warmup=-1, why="warmup"),
        dict(exist="replace", why="exist"),
        dict(devices=[], why="devices"),
        dict(devices=["cpu:0"], why="devices"),
        dict(devices=jax.devices()[:1] * 2, why="devices"),
        dict(ring_bytes="1TiB", why="ring_bytes"),
        dict(ring_slots=2**31, why="ring_slots"),
        dict(batch_records=2**40, why="batch_records"),
        dict(attrs={"rate": float("nan")}, why="attrs"),
        dict(sink=None, run="", why="run"),
        dict(sink=None, run="a\0b", why="run"),
    )
    def test_bad_arguments_are_named(self, why, **settings):
        with self.assertRaisesRegex(dmi.DmiError, why) as caught:
            _monitor(**settings).start()
        self.assertIsInstance(caught.exception, ValueError)

    @parameterized.parameters(
        dict(attrs={"when": object()}, why="attrs"),
        dict(attrs=[1], why="attrs"),
        dict(sink=3, why="open, write, flush, close"),
        dict(sink=memory_sink.MemorySink, why="sink"),
        dict(sink=None, run=3, why="run"),
    )
    def test_arguments_of_a_wrong_type_are_named(self, why, **settings):
        with self.assertRaisesRegex(dmi.DmiTypeError, why):
            _monitor(**settings)

    @parameterized.parameters("1", 1.5, None, True, 2**63)
    def test_a_step_is_an_integer_of_64_bits(self, step):
        with _monitor() as monitor, self.assertRaisesRegex(dmi.DmiValueError, "step"):
            with monitor.step(step):
                pass

    def test_a_step_inside_a_traced_function_is_refused(self):
        with _monitor() as monitor:

            @jax.jit
            def traced(x):
                with monitor.step(1):
                    return x

            with self.assertRaisesRegex(dmi.StateError, "traced"):
                traced(jnp.ones(2))

    @parameterized.parameters(
        ("4096", 4096), ("64KiB", 65536), ("1.5 MiB", 3 << 19), ("2kb", 2000)
    )
    def test_sizes_are_ints_or_strings(self, given, size):
        with _monitor(ring_bytes=given):
            with self.assertRaisesRegex(ValueError, str(size // 2)):
                dmi.record(jnp.zeros(size // 2 + 1, jnp.int8), "big")

    def test_every_without_steps_is_warned_of(self):
        with self.assertWarnsRegex(UserWarning, "every=2"):
            with _monitor(every=2):
                _program(jnp.ones(2))

    def test_what_cannot_be_called_is_not_captured(self):
        with self.assertRaisesRegex(dmi.DmiTypeError, "^fn=3 is a int"):
            dmi.capture(3)  # pyright: ignore

    def test_records_that_reached_no_program_are_warned_of(self):
        select = ("never_lowered_here",)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with _monitor(select=select) as monitor:
                jax.make_jaxpr(lambda x: dmi.record(x, select[0]))(jnp.ones(2))
                (site,) = monitor.stats().never_lowered
        self.assertEqual(site.name, select[0])
        self.assertIn("lifecycle_test.py", site.source)
        self.assertIn(select[0], str(caught[0].message))


if __name__ == "__main__":
    absltest.main()
