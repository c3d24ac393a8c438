# SPDX-License-Identifier: Apache-2.0
"""``record_grad``: the cotangent, once per backward pass and never otherwise."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from jax_dmi import errors
from jax_dmi import ops
from support import capture
from support import transform_cases

X = transform_cases.X
_MODES = {"exact": True, "fast": False}
_CHECKPOINT = jax.checkpoint
total = transform_cases.total
scan = transform_cases.scan


def _square(x):
    """Squares ``x`` and records the cotangent of the square."""
    return ops.record_grad(x * x, "g")


def _tapped(x):
    """Squares ``x`` and records the cotangent of ``x``, as ``backward`` lists."""
    return (lambda x: x * x)(ops.record_grad(x, "g"))


@jax.custom_vjp
def _tripled(x):
    return x * 3


_tripled.defvjp(lambda x: (x * 3, None), lambda _, g: (g * 3,))

_ONE = [np.ones_like(X)]
_FIVE = transform_cases.backward(5)
_CASES = {
    "grad": (jax.grad(total(_square)), _ONE),
    "value_and_grad": (jax.value_and_grad(total(_square)), _ONE),
    "vjp": (lambda x: jax.vjp(_square, x)[1](x), [X]),
    "jacrev": (jax.jacrev(_square), [np.eye(4, dtype=np.float32)]),
    "scan": (jax.grad(total(scan(_tapped))), _FIVE),
    "checkpoint": (jax.grad(total(_CHECKPOINT(_tapped))), [2 * X]),
    "scan_of_checkpoint": (jax.grad(total(scan(_CHECKPOINT(_tapped)))), _FIVE),
    "checkpoint_of_scan": (jax.grad(total(_CHECKPOINT(scan(_tapped)))), _FIVE),
    "jit": (jax.grad(total(jax.jit(_square))), _ONE),
    "cond": (
        jax.grad(total(lambda x: lax.cond(x[0] > 0, _square, lambda x: x, x))),
        _ONE,
    ),
    "map": (
        jax.grad(total(lambda x: lax.map(_tapped, x))),
        list(2 * X),
    ),
    "vmap": (jax.grad(total(jax.vmap(_square))), _ONE),
    "vmap_of_grad": (jax.vmap(jax.grad(lambda x: _square(x) ** 2)), [2 * X * X]),
    "under_custom_vjp": (
        jax.grad(total(lambda x: _tripled(ops.record_grad(x, "g")))),
        [3 * np.ones_like(X)],
    ),
    # Second order: one backward pass of the value, whatever is done to it.
    "hessian": (jax.hessian(total(_square)), _ONE),
    # Forward mode has no cotangents.
    "none": (_square, []),
    "jvp": (lambda x: jax.jvp(_square, (x,), (x,)), []),
    "jacfwd": (jax.jacfwd(_square), []),
    "linearize": (lambda x: jax.linearize(_square, x)[1](x), []),
    "integers": (lambda x: _square(x.astype(int)), []),
    "stopped": (jax.grad(lambda x: (x * lax.stop_gradient(_square(x))).sum()), []),
}


class RecordGradTest(parameterized.TestCase):
    @parameterized.product(name=list(_CASES), exact=[True, False])
    def test_records(self, name, exact):
        program, values = _CASES[name]
        found = capture.counted(jax.jit(program), jnp.asarray(X), exact=exact)
        self.assertSameElements(
            [r.payload.tobytes() for r in found.records],
            [np.asarray(v, np.float32).tobytes() for v in values],
        )
        self.assertLen(found.records, len(values))
        for r in found.records:
            self.assertEqual(r.site["kind"], "grad")
        self.assertEmpty(found.never_lowered)
        plain = jax.jit(program)(jnp.asarray(X))
        for got, want in zip(jax.tree.leaves(found.out), jax.tree.leaves(plain)):
            np.testing.assert_array_equal(got, want)

    def test_eager_gradient(self):
        found = capture.counted(jax.grad(total(_square)), jnp.asarray(X))
        np.testing.assert_array_equal(found.records[0].payload, np.ones_like(X))

    def test_every_call_of_a_pullback_records(self):
        def f(x):
            _, pullback = jax.vjp(_square, x)
            return pullback(x), pullback(2 * x)

        self.assertEqual(capture.counted(jax.jit(f), X).counts, {"g": 2})

    @parameterized.named_parameters(*_MODES.items())
    def test_labels_and_conditions(self, exact):
        def body(c, i):
            return ops.record_grad(c * 2, "g", step=i, layer=3, when=i != 1), None

        def loss(x):
            return lax.scan(body, x, jnp.arange(3))[0].sum()

        found = capture.counted(jax.jit(jax.grad(loss)), X, exact=exact)
        self.assertEqual(
            [r.labels for r in found.records],
            [{"step": 2, "layer": 3}, {"step": 0, "layer": 3}],
        )

    def test_leaves_of_a_pytree(self):
        def loss(tree):
            tree = ops.record_grad(tree, "t")
            return (tree["a"] * tree["b"][0]).sum() + tree["b"][1]

        tree = {"a": X, "b": (2 * X, np.float32(1))}
        found = capture.counted(jax.jit(jax.grad(loss)), tree)
        self.assertEqual(found.counts, {"t/a": 1, "t/b/0": 1, "t/b/1": 1})

    def test_selection(self):
        f = jax.jit(jax.grad(total(_square)))
        self.assertEmpty(capture.counted(f, X, select=("other",)).records)

    def test_keys_are_refused(self):
        with self.assertRaisesRegex(errors.DmiTypeError, "'k'"):
            capture.counted(lambda: ops.record_grad(jax.random.key(0), "k"))


if __name__ == "__main__":
    absltest.main()
