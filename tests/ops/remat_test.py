# SPDX-License-Identifier: Apache-2.0
"""Records inside ``jax.checkpoint``: once, never on recompute, no new residuals."""

from __future__ import annotations

import contextlib
import io

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np

from jax_dmi import ops
from jax_dmi import spec as capture_spec
from support import capture
from support import transform_cases

_POLICIES = jax.checkpoint_policies
_STOCK = {
    "default": None,
    "everything": _POLICIES.everything_saveable,
    "nothing": _POLICIES.nothing_saveable,
    "dots": _POLICIES.dots_saveable,
    "dots_without_batch": _POLICIES.dots_with_no_batch_dims_saveable,
    "checkpoint_dots": _POLICIES.checkpoint_dots,
    "checkpoint_dots_without_batch": _POLICIES.checkpoint_dots_with_no_batch_dims,
    "only_first": _POLICIES.save_only_these_names("first"),
    "only_second": _POLICIES.save_only_these_names("second"),
    "only_both": _POLICIES.save_only_these_names("first", "second"),
    "all_but_first": _POLICIES.save_anything_except_these_names("first"),
    "names_but_first": _POLICIES.save_any_names_but_these("first"),
    "from_both": _POLICIES.save_from_both_policies(
        _POLICIES.dots_saveable, _POLICIES.save_only_these_names("first")
    ),
    "offload_names": _POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=["first"],
        names_which_can_be_offloaded=["second"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
    "offload_dots": _POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host"),
}
_MODES = {"exact": True, "fast": False}

# Every value has a shape of its own, so that residuals are told apart.
_WEIGHTS = [np.full((n, n + 1), 0.25, np.float32) for n in (4, 5, 6)]
_INPUT = np.arange(8, dtype=np.float32).reshape(2, 4)


def _network(x):
    name = jax.ad_checkpoint.checkpoint_name
    x = ops.record(name(jnp.sin(x @ _WEIGHTS[0]), "first"), "a")
    x = ops.record(jnp.tanh(ops.record(x @ _WEIGHTS[1], "b")), "c")
    return name(ops.record(jnp.cos(x @ _WEIGHTS[2]), "d"), "second")


def _loss(policy):
    return lambda x: jax.checkpoint(_network, policy=policy)(x).sum()


def _residuals(f):
    """The residuals that JAX lists, by type, without where they come from."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        jax.ad_checkpoint.print_saved_residuals(f, _INPUT)
    return sorted(line.split()[0] for line in text.getvalue().splitlines())


class RematTest(parameterized.TestCase):
    @parameterized.product(
        policy=list(_STOCK), exact=[True, False], value=[True, False]
    )
    def test_policy_records_each_value_once(self, policy, exact, value):
        loss = _loss(_STOCK[policy])
        f = jax.value_and_grad(loss) if value else jax.grad(loss)
        found = capture.counted(jax.jit(f), _INPUT, exact=exact)
        self.assertEqual(found.counts, dict.fromkeys("abcd", 1))
        self.assertEmpty(found.never_lowered)

    @parameterized.product(policy=list(_STOCK), exact=[True, False])
    def test_policy_saves_the_same_residuals(self, policy, exact):
        loss = _loss(_STOCK[policy])
        with capture_spec.overriding(None):
            plain = _residuals(loss)
        with capture_spec.overriding(capture_spec.CaptureSpec(exact=exact)):
            self.assertEqual(_residuals(loss), plain)

    @parameterized.product(exact=[True, False])
    def test_labels_and_conditions_are_no_residuals(self, exact):
        def body(x, i):
            x = jnp.sin(x)
            return ops.record(x, "r", step=i, layer=3, when=x[0, 0] > 0), None

        def loss(x):
            f = jax.checkpoint(lambda x: lax.scan(body, x, jnp.arange(3))[0])
            return f(x).sum()

        with capture_spec.overriding(None):
            plain = _residuals(loss)
        with capture_spec.overriding(capture_spec.CaptureSpec(exact=exact)):
            self.assertEqual(_residuals(loss), plain)


class Remat3Test(parameterized.TestCase):
    """The second implementation of ``checkpoint``, off by default."""

    def setUp(self):
        super().setUp()
        jax.config.update("jax_remat3", True)
        self.addCleanup(jax.config.update, "jax_remat3", False)

    @parameterized.named_parameters(
        ("checkpoint", lambda f: f, 1, 1),
        ("of_jit", jax.jit, 1, 0),
        ("of_cond", transform_cases.cond, 1, 0),
        ("of_scan", transform_cases.scan, 5, 0),
    )
    def test_gradient_records(self, wrap, exact, fast):
        f = jax.checkpoint(wrap(transform_cases.square))
        program = jax.jit(jax.grad(transform_cases.total(f)))
        for mode, wanted in ((True, exact), (False, fast)):
            found = capture.counted(program, transform_cases.X, exact=mode)
            self.assertLen(found.records, wanted)
            self.assertEqual(bool(found.never_lowered), wanted == 0)

    @parameterized.named_parameters(*_MODES.items())
    def test_scan_of_checkpoint(self, exact):
        f = transform_cases.scan(jax.checkpoint(transform_cases.square))
        program = jax.jit(jax.value_and_grad(transform_cases.total(f)))
        found = capture.counted(program, transform_cases.X, exact=exact)
        self.assertLen(found.records, 5)

    @parameterized.named_parameters(*_MODES.items())
    def test_nested_checkpoint(self, exact):
        square = transform_cases.square
        f = jax.checkpoint(lambda x: jax.checkpoint(square)(square(x)))
        program = jax.jit(jax.grad(transform_cases.total(f)))
        found = capture.counted(program, transform_cases.X, exact=exact)
        # Before 0.12 the inner function is run again with its records.
        self.assertLen(found.records, 2 if transform_cases.SINCE_0_12 else 3)


if __name__ == "__main__":
    absltest.main()
