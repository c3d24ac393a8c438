# SPDX-License-Identifier: Apache-2.0
"""Patterns and configurations as users write them."""

from __future__ import annotations

import copy
import dataclasses
import pickle

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

import jax_dmi as dmi
from jax_dmi import windows


class PatternTest(parameterized.TestCase):
    @parameterized.parameters(
        ("period", (0, [(0, 1)])),
        ("period", (-1, [(0, 1)])),
        ("period", (2.0, [(0, 1)])),
        ("period", (2**64, [(0, 1)])),
        ("windows", (4, [])),
        ("windows", (4, 3)),
        ("windows", (4, "ab")),
        ("windows", (4, [3])),
        ("windows", (4, [(0, 1, 2)])),
        ("windows", (4, [(0, 1.5)])),
        ("windows", (4, [(-1, 1)])),
        ("windows", (4, [(1, 1)])),
        ("windows", (4, [(3, 5)])),
        ("windows", (4, [(0, 2), (1, 3)])),
        ("windows", (4, [(2, 3), (0, 1)])),
        ("initial_counter", (4, [(0, 1)], 2**48)),
        ("initial_counter", (4, [(0, 1)], -1)),
    )
    def test_a_refusal_names_the_parameter(self, parameter, arguments):
        with self.assertRaisesRegex(dmi.DmiValueError, f"^{parameter}"):
            dmi.WindowPattern(*arguments)

    def test_equal_windows_make_equal_patterns(self):
        a = dmi.WindowPattern(np.int32(4), [[0, np.int64(2)], (2, 4)])
        b = dmi.WindowPattern(4, ((0, 2), (2, 4)), initial_counter=0)
        self.assertEqual(a, b)
        self.assertEqual(hash(a), hash(b))
        self.assertNotEqual(a, dataclasses.replace(b, initial_counter=1))
        self.assertEqual(pickle.loads(pickle.dumps(a)), b)
        self.assertEqual(copy.deepcopy(a), b)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            a.period = 5  # pyright: ignore[reportAttributeAccessIssue]

    def test_match_gives_absolute_counters(self):
        pattern = dmi.WindowPattern(5, [(1, 2), (3, 5)])
        found = [pattern.match(counter) for counter in range(10, 16)]
        first = dmi.WindowMatch(0, 2, 11, 12)
        second = dmi.WindowMatch(1, 2, 13, 15)
        self.assertEqual(found, [None, first, None, second, second, None])
        with self.assertRaisesRegex(dmi.DmiValueError, "^counter"):
            pattern.match(-1)


class ConfigTest(parameterized.TestCase):
    @parameterized.parameters(
        ("policy", "greedy"),
        ("minimum_record_probe_retry_interval", 0),
        ("timing_revalidation_retry_interval", 0),
        ("capacity_flush_fallback_threshold", 0),
        ("capacity_flush_count_reset_interval", 0),
        ("capacity_flush_count_reset_interval", 1.5),
        ("initial_grant_bytes", 0),
        ("chunk_bytes", "many"),
        ("chunk_bytes", None),
        ("margin", 0),
        ("margin", 1.01),
        ("margin", "half"),
        ("watchdog", -1),
        ("max_age", float("nan")),
        ("max_grant", 0),
        ("debug", 1),
    )
    def test_a_refusal_names_the_parameter(self, parameter, value):
        with self.assertRaisesRegex(dmi.DmiValueError, f"^{parameter}="):
            dmi.WindowConfig(**{parameter: value})

    def test_sizes_become_bytes(self):
        config = dmi.WindowConfig(initial_grant_bytes="64KiB", max_grant="1MB")
        self.assertEqual(config.initial_grant_bytes, 65536)
        self.assertEqual(config.chunk_bytes, 2**20)
        self.assertEqual(config.max_grant, 10**6)
        self.assertEqual(config, dmi.WindowConfig("deadline", 4, 4, 3, 32, 65536,
                                                  max_grant=10**6))  # fmt: skip


class LinkTest(parameterized.TestCase):
    @parameterized.parameters(
        ("bytes_per_second", {"bytes_per_second": 0}),
        ("bytes_per_second", {"bytes_per_second": float("inf")}),
        ("bytes_per_second", {"bytes_per_second": "fast"}),
        ("latency", {"latency": -1e-6}),
        ("jitter", {"jitter": 1}),
        ("jitter", {"jitter": -0.1}),
        ("seed", {"seed": -1}),
        ("clock", {"clock": 0}),
    )
    def test_a_refusal_names_the_parameter(self, parameter, arguments):
        with self.assertRaisesRegex(dmi.DmiError, f"^{parameter}="):
            dmi.SimulatedLink(**{"bytes_per_second": 1e9, **arguments})

    def test_rates_may_be_sizes(self):
        link = dmi.SimulatedLink("2GiB", clock=windows.ManualClock())
        self.assertEqual(link.bytes_per_second, 2**31)
        self.assertEqual(link.latency, 10e-6)

    def test_a_clock_stands_until_it_is_moved(self):
        clock = windows.ManualClock()
        self.assertEqual(clock.now(), 0)
        clock.advance(5)
        clock.advance(ns=7)
        for step in (-1, 1.5, "1", 2**63 - 12):
            with self.assertRaisesRegex(dmi.DmiValueError, "^ns="):
                clock.advance(step)
        self.assertEqual(clock.now(), 12)


if __name__ == "__main__":
    absltest.main()
