# SPDX-License-Identifier: Apache-2.0
"""The capture spec: selection, equality, and programs that follow it."""

from __future__ import annotations

import re
import threading

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from jax_dmi import _compat
from jax_dmi import errors
from jax_dmi import ops
from jax_dmi import spec as capture_spec
from support import capture


def _is_long(name):
    return len(name) > 3


class SelectionTest(parameterized.TestCase):
    @parameterized.parameters(
        ("*", "a/b", True),
        ("block/*", "block/x/y", True),
        ("block/*", "Block/x", False),
        ("block", "block/x", False),
        ("b?ock", "block", True),
        (re.compile("resid"), "block/resid", True),
        (re.compile("^resid"), "block/resid", False),
        (_is_long, "abcd", True),
        (_is_long, "abc", False),
        (("a", re.compile("b$"), _is_long), "xb", True),
        ((), "a", False),
    )
    def test_patterns(self, select, name, selected):
        spec = capture_spec.CaptureSpec(select=select)
        self.assertEqual(spec.selects(name), selected)

    def test_bad_settings(self):
        with self.assertRaisesRegex(errors.DmiTypeError, "select holds 3"):
            capture_spec.CaptureSpec(select=("*", 3))
        with self.assertRaisesRegex(errors.DmiValueError, "replicas='some'"):
            capture_spec.CaptureSpec(replicas="some")

    def test_equality(self):
        def spec(**kw):
            return capture_spec.CaptureSpec(**kw)

        self.assertEqual(spec(select="a*"), spec(select=["a*"]))
        self.assertEqual(spec(select=re.compile("a")), spec(select=(re.compile("a"),)))
        self.assertEqual(hash(spec(select=_is_long)), hash(spec(select=[_is_long])))
        self.assertNotEqual(
            spec(select=lambda name: True), spec(select=lambda name: True)
        )
        self.assertNotEqual(spec(), spec(exact=False))
        self.assertNotEqual(spec(), spec(size_limit=8))


class ActiveTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(capture_spec.install, None)

    def test_every_thread_sees_the_installed_spec(self):
        spec = capture_spec.CaptureSpec()
        capture_spec.install(spec)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(capture_spec.active()))
        thread.start()
        thread.join(30)
        self.assertEqual(seen, [spec])

    @parameterized.named_parameters(
        ("jit", lambda f: f),
        ("inner_jit", jax.jit),
        ("checkpoint", jax.checkpoint),
        ("vmap", jax.vmap),
        (
            "scan",
            lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), 0), x, None, 1)[0],
        ),
        ("cond", lambda f: lambda x: jax.lax.cond(x[0] > 0, f, lambda x: x, x)),
    )
    def test_a_program_follows_the_spec_back_and_forth(self, wrap):
        traces = []

        def f(x):
            traces.append(0)
            return ops.record(x * 2, "r")

        program = jax.jit(wrap(f))
        x = np.ones(3, np.float32)
        for wanted in (0, 1, 0, 1):
            if wanted:
                found = capture.counted(program, x, same_spec=True)
                self.assertLen(found.records, 1)
            else:
                program(x)
        # The second round finds both programs.
        self.assertLessEqual(len(traces), 4)
        before = len(traces)
        capture.counted(program, x, same_spec=True)
        self.assertLen(traces, before)


class TracingTest(absltest.TestCase):
    def test_tells_transformations_from_plain_calls(self):
        seen = []

        def f(x):
            seen.append(_compat.tracing())
            return x

        f(1.0)
        for transform in (jax.jit, jax.grad, jax.vmap):
            transform(f)(
                np.ones(1, np.float32)[0 if transform is not jax.vmap else ...]
            )
        self.assertEqual(seen, [False, True, True, True])


if __name__ == "__main__":
    absltest.main()
