# SPDX-License-Identifier: Apache-2.0
"""Windows over the device's own link: transfers keep to them, and bytes are exact.

Needs a GPU, or emulated kernels.
"""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from support import backend
from support import busy
from support import memory_sink

_PERIODS = 60
_LEARNING = 20
_PATTERN = dmi.WindowPattern(period=2, windows=[(1, 2)])
_SIZE = 500_000 if backend.platform() == "cuda" else 5000


@jax.jit
def _period(i, matrix):
    """Computes inside a window, and records and computes after it."""
    i, matrix = dmi.open_window((i, matrix))
    matrix = busy.work(matrix)
    i, matrix = dmi.close_window((i + 0 * matrix[0, 0] + 1, matrix))
    row = dmi.record(jnp.full(_SIZE, i), "row")
    return i + 0 * row[0], busy.work(matrix)


class WindowsTest(parameterized.TestCase):
    @parameterized.parameters("deadline", "binary_adaptive")
    def test_transfers_keep_to_windows_and_bytes_are_exact(self, policy):
        sink = memory_sink.MemorySink()
        config = dmi.WindowConfig(policy=policy, initial_grant_bytes="1MiB")
        with dmi.Monitor(sink=sink, ring_bytes="256MiB", windows=config) as monitor:
            monitor.define_window_pattern(_PATTERN)
            i, matrix = jnp.float32(0), busy.matrix()
            for _ in range(_PERIODS):
                i, matrix = _period(i, matrix)
            jax.block_until_ready(matrix)
            moved = monitor.transfers()
            state = monitor.window_state()
            monitor.flush()
        self.assertEqual(state.mode, "active")
        self.assertLen(monitor.boundaries(), 2 * _PERIODS)
        for number, record in enumerate(sink.records):
            np.testing.assert_array_equal(record.value, np.full(_SIZE, number + 1))
        self.assertLen(sink.records, _PERIODS)

        self.assertEqual({t.kind for t in moved}, {"window"})
        for t in moved:
            self.assertIsNotNone(_PATTERN.match(t.begin_counter), t)
        # A link that shares its cores with the program keeps no time.
        if backend.platform() == "cuda":
            learned = [t for t in moved if t.begin_counter > 2 * _LEARNING]
            late = [t for t in learned if t.end_counter != t.begin_counter]
            size = sum(t.bytes for t in learned)
            self.assertGreater(size, (_PERIODS - _LEARNING) * _SIZE * 4 // 2)
            self.assertLessEqual(sum(t.bytes for t in late), 0.05 * size, late)


if __name__ == "__main__":
    absltest.main()
