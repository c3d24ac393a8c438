# SPDX-License-Identifier: Apache-2.0
"""Counts and bytes of records under JAX's transformations, through the kernels.

A part of the cases of ``ops/transforms_test.py``, one for each thing that XLA makes
of a record on a GPU. Needs a GPU, or emulated kernels.
"""

from __future__ import annotations

import collections

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from jax_dmi import ops
from support import capture
from support import transform_cases

_EXACT = (
    "jit",
    "eager",
    "unused_at_top_level",
    "identical_twice",
    "scan",
    "fori",
    "while",
    "eager_scan",
    "loop_invariant_in_scan",
    "cond_taken",
    "cond_not_taken",
    "map",
    "vmap",
    "eager_vmap",
    "vmap_of_cond_with_batched_predicate",
    "vmap_of_scan",
    "associative_scan",
    "unused_jit",
    "unused_scan",
    "unused_cond",
    "unused_while",
    "value_and_grad_of_scan",
    "grad_of_cond",
    "jvp_of_scan",
    "linearize_of_jit",
    "jacrev_of_scan",
    "hessian_of_jit",
    "grad_of_checkpoint_of_scan",
    "grad_of_linear_scan",
    "value_and_grad_of_scan_of_checkpoint",
    "value_and_grad_of_nested_checkpoint",
    "custom_vjp",
    "value_and_grad_of_custom_vjp",
    "value_and_grad_of_scan_of_custom_vjp",
    "jvp_of_custom_jvp",
)
_FAST = ("jit", "scan", "while", "cond_taken", "vmap", "value_and_grad_of_scan")
_X = transform_cases.X


def _cases():
    for name in _EXACT:
        yield f"{name}_exact", transform_cases.CASES[name], True
    for name in _FAST:
        yield f"{name}_fast", transform_cases.CASES[name], False


def _tapped(x):
    return (lambda x: x * x)(ops.record_grad(x, "g"))


_total = transform_cases.total
_GRADS = {
    "grad": (jax.grad(_total(_tapped)), [2 * _X]),
    "scan": (
        jax.grad(_total(transform_cases.scan(_tapped))),
        transform_cases.backward(5),
    ),
    "scan_of_checkpoint": (
        jax.grad(_total(transform_cases.scan(jax.checkpoint(_tapped)))),
        transform_cases.backward(5),
    ),
    "vmap": (jax.grad(_total(jax.vmap(_tapped))), [2 * _X]),
    "jvp": (lambda x: jax.jvp(_tapped, (x,), (x,)), []),
}


class TransformsTest(parameterized.TestCase):
    @parameterized.named_parameters(*_cases())
    def test_records(self, case, exact):
        program = jax.jit(case.program) if case.jit else case.program
        found = capture.counted(program, jnp.asarray(_X), exact=exact)
        self.assertLen(found.records, case.count(exact))
        wanted = collections.Counter((name, v.tobytes()) for name, v in case.values)
        got = collections.Counter((r.name, r.payload.tobytes()) for r in found.records)
        self.assertEqual(got - wanted, collections.Counter())

    @parameterized.named_parameters(*((name, *case) for name, case in _GRADS.items()))
    def test_gradients(self, program, values):
        found = capture.counted(jax.jit(program), jnp.asarray(_X))
        self.assertLen(found.records, len(values))
        for record, value in zip(found.records, values):
            np.testing.assert_array_equal(record.payload, value)


if __name__ == "__main__":
    absltest.main()
