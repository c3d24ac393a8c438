# SPDX-License-Identifier: Apache-2.0
"""Boundaries: how often they count, what they order and what they cost."""

from __future__ import annotations

import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from jax_dmi import errors
from jax_dmi import ops
from jax_dmi import spec as capture_spec
from support import capture
from support import transform_cases

X = transform_cases.X
_MODES = {"exact": True, "fast": False}
total = transform_cases.total
scan = transform_cases.scan


def _step(x):
    return ops.advance_boundary(x * x)


_COUNTS = {
    "jit": (_step, 1, 1),
    "twice": (lambda x: _step(_step(x)), 2, 2),
    "unused": (transform_cases.unused(_step), 1, 1),
    "unused_scan": (transform_cases.unused(scan(_step)), 5, 0),
    "scan": (scan(_step), 5, 5),
    "while": (transform_cases.while_(_step), 5, 5),
    "cond": (lambda x: lax.cond(x[0] > 0, _step, lambda x: x, x), 1, 1),
    "vmap": (jax.vmap(_step), 1, 1),
    "grad": (jax.grad(total(_step)), 1, 1),
    "grad_of_scan": (jax.grad(total(scan(_step))), 5, 5),
    "value_and_grad_of_scan_of_checkpoint": (
        jax.value_and_grad(total(scan(jax.checkpoint(_step)))),
        5,
        5,
    ),
    "grad_of_checkpoint_of_scan": (
        jax.grad(total(jax.checkpoint(scan(_step)))),
        5,
        0,
    ),
    "hessian": (jax.hessian(total(_step)), 1, 1),
    "jvp": (lambda x: jax.jvp(_step, (x,), (x,)), 1, 1),
}


class CountsTest(parameterized.TestCase):
    @parameterized.product(name=list(_COUNTS), exact=[True, False])
    def test_counts(self, name, exact):
        program, *counts = _COUNTS[name]
        found = capture.counted(jax.jit(program), X, exact=exact)
        wanted = counts[0] if exact else counts[1]
        self.assertEqual(sum(found.boundaries.values()), wanted)
        plain = jax.jit(program)(X)
        for got, want in zip(jax.tree.leaves(found.out), jax.tree.leaves(plain)):
            np.testing.assert_array_equal(got, want)

    def test_windows_count_one_each(self):
        f = jax.jit(lambda x: ops.close_window(ops.open_window(x) * 2))
        self.assertEqual(sum(capture.counted(f, X).boundaries.values()), 2)

    def test_eager(self):
        found = capture.counted(ops.advance_boundary, jnp.asarray(X))
        self.assertEqual(sum(found.boundaries.values()), 1)
        np.testing.assert_array_equal(found.out, X)


class LeavesTest(parameterized.TestCase):
    def test_every_leaf_comes_back(self):
        tree = {
            "key": jax.random.key(3),
            "half": np.arange(6, dtype=jnp.bfloat16),
            "empty": np.zeros((0, 2), np.float32),
            "nested": (jnp.float32(2), None, np.int32(1)),
        }
        found = capture.counted(jax.jit(ops.advance_boundary), tree)
        self.assertEqual(sum(found.boundaries.values()), 1)
        self.assertEqual(jax.tree.structure(found.out), jax.tree.structure(tree))
        np.testing.assert_array_equal(found.out["half"], tree["half"])
        np.testing.assert_array_equal(
            jax.random.key_data(found.out["key"]), jax.random.key_data(tree["key"])
        )

    @parameterized.parameters("bool", "int8", "complex64", "bfloat16", "int4")
    def test_any_type_may_be_the_only_leaf(self, dtype):
        x = jnp.ones(3, dtype)
        found = capture.counted(jax.jit(ops.advance_boundary), x)
        self.assertEqual(sum(found.boundaries.values()), 1)
        self.assertEqual(np.asarray(found.out).tobytes(), np.asarray(x).tobytes())

    def test_an_empty_array_is_enough(self):
        f = jax.jit(ops.advance_boundary)
        found = capture.counted(f, np.zeros((0, 3), np.float32))
        self.assertEqual(sum(found.boundaries.values()), 1)

    def test_mixed_leaves_under_checkpoint_and_grad(self):
        def f(x, n):
            x, n = ops.advance_boundary((jnp.sin(x), n + 1))
            return jnp.sin(x).sum() * n

        g = jax.jit(jax.grad(jax.checkpoint(f)))
        found = capture.counted(g, X, 2)
        self.assertEqual(sum(found.boundaries.values()), 1)
        np.testing.assert_allclose(found.out, jax.grad(f)(X, 2), rtol=1e-6)

    @parameterized.named_parameters(
        ("nothing", lambda: ()),
        ("numbers", lambda: (1, 2.0)),
        ("key", lambda: jax.random.key(0)),
    )
    def test_without_an_array_it_is_refused(self, make):
        for call in (ops.advance_boundary, ops.open_window, ops.close_window):
            with self.assertRaisesRegex(errors.DmiTypeError, "x="):
                capture.counted(call, make())


class OrderTest(parameterized.TestCase):
    """Which boundaries a record has behind it, with work of every size around."""

    def assertInOrder(self, program, x, wanted, **mode):
        for _ in range(10):
            found = capture.counted(program, x, **mode)
            self.assertEqual([r.boundary for r in found.records], wanted)

    @parameterized.product(size=[4, 300], exact=[True, False])
    def test_one_array(self, size, exact):
        def f(x):
            for i in range(6):
                x = ops.record(ops.record(x * 2, "r", step=i), "q")
                x = ops.advance_boundary(x)
            return x @ x

        x = np.ones((size, size), np.float32)
        order = [i for i in range(6) for _ in "rq"]
        self.assertInOrder(jax.jit(f), x, order, exact=exact)

    @parameterized.product(size=[4, 300], exact=[True, False])
    def test_an_array_and_a_scalar(self, size, exact):
        """On the CPU only the scalar is held back, and what touches the boundary."""

        def f(x):
            n = jnp.int32(0)
            for i in range(6):
                x = ops.record(x @ x, "before", step=i)
                x, n = ops.advance_boundary((x, n + 1))
                x = ops.record(x, "after", step=i)
            return x, n

        x = np.ones((size, size), np.float32)
        for _ in range(10):
            for r in capture.counted(jax.jit(f), x, exact=exact).records:
                if r.name == "before":
                    self.assertLessEqual(r.boundary, r.labels["step"])
                else:
                    self.assertGreater(r.boundary, r.labels["step"])

    @parameterized.product(size=[4, 300], exact=[True, False])
    def test_scan(self, size, exact):
        def body(c, _):
            c = ops.record(jnp.sin(c @ c), "before")
            c = ops.advance_boundary(c)
            return ops.record(jnp.cos(c), "after"), None

        x = np.ones((size, size), np.float32)
        f = jax.jit(lambda x: lax.scan(body, x, None, length=5)[0])
        order = [i + after for i in range(5) for after in (0, 1)]
        self.assertInOrder(f, x, order, exact=exact)


def _programs(boundary):
    """Programs of large arrays, with a boundary per layer."""
    weight = jnp.ones((128, 128))

    def layer(h):
        return jnp.tanh(h @ weight)

    def pair(state):
        return boundary((layer(state[0]), state[1] + 1))

    def looped(body, x):
        return lax.scan(lambda c, _: (body(c), None), x, None, length=5)[0]

    def unrolled(body, x):
        for _ in range(4):
            x = body(x)
        return x

    def single(h):
        return boundary(layer(h))

    return {
        "scan": lambda x: looped(pair, (x, jnp.int32(0))),
        "grad_of_scan": jax.grad(lambda x: looped(pair, (x, jnp.int32(0)))[0].sum()),
        "unrolled": lambda x: unrolled(pair, (x, jnp.int32(0))),
        "grad_of_unrolled": jax.grad(
            lambda x: unrolled(pair, (x, jnp.int32(0)))[0].sum()
        ),
        "single_in_scan": lambda x: looped(single, x),
        "single_in_grad_of_scan": jax.grad(lambda x: looped(single, x).sum()),
        "single_in_grad_of_unrolled": jax.grad(lambda x: unrolled(single, x).sum()),
    }


def _compiled(program, spec):
    """The copies of arrays in a program, outside of fusions, and its memory."""
    with capture_spec.overriding(spec):
        compiled = jax.jit(program).lower(np.ones((128, 128), np.float32)).compile()
    text = compiled.as_text()
    fused = re.compile(r"^%fused_computation.*?^}", re.M | re.S)
    copies = re.findall(r" = \w+\[[\d,]+\]\S* copy\(", fused.sub("", text))
    return len(copies), compiled.memory_analysis().temp_size_in_bytes


class CostTest(parameterized.TestCase):
    @parameterized.product(
        name=["scan", "grad_of_scan", "unrolled", "grad_of_unrolled"],
        exact=[True, False],
    )
    def test_a_scalar_leaf_makes_it_free_of_copies(self, name, exact):
        plain = _compiled(_programs(lambda x: x)[name], None)
        spec = capture_spec.CaptureSpec(exact=exact)
        found = _compiled(_programs(ops.advance_boundary)[name], spec)
        self.assertEqual(found[0], plain[0])

    @parameterized.parameters(
        ("single_in_scan", 0),
        ("single_in_grad_of_scan", 1),
        ("single_in_grad_of_unrolled", 4),
    )
    def test_a_single_large_leaf_on_the_cpu(self, name, extra):
        """Is kept for the gradient and passed on in place: one copy each."""
        plain = _compiled(_programs(lambda x: x)[name], None)
        found = _compiled(
            _programs(ops.advance_boundary)[name], capture_spec.CaptureSpec()
        )
        self.assertLessEqual(found[0], plain[0] + extra)
        one_array = 128 * 128 * 4
        self.assertLessEqual(found[1], plain[1] + one_array)

    def test_a_single_large_leaf_stays_out_of_the_call_on_cuda(self):
        with capture_spec.overriding(capture_spec.CaptureSpec()):
            traced = jax.jit(ops.advance_boundary).trace(np.ones((8, 8), np.float32))
            for platform, kind in (
                ("cuda", "tensor<ui32>"),
                ("cpu", "tensor<8x8xf32>"),
            ):
                text = traced.lower(lowering_platforms=(platform,)).as_text()
                line = next(s for s in text.splitlines() if "@dmi_advance" in s)
                self.assertTrue(line.endswith(f"({kind}) -> {kind}"), line)


if __name__ == "__main__":
    absltest.main()
