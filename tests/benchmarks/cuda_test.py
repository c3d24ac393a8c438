# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of a GPU: with kernels they run to their end, else they say why not.

They measure as little as they can, and what comes out means nothing.
"""

from __future__ import annotations

import math

from absl.testing import absltest
from absl.testing import parameterized

from jax_dmi import bench
from jax_dmi.bench import cuda
from jax_dmi.bench import cuda_link
from jax_dmi.bench import cuda_step
from support import backend

_COPIES = cuda.Plan(
    ring_bytes=1 << 20,
    sizes=(1 << 12, 1 << 16),
    most=8,
    nodes=8,
    drain_record=1 << 16,
    drain_bytes=3 << 20,
    rounds=2,
)
_LINK = cuda_link.Plan(
    ring_bytes=4 << 20,
    matrix=64,
    products=4,
    periods=12,
    learning=4,
    upload_bytes=1 << 16,
    rounds=2,
)
_STEP = cuda_step.Plan(
    layers=2,
    width=32,
    heads=2,
    length=16,
    batch=1,
    steps=2,
    rounds=2,
    ring_bytes=1 << 20,
)


class BenchTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("copies", cuda.run, _COPIES, 5),
        ("link", cuda_link.run, _LINK, 5),
        ("step", cuda_step.run, _STEP, 3),
    )
    def test_every_row_is_measured(self, run, plan, count):
        if not backend.runs_kernels():
            with self.assertRaisesRegex(bench.Unavailable, "needs a GPU"):
                run()
            return
        rows = run(plan)
        self.assertLen({row.name for row in rows}, count)
        for row in rows:
            self.assertTrue(math.isfinite(row.value), row)


if __name__ == "__main__":
    absltest.main()
