# SPDX-License-Identifier: Apache-2.0
"""Policies and the controller, driven through Python; cases in tests/native too."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

import jax_dmi as dmi
from jax_dmi import windows

_PLENTY = 2**40


class _Hand:
    """A controller with a clock, and words of one version."""

    def __init__(self, pattern, **config):
        self.clock = windows.ManualClock()
        self.controller = windows.WindowController(
            dmi.WindowConfig(**config), self.clock.now
        )
        self.version = 1
        self.controller.install_pending(1, pattern)

    def word(self, counter):
        return windows.pack_progress(self.version, counter)

    def poll(self, counter, full=_PLENTY, first=1):
        return self.controller.poll(self.word(counter), full, first)

    def move(self, size, counter, nanos, end):
        """Moves ``size`` bytes in so many nanoseconds, until the counter is ``end``."""
        admission = self.poll(counter)
        assert admission is not None
        assert self.controller.commit(admission, size, self.word(counter))
        self.clock.advance(nanos)
        self.controller.complete(admission, size, self.word(end))
        return admission


class ProgressTest(parameterized.TestCase):
    @parameterized.parameters((0, 0), (1, 0), (0, 1), (65535, 2**48 - 1), (7, 12345))
    def test_words_hold_version_and_counter(self, version, counter):
        word = windows.pack_progress(version, counter)
        self.assertEqual(word, version << 48 | counter)
        self.assertEqual(windows.unpack_progress(word), (version, counter))

    @parameterized.parameters((65536, 0), (-1, 0), (0, 2**48), (0, -1))
    def test_a_part_that_does_not_fit_is_refused(self, version, counter):
        with self.assertRaisesRegex(dmi.DmiValueError, "^(version|counter)="):
            windows.pack_progress(version, counter)


class PolicyTest(parameterized.TestCase):
    def test_the_search_halves_and_grows(self):
        policy = windows.GrantPolicy("binary_adaptive")
        grant = policy.choose(0, _PLENTY, 1)
        self.assertEqual(
            (grant.kind, grant.byte_limit, grant.timing_revalidation),
            ("full_available", windows.UNBOUNDED, False),
        )
        self.assertFalse(policy.observe(0, 1000, True, grant))
        grant = policy.choose(1, _PLENTY, 1)
        self.assertEqual((grant.kind, grant.byte_limit), ("half_unsafe", 500))
        self.assertFalse(policy.observe(1, 500, False, grant))
        grant = policy.choose(2, _PLENTY, 1)
        self.assertEqual((grant.kind, grant.byte_limit), ("midpoint", 750))
        self.assertTrue(policy.observe(2, 500, False, grant), "records are too large")
        self.assertEqual(policy.choose(3, _PLENTY, 1).kind, "max_safe")
        policy.observe_timing_estimate(400, 2000)
        grant = policy.choose(3, _PLENTY, 1)
        self.assertEqual((grant.kind, grant.byte_limit), ("timing_estimate", 2000))
        self.assertTrue(grant.timing_revalidation)
        self.assertEqual(policy.choose(3, _PLENTY, 5000).kind, "minimum_record_probe")
        self.assertIsNone(policy.choose(3, 0, 0))

    def test_the_deadline_grants_what_timing_promises(self):
        policy = windows.GrantPolicy("deadline", max_grant=900_000)
        grant = policy.choose(0, _PLENTY, 1)
        self.assertEqual((grant.kind, grant.byte_limit), ("deadline", 4096))
        policy.observe(0, 4096, False, grant)
        policy.observe_timing_estimate(4096, 500_000)
        self.assertEqual(policy.choose(1, _PLENTY, 1).byte_limit, 500_000)

    def test_what_is_no_field_is_refused(self):
        with self.assertRaisesRegex(dmi.DmiValueError, "^policy='greedy'"):
            windows.GrantPolicy("greedy")
        with self.assertRaisesRegex(dmi.DmiTypeError, "chunks"):
            windows.GrantPolicy("deadline", chunks=3)
        with self.assertRaisesRegex(dmi.DmiValueError, "^margin="):
            windows.GrantPolicy("deadline", margin=2)


class ControllerTest(parameterized.TestCase):
    def test_a_transfer_inside_a_window_teaches(self):
        hand = _Hand(dmi.WindowPattern(2, [(0, 1)]), policy="binary_adaptive")
        self.assertEqual(hand.controller.mode, "no_pattern")
        admission = hand.move(1000, counter=0, nanos=50, end=0)
        self.assertEqual(hand.controller.mode, "active")
        self.assertEqual(admission.version, 1)
        self.assertEqual(
            (admission.match.window_index, admission.match.occurrence,
             admission.match.begin, admission.match.end),
            (0, 0, 0, 1),
        )  # fmt: skip
        hand.clock.advance(150)
        self.assertIsNone(hand.poll(1))
        self.assertEqual(hand.controller.timing_estimates(0), [4000])
        (attempt,) = hand.controller.attempts(0)
        self.assertEqual(
            (attempt.occurrence, attempt.bytes, attempt.overran, attempt.kind),
            (0, 1000, False, "full_available"),
        )
        self.assertEqual(hand.poll(2).grant.byte_limit, 4000)
        info = hand.controller.state().windows[0]
        self.assertEqual((info.length_ns, info.max_safe), (200, 1000))

    def test_the_published_sequence_of_full_rings_ends_active_around_a_suspension(self):
        hand = _Hand(dmi.WindowPattern(2, [(0, 1)]))
        hand.poll(0)
        hand.controller.suspend()
        hand.version = 0
        hand.poll(0)
        self.assertEqual(hand.controller.mode, "suspended")
        for _ in range(10):
            self.assertFalse(hand.controller.record_capacity_flush(hand.word(0)))
        hand.controller.install_pending(2, dmi.WindowPattern(2, [(0, 1)]), True)
        hand.version = 2
        hand.poll(0)
        self.assertEqual(hand.controller.mode, "active")

    def test_full_rings_lead_to_fallback_and_time_leads_out_of_it(self):
        hand = _Hand(
            dmi.WindowPattern(2, [(0, 1)]), capacity_flush_count_reset_interval=3
        )
        hand.poll(0)
        word = hand.word(0)
        flushed = [hand.controller.record_capacity_flush(word) for _ in range(3)]
        self.assertEqual(flushed, [False, False, True])
        self.assertEqual(hand.controller.mode, "fallback")
        hand.poll(5)
        self.assertEqual(hand.controller.mode, "fallback")
        hand.poll(6)
        self.assertEqual(hand.controller.mode, "active")

    def test_versions_that_do_not_grow_are_refused(self):
        hand = _Hand(dmi.WindowPattern(2, [(0, 1)]))
        with self.assertRaisesRegex(dmi.WindowError, "^version=1 "):
            hand.controller.install_pending(1, dmi.WindowPattern(2, [(0, 1)]))
        hand.controller.cancel_pending(1)
        hand.controller.install_pending(1, dmi.WindowPattern(2, [(0, 1)]))
        hand.controller.reset_for_version_reuse()
        hand.controller.install_pending(1, dmi.WindowPattern(2, [(0, 1)]))
        for version in (0, 65536, "1"):
            with self.assertRaisesRegex(dmi.DmiValueError, "^version="):
                hand.controller.install_pending(version, dmi.WindowPattern(1, [(0, 1)]))

    def test_arguments_of_the_wrong_kind_are_named(self):
        clock = windows.ManualClock()
        with self.assertRaisesRegex(dmi.DmiTypeError, "^config="):
            windows.WindowController({}, clock.now)  # pyright: ignore
        with self.assertRaisesRegex(dmi.DmiTypeError, "^clock="):
            windows.WindowController(dmi.WindowConfig(), clock)  # pyright: ignore
        hand = _Hand(dmi.WindowPattern(2, [(0, 1)]))
        with self.assertRaisesRegex(dmi.DmiTypeError, "^pattern="):
            hand.controller.install_pending(2, (2, [(0, 1)]))  # pyright: ignore
        with self.assertRaisesRegex(dmi.DmiValueError, "^progress_word="):
            hand.controller.poll(2**64, 0, 0)
        for method in (hand.controller.commit, hand.controller.complete):
            with self.assertRaisesRegex(dmi.DmiTypeError, "^admission=None .* poll"):
                method(None, 1, 0)  # pyright: ignore
        with self.assertRaisesRegex(dmi.DmiValueError, "^time_ns="):
            hand.controller.observe_boundary(0, 1.5)  # pyright: ignore
        with self.assertRaisesRegex(dmi.DmiTypeError, "^grant=None .* choose"):
            windows.GrantPolicy("deadline").observe(0, 1, False, None)  # pyright: ignore

    def test_a_comparison_of_numpy_is_an_overrun(self):
        policy = windows.GrantPolicy("binary_adaptive")
        grant = policy.choose(0, _PLENTY, 1)
        policy.observe(0, 1000, np.int64(5) >= np.int64(4), grant)
        self.assertEqual(policy.choose(1, _PLENTY, 1).kind, "half_unsafe")

    @parameterized.parameters(1.5, None, 2**63)
    def test_a_clock_of_something_else_is_refused(self, time):
        controller = windows.WindowController(dmi.WindowConfig(), lambda: time)
        with self.assertRaisesRegex(dmi.DmiValueError, r"^clock\(\)="):
            controller.poll(0, 0, 0)

    def test_a_clock_that_fails_says_so(self):
        def clock():
            raise KeyError("no time")

        controller = windows.WindowController(dmi.WindowConfig(), clock)
        with self.assertRaisesRegex(KeyError, "no time"):
            controller.poll(0, 0, 0)
        self.assertEqual(controller.mode, "no_pattern")

    def test_stamps_time_windows_that_nobody_watched(self):
        hand = _Hand(dmi.WindowPattern(4, [(1, 3)]))
        hand.poll(0)
        hand.controller.observe_boundary(hand.word(1), 1000)
        hand.controller.observe_boundary(hand.word(2), 1500)
        hand.controller.observe_boundary(hand.word(3), 4000)
        self.assertEqual(hand.controller.state().windows[0].length_ns, 3000)
        self.assertEqual(hand.controller.next_edge(), 5)

    def test_a_limit_holds_from_the_next_grant_on(self):
        hand = _Hand(dmi.WindowPattern(2, [(0, 1)]), policy="binary_adaptive")
        hand.controller.limit_grants(500)
        self.assertEqual(hand.poll(0).grant.byte_limit, 500)
        hand.controller.limit_grants(None)
        self.assertEqual(hand.poll(0).grant.byte_limit, windows.UNBOUNDED)

    def test_the_watchdog_bites_when_boundaries_stop(self):
        hand = _Hand(dmi.WindowPattern(2, [(0, 1)]), watchdog=1e-6)
        hand.poll(0)
        hand.clock.advance(1000)
        self.assertFalse(hand.controller.stalled())
        hand.clock.advance(1)
        self.assertTrue(hand.controller.stalled())


_DEBUG = """
    import jax_dmi as dmi
    from jax_dmi import windows
    clock = windows.ManualClock()
    config = dmi.WindowConfig(policy="binary_adaptive", debug={debug})
    c = windows.WindowController(config, clock.now)
    c.install_pending(1, dmi.WindowPattern(4, [(0, 1), (2, 3)]))
    word = lambda counter: windows.pack_progress(1, counter)
    for begin, end in ((0, 0), (4, 6), (8, 10)):  # the last two cross
        a = c.poll(word(begin), 100, 1)
        size = min(a.grant.byte_limit, 7)
        assert c.commit(a, size, word(begin))
        clock.advance(10)
        c.complete(a, size, word(end))
    for _ in range(4):
        c.record_capacity_flush(word(10))
"""


class ReportsTest(parameterized.TestCase):
    def _lines(self, debug):
        code = textwrap.dedent(_DEBUG.format(debug=debug))
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        prefix = "jax_dmi windows: "
        lines = [x for x in io.StringIO(done.stderr) if x.startswith(prefix)]
        return [line.removeprefix(prefix).strip() for line in lines]

    def test_warnings_come_once(self):
        crossing, fallback = self._lines(debug=False)
        self.assertIn("later window", crossing)
        self.assertIn("ordinary batching for the next 32 periods", fallback)

    def test_debug_reports_each_transition_once(self):
        lines = self._lines(debug=True)
        self.assertLen([x for x in lines if "version 1 is current" in x], 1)
        self.assertLen([x for x in lines if "bytes issued at" in x], 3)
        self.assertLen([x for x in lines if "success at 0" in x], 1)
        self.assertLen([x for x in lines if "overrun at 6" in x], 1)
        self.assertLen([x for x in lines if "overrun at 10" in x], 1)
        self.assertLen([x for x in lines if "ordinary batching" in x], 1)
        self.assertLen(lines, 9)


if __name__ == "__main__":
    absltest.main()
