# SPDX-License-Identifier: Apache-2.0
"""Counts and payloads of records under JAX's transformations, in both modes.

Losses that remain are written down in the cases, and checked to be reported.
"""

from __future__ import annotations

import collections

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp

from support import capture
from support import transform_cases

_MODES = {"exact": True, "fast": False}


def _all_cases():
    for name, case in transform_cases.CASES.items():
        for mode in _MODES:
            yield f"{name}_{mode}", case, _MODES[mode]


class TransformsTest(parameterized.TestCase):
    @parameterized.named_parameters(*_all_cases())
    def test_records(self, case, exact):
        program = jax.jit(case.program) if case.jit else case.program
        x = jnp.asarray(transform_cases.X)
        found = capture.counted(program, x, exact=exact)
        plain = jax.jit(case.program)(x)

        self.assertLen(found.records, case.count(exact))
        self.assertSameValues(found.records, case.values)
        self.assertEqual(bool(found.never_lowered), case.is_reported(exact))
        for got, want in zip(jax.tree.leaves(found.out), jax.tree.leaves(plain)):
            self.assertEqual(got.tobytes(), want.tobytes())

    def assertSameValues(self, records, values):
        """Every record holds one of the values, and no value comes too often."""
        wanted = collections.Counter((name, v.tobytes()) for name, v in values)
        found = collections.Counter((r.name, r.payload.tobytes()) for r in records)
        self.assertEqual(found - wanted, collections.Counter())

    @parameterized.named_parameters(*_MODES.items())
    def test_forward_mode_through_custom_vjp_is_refused_by_jax(self, exact):
        f = jax.jit(lambda x: jax.jvp(transform_cases.with_custom_vjp, (x,), (x,)))
        with self.assertRaisesRegex(TypeError, "custom_vjp"):
            capture.counted(f, jnp.asarray(transform_cases.X), exact=exact)


if __name__ == "__main__":
    absltest.main()
