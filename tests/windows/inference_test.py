# SPDX-License-Identifier: Apache-2.0
"""Inferred window patterns, against what the programs really pass."""

from __future__ import annotations

import functools
import warnings

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from jax_dmi import errors
from jax_dmi import monitor
from jax_dmi import ops
from jax_dmi import spec as capture_spec
from jax_dmi import windows
from support import capture
from support import isolated
from support import transform_cases

X = transform_cases.X
scan = transform_cases.scan
total = transform_cases.total


def window(x):
    """A window and a stretch outside of it, with a record in each."""
    x = ops.record(ops.open_window(x * 2), "in")
    return ops.record(ops.close_window(x + 1), "out")


def advance(x):
    return ops.advance_boundary(x * 2)


def across(x):
    """Closes the window that the call before left open."""
    x = ops.record(ops.close_window(x * 2), "out")
    x = advance(x)
    return ops.record(ops.open_window(x + 1), "in")


@jax.custom_batching.custom_vmap
def mapped(x):
    return window(x)


@mapped.def_vmap
def _mapped_rule(size, batched, x):
    del size
    return jax.vmap(window)(x), batched[0]


@jax.custom_vjp
def backward(x):
    return advance(x)


backward.defvjp(lambda x: (advance(x), None), lambda _, g: (window(g) * 2,))


@jax.custom_jvp
def forward(x):
    return window(x)


@forward.defjvp
def _forward_rule(primals, tangents):
    return window(primals[0]), 2 * tangents[0]


# Program, period, windows.
_PROGRAMS = {
    "plain": (window, 2, [(1, 2)]),
    "behind_advances": (lambda x: window(advance(advance(x))), 4, [(3, 4)]),
    "advance_inside": (
        lambda x: ops.close_window(advance(ops.open_window(x * 2))),
        3,
        [(1, 3)],
    ),
    "twice": (lambda x: window(window(x)), 4, [(1, 2), (3, 4)]),
    "jit": (jax.jit(window), 2, [(1, 2)]),
    "jit_shared": (
        lambda x: (lambda f: f(f(f(x))))(jax.jit(window)),
        6,
        [(1, 2), (3, 4), (5, 6)],
    ),
    "scan": (scan(window), 10, [(i, i + 1) for i in range(1, 10, 2)]),
    "scan_around_scan": (
        scan(lambda x: scan(advance)(window(x))),
        35,
        [(7 * i + 1, 7 * i + 2) for i in range(5)],
    ),
    "window_around_scan": (
        lambda x: ops.close_window(scan(advance)(ops.open_window(x * 2))),
        7,
        [(1, 7)],
    ),
    "empty_scan": (
        lambda x: lax.scan(lambda c, _: (window(c), None), window(x), None, length=0)[
            0
        ],
        2,
        [(1, 2)],
    ),
    "map": (
        lambda x: lax.map(window, x),
        8,
        [(i, i + 1) for i in range(1, 8, 2)],
    ),
    "fori": (
        lambda x: lax.fori_loop(0, 3, lambda _, c: window(c), x),
        6,
        [(1, 2), (3, 4), (5, 6)],
    ),
    "while_without": (
        lambda x: window(lax.while_loop(lambda c: c[0] < 9, lambda c: c * 2, x)),
        2,
        [(1, 2)],
    ),
    "jit_in_scan": (scan(jax.jit(window)), 10, [(i, i + 1) for i in range(1, 10, 2)]),
    "vmap": (jax.vmap(window), 2, [(1, 2)]),
    "vmap_of_scan": (
        jax.vmap(scan(window)),
        10,
        [(i, i + 1) for i in range(1, 10, 2)],
    ),
    "remat": (jax.checkpoint(window), 2, [(1, 2)]),
    "grad": (jax.grad(total(window)), 2, [(1, 2)]),
    "value_and_grad_of_remat_in_scan": (
        jax.value_and_grad(total(scan(jax.checkpoint(lambda x: window(jnp.sin(x)))))),
        10,
        [(i, i + 1) for i in range(1, 10, 2)],
    ),
    "grad_of_remat": (
        jax.grad(total(jax.checkpoint(lambda x: jnp.sin(window(jnp.sin(x)))))),
        2,
        [(1, 2)],
    ),
    "grad_of_remat_of_scan": (
        jax.grad(total(jax.checkpoint(scan(lambda x: window(jnp.sin(x)))))),
        10,
        [(i, i + 1) for i in range(1, 10, 2)],
    ),
    "hessian": (jax.hessian(total(lambda x: window(x) ** 3)), 2, [(1, 2)]),
    "custom_vjp": (lambda x: window(backward(x)), 3, [(2, 3)]),
    "grad_of_custom_vjp": (
        jax.grad(total(lambda x: window(backward(x)) ** 2)),
        5,
        [(2, 3), (4, 5)],
    ),
    "custom_jvp": (forward, 2, [(1, 2)]),
    "grad_of_custom_jvp": (jax.grad(total(forward)), 2, [(1, 2)]),
    "custom_vmap": (mapped, 2, [(1, 2)]),
    "composite": (lax.composite(window, name="test.window"), 2, [(1, 2)]),
    "cond": (
        lambda x: lax.cond(x[0] > 0, window, lambda x: window(-x), x),
        2,
        [(1, 2)],
    ),
    "cond_without": (
        lambda x: window(lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)),
        2,
        [(1, 2)],
    ),
    "eager": (lambda x: window(jax.jit(window)(x)), 4, [(1, 2), (3, 4)]),
    # The window of one call ends in the next.
    "across_calls": (across, 3, [(0, 1)]),
}


class CountedTest(parameterized.TestCase):
    @parameterized.product(name=list(_PROGRAMS), calls=[1, 3])
    def test_is_what_the_program_passes(self, name, calls):
        program, period, wanted = _PROGRAMS[name]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pattern = windows.infer_window_pattern(program, X)
        self.assertEqual(pattern, windows.WindowPattern(period, wanted))

        run = program if name == "eager" else jax.jit(program)
        found = capture.counted(lambda: [run(X) for _ in range(calls)])
        self.assertEqual(found.boundaries, {0: calls * period})
        self.assertRecordsInWindows(found, pattern)

    def assertRecordsInWindows(self, found, pattern):
        for record in found.records:
            matched = pattern.match(pattern.initial_counter + record.boundary)
            self.assertEqual(matched is not None, record.name == "in", record)

    def test_a_window_left_open_lies_within_one_period(self):
        def program(x):
            return advance(advance(across(x)))

        pattern = windows.infer_window_pattern(program, X)
        self.assertEqual(pattern, windows.WindowPattern(5, [(0, 3)], initial_counter=2))
        found = capture.counted(lambda: [jax.jit(program)(X) for _ in range(3)])
        self.assertEqual(found.boundaries, {0: 15})
        self.assertRecordsInWindows(found, pattern)

    def test_fast_mode_may_pass_less(self):
        program = jax.grad(total(jax.checkpoint(scan(window))))
        self.assertEqual(windows.infer_window_pattern(program, X).period, 10)
        for exact, passed in ((True, {0: 10}), (False, {})):
            found = capture.counted(jax.jit(program), X, exact=exact)
            self.assertEqual(found.boundaries, passed)


class ArgumentsTest(parameterized.TestCase):
    def test_shapes_keywords_and_static_arguments(self):
        @functools.partial(jax.jit, static_argnames="n", donate_argnums=0)
        def program(tree, n, *, shift):
            tree = lax.scan(lambda c, _: (window(c), None), tree["a"], None, length=n)
            return tree[0] + shift

        shape = jax.ShapeDtypeStruct((4,), np.float32)
        pattern = windows.infer_window_pattern(program, {"a": shape}, 3, shift=shape)
        self.assertEqual(pattern.period, 6)
        x = jnp.asarray(X)
        windows.infer_window_pattern(program, {"a": x}, n=2, shift=1.0)
        self.assertFalse(x.is_deleted())

    def test_accounts_of_records_stay_as_they_are(self):
        def program(x):
            return ops.record_grad(ops.record(window(x), "r"), "g")

        for spec in (capture_spec.CaptureSpec(), capture_spec.CaptureSpec(select=())):
            before = capture_spec.never_lowered(spec)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                windows.infer_window_pattern(jax.grad(total(program)), X)
            self.assertEqual(capture_spec.never_lowered(spec), before)
        self.assertNotIn("dmi", jax.jit(program).lower(X).as_text())

    def test_under_a_monitor(self):
        with monitor.Monitor(sink=capture.sinks.NullSink()) as m:
            pattern = windows.infer_window_pattern(scan(window), X)
            m.flush()
        self.assertEqual(pattern.period, 10)
        self.assertEqual(m.stats().recorded, 0)
        self.assertEmpty(m.stats().never_lowered)


def _while(body):
    return lambda x: lax.while_loop(lambda c: c[0] < 9, body, x)


def _many(x):
    return lax.scan(lambda c, _: (window(c), None), x, None, length=10**6)[0]


_REFUSED = {
    "while": (
        lambda x: lax.while_loop(lambda c: c[0] < 9, window, x),
        r"while loop at inference_test\.py:\d+ .* use scan",
    ),
    "while_in_jit_in_scan": (scan(jax.jit(_while(advance))), "while loop at "),
    "while_condition": (
        lambda x: lax.while_loop(lambda c: window(c)[0] < 9, lambda c: c * 2, x),
        "while loop at ",
    ),
    "fori_of_unknown_length": (
        lambda x: lax.fori_loop(0, x[0].astype(int), lambda _, c: window(c), x),
        "while loop at ",
    ),
    "cond": (
        lambda x: lax.cond(x[0] > 0, window, lambda x: x, x),
        r"cond at inference_test\.py:\d+ passes 0 boundaries in one branch and 2"
        r" \(open_window at inference_test\.py:\d+, close_window at ",
    ),
    "cond_of_other_roles": (
        lambda x: lax.cond(x[0] > 0, window, lambda x: advance(advance(x)), x),
        "cond at ",
    ),
    "no_boundary": (jnp.sin, "fn=sin passes no boundary"),
    "no_window": (scan(advance), "passes 5 boundaries and no window"),
    "open_open": (
        lambda x: ops.close_window(ops.open_window(ops.open_window(x))),
        r"open_window at inference_test\.py:\d+ is followed by open_window at"
        r" inference_test\.py:\d+; .* close_window between",
    ),
    "close_close": (
        lambda x: ops.open_window(ops.close_window(ops.close_window(x))),
        "close_window at .* is followed by close_window at .*open_window between",
    ),
    "never_closed": (ops.open_window, "followed by open_window at .* of the next call"),
    "never_opened": (ops.close_window, "by close_window at .* of the next call"),
    "left_open_and_opened": (
        lambda x: ops.open_window(window(x)),
        "of the next call",
    ),
    "too_many": (_many, r"scan at inference_test\.py:\d+ passes 1000000 windows"),
    "too_many_in_all": (
        lambda x: [x := scan_long(x) for _ in range(3)][-1],
        "fn passes 90000 windows",
    ),
}


def scan_long(x):
    return lax.scan(lambda c, _: (window(c), None), x, None, length=30_000)[0]


class RefusedTest(parameterized.TestCase):
    @parameterized.parameters(list(_REFUSED))
    def test_says_what_and_where(self, name):
        program, message = _REFUSED[name]
        with self.assertRaisesRegex(errors.WindowError, message):
            windows.infer_window_pattern(program, X)

    def test_what_cannot_be_called_is_named(self):
        with self.assertRaisesRegex(errors.DmiTypeError, "^fn=3 is a int"):
            windows.infer_window_pattern(3, X)  # pyright: ignore

    def test_any_number_of_boundaries_without_a_window(self):
        def program(x):
            x = lax.scan(lambda c, _: (advance(c), None), x, None, length=10**6)[0]
            return window(x)

        pattern = windows.infer_window_pattern(lambda x: scan(advance)(program(x)), X)
        self.assertEqual(pattern.period, 10**6 + 7)
        self.assertEqual(list(pattern.windows), [(10**6 + 1, 10**6 + 2)])

    def test_where_nothing_says_how_often(self):
        def solve(x):
            return lax.custom_linear_solve(
                lambda v: advance(v) / 4, x, lambda mv, b: window(b)
            )

        with self.assertRaisesRegex(errors.WindowError, "linear_solve at .*how often"):
            windows.infer_window_pattern(solve, X)


class ShardedTest(isolated.IsolatedTestCase):
    environment = isolated.FOUR_DEVICES

    def mesh(self):
        return Mesh(np.array(jax.devices()[:4]), ("stage",))

    def put(self):
        x = np.arange(32, dtype=np.float32).reshape(8, 4)
        return jax.device_put(x, NamedSharding(self.mesh(), P("stage")))

    def check(self, program, period, wanted):
        x = self.put()
        pattern = windows.infer_window_pattern(program, x)
        self.assertEqual(pattern, windows.WindowPattern(period, wanted))
        found = capture.counted(lambda: [jax.jit(program)(x) for _ in range(2)])
        self.assertEqual(found.boundaries, dict.fromkeys(range(4), 2 * period))

    def pipeline(self, x):
        def stage(carry, _):
            carry = ops.open_window(carry)
            carry = lax.ppermute(carry, "stage", [(i, (i + 1) % 4) for i in range(4)])
            return jnp.tanh(ops.close_window(carry)), None

        return lax.scan(stage, x, None, length=3)[0]

    def case_shard_map(self):
        program = jax.shard_map(
            self.pipeline, mesh=self.mesh(), in_specs=P("stage"), out_specs=P("stage")
        )
        self.check(program, 6, [(1, 2), (3, 4), (5, 6)])

    def case_grad_of_shard_map(self):
        program = jax.shard_map(
            self.pipeline, mesh=self.mesh(), in_specs=P("stage"), out_specs=P("stage")
        )
        self.check(jax.value_and_grad(total(program)), 6, [(1, 2), (3, 4), (5, 6)])

    def case_auto(self):
        self.check(scan(window), 10, [(i, i + 1) for i in range(1, 10, 2)])

    def case_windows_of_one_device_only(self):
        def local(x):
            mine = lax.axis_index("stage") == 0
            return lax.cond(mine, window, lambda x: x, x)

        program = jax.shard_map(
            local, mesh=self.mesh(), in_specs=P("stage"), out_specs=P("stage")
        )
        with self.assertRaisesRegex(errors.WindowError, "cond at "):
            windows.infer_window_pattern(program, self.put())


if __name__ == "__main__":
    absltest.main()
