# SPDX-License-Identifier: Apache-2.0
"""Windows of a Monitor: patterns, suspension, fallback, and exact bytes."""

from __future__ import annotations

import threading

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from support import isolated
from support import memory_sink

_RATE = 200e6
_PATTERN = dmi.WindowPattern(period=2, windows=[(1, 2)])


@jax.jit
def _step(x):
    """One period: opens a window, records in it, and closes it."""
    x = dmi.open_window(x)
    x = dmi.record(x + 1, "row")
    return dmi.close_window(x)


def _monitor(sink, **settings):
    settings = {
        "ring_bytes": "4MiB",
        "link": dmi.SimulatedLink(bytes_per_second=_RATE),
        "windows": _PATTERN,
        **settings,
    }
    return dmi.Monitor(sink=sink, **settings)


def _rows(sink):
    return [record.value for record in sink.records]


class WindowsTest(parameterized.TestCase):
    @parameterized.parameters("deadline", "binary_adaptive")
    def test_every_row_comes_once_and_exactly(self, policy):
        sink = memory_sink.MemorySink()
        config = dmi.WindowConfig(policy=policy, initial_grant_bytes="64KiB")
        x = jnp.zeros(5000)
        with _monitor(sink, windows=config) as monitor:
            self.assertEqual(monitor.window_state().mode, "no_pattern")
            self.assertTrue(monitor.define_window_pattern(_PATTERN))
            for _ in range(100):
                x = _step(x)
            monitor.flush()
            self.assertEqual(monitor.stats().written, 100)
            state = monitor.window_state()
        self.assertEqual((state.mode, state.version), ("active", 1))
        self.assertEqual(state.pattern, _PATTERN)
        np.testing.assert_array_equal(
            np.stack(_rows(sink)), np.arange(1, 101)[:, None] * np.ones(5000)
        )
        kinds = {t.kind for t in monitor.transfers()}
        self.assertLessEqual(kinds, {"window", "forced"})
        self.assertEqual(
            sum(t.bytes for t in monitor.transfers()), monitor.stats().bytes
        )

    def test_nothing_moves_before_a_window_opens(self):
        sink = memory_sink.GateSink(opened=True)

        @jax.jit
        def quiet(x):
            return dmi.advance_boundary(dmi.record(x, "quiet"))

        pattern = dmi.WindowPattern(period=100, windows=[(50, 51)])
        with _monitor(sink, windows=pattern, linger=0.0) as monitor:
            x = jnp.zeros(10)
            for _ in range(49):
                x = quiet(x)
            jax.block_until_ready(x)
            self.assertEmpty(monitor.transfers())
            self.assertEqual(monitor.stats().written, 0)
            quiet(x).block_until_ready()  # Boundary 50 opens the window.
            self.assertTrue(sink.entered.wait(20))
            (first, *_) = monitor.transfers()
            self.assertEqual((first.kind, first.begin_counter), ("window", 50))

    @parameterized.parameters(
        ({"windows": 3}, "windows=3"),
        ({"link": 3}, "link=3"),
        ({"staging_bytes": "1MiB"}, "staging_bytes"),
    )
    def test_wrong_settings_are_named(self, settings, text):
        with self.assertRaisesRegex((ValueError, TypeError), text):
            _monitor(memory_sink.MemorySink(), **settings)

    # A program that is no part of the pattern fills the ring again and again.
    def test_an_evaluation_inside_a_suspension_charges_nothing(self):
        sink = memory_sink.MemorySink()

        @jax.jit
        def evaluate(x):
            return dmi.advance_boundary(dmi.record(x + 1, "eval"))

        pattern = dmi.WindowPattern(period=8, windows=[(6, 7)])
        with _monitor(sink, ring_bytes="64KiB", windows=pattern) as monitor:
            x = jnp.zeros(1)
            for _ in range(5):
                x = jax.jit(dmi.advance_boundary)(x)
            with monitor.windows_suspended():
                y = jnp.zeros(8192)
                for _ in range(10):
                    y = evaluate(y)
                monitor.flush()
                self.assertEqual(monitor.window_state().mode, "suspended")
            x = jax.jit(dmi.advance_boundary)(x).block_until_ready()
            # The sixth boundary of the pattern, not the sixteenth.
            self.assertEqual(int(monitor.boundaries()[-1, 0]), 6)
            y = evaluate(y)
            monitor.flush()
            state = monitor.window_state()
            self.assertEqual((state.mode, state.version), ("active", 2))
        self.assertEqual([row[0] for row in _rows(sink)], list(range(1, 12)))

    def test_suspension_is_not_nested(self):
        with _monitor(memory_sink.MemorySink()) as monitor:
            with self.assertRaisesRegex(dmi.StateError, "suspended"):
                monitor.resume_windows()
            with monitor.windows_suspended():
                with self.assertRaisesRegex(dmi.StateError, "already"):
                    monitor.suspend_windows()
                with self.assertRaisesRegex(dmi.StateError, "resume"):
                    monitor.define_window_pattern(_PATTERN)

    # Ten records of half the ring, and no boundary at all.
    def test_a_ring_that_stays_full_falls_back_and_refuses_patterns(self):
        sink = memory_sink.MemorySink()
        config = dmi.WindowConfig(capacity_flush_fallback_threshold=3)
        with _monitor(sink, ring_bytes="64KiB", windows=config) as monitor:
            monitor.define_window_pattern(_PATTERN)
            x = jnp.zeros(8192)
            for _ in range(10):
                x = jax.jit(lambda x: dmi.record(x + 1, "big"))(x)
            jax.block_until_ready(x)
            self.assertEqual(monitor.window_state().mode, "fallback")
            self.assertFalse(monitor.define_window_pattern(_PATTERN))
            monitor.flush()
            # It wears off as boundaries pass.
            for _ in range(2 * 64 + 4):
                x = jax.jit(dmi.advance_boundary)(x)
            x = _step(_step(x))
            monitor.flush()
            self.assertEqual(monitor.window_state().mode, "active")
            self.assertEqual(monitor.stats().dropped, {})
        self.assertEqual([row[0] for row in _rows(sink)], list(range(1, 13)))

    def test_versions_start_over_after_the_last(self):
        sink = memory_sink.MemorySink()
        with _monitor(sink) as monitor:
            # As if 65,534 patterns had been defined before.
            for device in monitor._session.windows._devices.values():
                device.version = 65534
            x = jnp.zeros(100)
            for expected in (65535, 1, 2):
                x = _step(x)
                self.assertTrue(monitor.define_window_pattern(_PATTERN))
                self.assertEqual(monitor.window_state().version, expected)
                for _ in range(5):
                    x = _step(x)
                jax.block_until_ready(x)
                self.assertEqual(int(monitor.boundaries()[-1, 0]), 10)
            monitor.flush()
        self.assertEqual([row[0] for row in _rows(sink)], list(range(1, 19)))

    def test_a_grant_is_limited_from_any_thread(self):
        with _monitor(memory_sink.MemorySink()) as monitor:
            x = jnp.zeros(2000)
            for _ in range(20):
                x = _step(x)
            jax.block_until_ready(x)
            thread = threading.Thread(target=monitor.limit_grants, args=("4KiB",))
            thread.start()
            thread.join()
            before = len(monitor.transfers())
            for _ in range(20):
                x = _step(x)
            jax.block_until_ready(x)
            moved: dict[int, int] = {}
            for t in monitor.transfers()[before:]:
                if t.kind == "window":
                    moved[t.occurrence] = moved.get(t.occurrence, 0) + t.bytes
            self.assertLessEqual(max(moved.values(), default=0), 4096)

    # What windows are compared with: ordinary batching, against the boundaries.
    def test_transfers_tell_boundaries_without_windows_too(self):
        with _monitor(memory_sink.MemorySink(), windows=None, link=None) as monitor:
            _step(_step(jnp.zeros(10))).block_until_ready()
            monitor.flush()
        (*_, last) = monitor.transfers()
        self.assertEqual((last.kind, last.version), ("forced", 0))
        self.assertEqual((last.begin_counter, last.end_counter), (4, 4))

    def test_a_pattern_starts_at_its_counter(self):
        with _monitor(memory_sink.MemorySink(), windows=dmi.WindowConfig()) as monitor:
            pattern = dmi.WindowPattern(period=4, windows=[(0, 2)], initial_counter=7)
            monitor.define_window_pattern(pattern)
            x = jax.jit(dmi.advance_boundary)(jnp.zeros(1)).block_until_ready()
            del x
            self.assertEqual(monitor.boundaries()[:, 0].tolist(), [8])

    def test_what_was_learned_can_be_read_after_close(self):
        with _monitor(memory_sink.MemorySink()) as monitor:
            x = jnp.zeros(2000)
            for _ in range(20):
                x = _step(x)
            monitor.flush()
            before = monitor.window_state()
        after = monitor.window_state()
        self.assertEqual(after.pattern, before.pattern)
        self.assertLen(after.windows, 1)
        with self.assertRaises(dmi.StateError):
            monitor.suspend_windows()


class ManyDevicesTest(isolated.IsolatedTestCase):
    environment = isolated.FOUR_DEVICES

    def case_each_device_keeps_to_its_own_windows(self):
        sink = memory_sink.MemorySink()
        mesh = jax.make_mesh((4,), ("d",))
        spec = jax.sharding.PartitionSpec("d")

        @jax.jit
        @jax.shard_map(mesh=mesh, in_specs=spec, out_specs=spec)
        def step(x):
            x = dmi.open_window(x)
            x = dmi.record(x + 1, "shard")
            return dmi.close_window(x)

        other = dmi.WindowPattern(period=4, windows=[(3, 4)])
        with _monitor(sink) as monitor:
            monitor.define_window_pattern(other, device=jax.devices()[2])
            sharding = jax.sharding.NamedSharding(mesh, spec)
            x = jax.device_put(jnp.zeros((4, 1000)), sharding)
            for _ in range(20):
                x = step(x)
            monitor.flush()
            states = [monitor.window_state(d) for d in jax.devices()]
            for device in jax.devices():
                self.assertLen(monitor.boundaries(device), 40)
        self.assertEqual([s.version for s in states], [1, 1, 2, 1])
        self.assertEqual(states[2].pattern, other)
        self.assertLen(sink.records, 80)
        for device in jax.devices():
            values = [r.value[0, 0] for r in sink.records if r.device == device.id]
            self.assertEqual(values, list(range(1, 21)))


if __name__ == "__main__":
    absltest.main()
