# SPDX-License-Identifier: Apache-2.0
"""Boundaries that nothing keeps in the order they were traced in."""

from __future__ import annotations

import warnings

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp

from jax_dmi import ops
from jax_dmi import windows
from support import transform_cases

X = transform_cases.X
scan = transform_cases.scan
total = transform_cases.total


def window(x):
    return ops.close_window(ops.open_window(x * 2) + 1)


@jax.custom_vjp
def backward(x):
    return window(x)


backward.defvjp(lambda x: (window(x), None), lambda _, g: (window(g) * 2,))


# Programs whose boundaries may pass in any order, and those that only look like it.
_LOOSE = {
    "two_values": lambda x: window(x) + window(x * 3),
    "in_a_jit_in_a_scan": scan(jax.jit(lambda x: window(x) + window(x * 3))),
    "two_calls": lambda x: jax.jit(window)(x) + jax.jit(window)(x * 3),
    "other_result_of_a_call": lambda x: window(
        jax.jit(lambda x: (window(x), x * 3))(x)[1]
    ),
    "other_argument_of_a_call": lambda x: jax.jit(lambda x, y: x + window(y))(
        window(x), x * 3
    ),
    "batched_branches": jax.vmap(
        lambda x: lax.cond(x > 0, window, lambda x: window(-x), x)
    ),
    "backward_of_a_sum": jax.grad(total(lambda x: window(backward(x)))),
}
_TIGHT = {
    "result_of_a_call": lambda x: window(jax.jit(lambda x: (x * 3, window(x)))(x)[1]),
    "argument_of_a_call": lambda x: jax.jit(lambda x, y: x + window(y))(x, window(x)),
    "through_a_loop": lambda x: window(
        lax.scan(lambda c, y: (c + y, window(c)), x, jnp.stack([x, x]))[0]
    ),
    "through_a_tree": lambda x: window(
        ops.advance_boundary((window(x), jnp.int32(0)))[0]
    ),
    "backward_of_squares": jax.grad(total(lambda x: window(backward(x)) ** 2)),
}


class OrderTest(parameterized.TestCase):
    @parameterized.parameters(list(_LOOSE))
    def test_boundaries_that_do_not_wait(self, name):
        place = r"order_test\.py:\d+"
        with self.assertWarnsRegex(UserWarning, f"{place} does not wait for {place}"):
            windows.infer_window_pattern(_LOOSE[name], X)

    @parameterized.parameters(list(_TIGHT))
    def test_boundaries_that_wait(self, name):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            windows.infer_window_pattern(_TIGHT[name], X)


if __name__ == "__main__":
    absltest.main()
