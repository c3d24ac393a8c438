# SPDX-License-Identifier: Apache-2.0
"""Labels, conditions, scopes: what reaches a record, and what recompiles."""

from __future__ import annotations

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jax_dmi import errors
from jax_dmi import ops
from jax_dmi import spec as capture_spec
from support import capture

_X = np.ones(2, np.float32)


def _record(**arguments):
    """Records once, from outside of jit, and returns the record."""
    (r,) = capture.counted(lambda: ops.record(_X, "r", **arguments)).records
    return r


def _label(value):
    """Records with one label, from outside of jit, and returns it and its type."""
    r = _record(labels={"v": value})
    return r.labels["v"], r.site["labels"][0][1]


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(
        (5, "int"),
        (-3, "int"),
        (2**62 + 1, "int"),
        (-(2**63), "int"),
        (0.1, "float"),
        (float("-inf"), "float"),
        (True, "bool"),
        (np.int64(-(2**40)), "int"),
        (np.uint8(200), "uint"),
        (np.float32(0.5), "float"),
        (np.array(7)[()], "int"),
        (ml_dtypes.bfloat16(1.5), "float"),
        (np.bool_(False), "bool"),
    )
    def test_numbers(self, value, kind):
        self.assertEqual(_label(value), (value, kind))

    @parameterized.parameters(
        ("int8", "int", -7),
        ("int32", "int", -(2**31)),
        ("uint32", "uint", 2**32 - 1),
        ("uint16", "uint", 65535),
        ("bool", "bool", 1),
        ("float32", "float", 0.1),
        ("bfloat16", "float", 1.5),
        ("float16", "float", 0.25),
        ("int4", "int", -8),
        ("uint4", "uint", 15),
        ("float8_e4m3fn", "float", 1.5),
    )
    def test_scalar_arrays(self, dtype, kind, value):
        dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        x = jnp.asarray(value, dtype)
        expected = np.asarray(value).astype(dtype).item()
        f = jax.jit(lambda x, v: ops.record(x, "r", labels={"v": v}))
        (r,) = capture.counted(f, _X, x).records
        self.assertEqual(r.site["labels"], [["v", kind]])
        self.assertEqual(r.labels["v"], expected)
        self.assertEqual(_label(x), (expected, kind))

    @parameterized.named_parameters(
        ("array", lambda: np.arange(2)),
        ("device_array", lambda: jnp.arange(2)),
        ("string", lambda: "a"),
        ("complex", lambda: 1j),
        ("list", lambda: [1]),
    )
    def test_other_values_are_refused(self, make):
        with self.assertRaisesRegex(errors.DmiTypeError, "v="):
            _label(make())

    @parameterized.parameters(0.5, True, np.float32(1))
    def test_step_and_layer_are_integers(self, value):
        for name in ("step", "layer"):
            with self.assertRaisesRegex(errors.DmiTypeError, f"{name}=.*integer"):
                _record(**{name: value})

    def test_too_wide_a_number_is_refused(self):
        with self.assertRaisesRegex(errors.DmiValueError, "64 bits"):
            _label(2**63)

    def test_at_most_four(self):
        found = capture.counted(
            lambda: ops.record(_X, "r", step=1, layer=2, labels={"a": 3, "b": 4.0})
        )
        self.assertEqual(
            found.records[0].labels, {"step": 1, "layer": 2, "a": 3, "b": 4.0}
        )
        with self.assertRaisesRegex(errors.DmiValueError, "labels=.* are 5"):
            capture.counted(
                lambda: ops.record(
                    _X, "r", step=1, layer=2, labels={"a": 3, "b": 4, "c": 5}
                )
            )

    def test_bad_names_of_labels(self):
        for labels in ({"a b": 1}, {"step": 1}, {"layer": 2}):
            with self.assertRaises(errors.DmiValueError):
                _record(labels=labels)
        for labels in ({3: 1}, [1]):
            with self.assertRaises(errors.DmiTypeError):
                _record(labels=labels)


class ConditionTest(parameterized.TestCase):
    def test_records_only_where_true(self):
        def body(c, i):
            return ops.record(c + 1, "r", step=i, when=i % 2 == 0), None

        f = jax.jit(lambda x: lax.scan(body, x, jnp.arange(5))[0])
        for exact in (True, False):
            records = capture.counted(f, _X, exact=exact).records
            self.assertEqual([r.labels["step"] for r in records], [0, 2, 4])

    @parameterized.parameters(
        (True, 1), (False, 0), (np.True_, 1), (np.False_, 0), (np.asarray(True), 1)
    )
    def test_plain_conditions(self, when, count):
        f = jax.jit(lambda x: ops.record(x, "r", when=when))
        found = capture.counted(f, _X)
        self.assertLen(found.records, count)
        self.assertEmpty(found.never_lowered)

    @parameterized.parameters(1, 0.0, "yes", 1j)
    def test_other_conditions_are_refused(self, when):
        with self.assertRaisesRegex(errors.DmiTypeError, "when="):
            capture.counted(lambda: ops.record(_X, "r", when=when))


class VmapTest(parameterized.TestCase):
    @parameterized.product(
        what=["step", "layer", "temperature", "when"],
        call=[ops.record, ops.record_grad],
    )
    def test_a_batched_label_is_refused_when_traced(self, what, call):
        def f(x, v):
            v = v > 0 if what == "when" else v
            if what == "temperature":
                return call(x, "r", labels={what: v}).sum()
            return call(x, "r", **{what: v}).sum()

        batch = np.ones((3, 2), np.float32), np.arange(3)
        with capture_spec.overriding(capture_spec.CaptureSpec()):
            with self.assertRaisesRegex(errors.DmiValueError, f"^{what} of 'r'.*vmap"):
                jax.make_jaxpr(jax.vmap(f))(*batch)
            # Labels that stay the same over the batch are fine.
            jax.make_jaxpr(jax.vmap(f, in_axes=(0, None)))(batch[0], batch[1][0])


class CompilationTest(parameterized.TestCase):
    def compilations(self, f):
        """How many programs ``f`` compiles."""
        found = []
        name = "/jax/core/compile/backend_compile_duration"

        def listen(event, duration, **_):
            if event == name:
                found.append(duration)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            out = capture.counted(f, before=f)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        return out, len(found)

    @parameterized.parameters(1, 0.5)
    def test_values_never_recompile_an_eager_record(self, unit):
        def run(n):
            for i in range(n):
                ops.record(_X, "r", step=i, labels={"v": i * unit})

        _, few = self.compilations(lambda: run(1))
        found, many = self.compilations(lambda: run(9))
        self.assertEqual([r.labels["step"] for r in found.records], list(range(9)))
        self.assertEqual(many, few)

    def test_contexts_never_recompile_an_eager_record(self):
        def run(n):
            for i in range(n):
                with ops.labels(step=i), ops.scope("s"):
                    ops.record(_X, "r")

        _, few = self.compilations(lambda: run(1))
        found, many = self.compilations(lambda: run(9))
        self.assertEqual([r.labels["step"] for r in found.records], list(range(9)))
        self.assertEqual(many, few)

    def test_eager_transformations_never_recompile(self):
        def run(n):
            for i in range(n):
                jax.vmap(functools.partial(ops.record, name="r", step=i))(_X)

        _, few = self.compilations(lambda: run(1))
        _, many = self.compilations(lambda: run(9))
        self.assertEqual(many, few)


class ContextTest(parameterized.TestCase):
    def test_defaults_and_who_wins(self):
        def f(x):
            with ops.labels(step=1, layer=2, a=3):
                x = ops.record(x, "outer")
                with ops.labels(layer=5):
                    x = ops.record(x, "inner")
                    x = ops.record(x, "own", layer=7, labels={"a": 0.5})
            return ops.record(x, "outside")

        found = capture.counted(jax.jit(f), _X)
        self.assertEqual(
            {r.name: r.labels for r in found.records},
            {
                "outer": {"step": 1, "layer": 2, "a": 3},
                "inner": {"step": 1, "layer": 5, "a": 3},
                "own": {"step": 1, "layer": 7, "a": 0.5},
                "outside": {},
            },
        )

    def test_traced_defaults(self):
        def body(c, i):
            with ops.labels(step=i):
                return jax.checkpoint(lambda c: ops.record(c * 2, "r"))(c), None

        f = jax.jit(lambda x: lax.scan(body, x, jnp.arange(3))[0])
        records = capture.counted(f, _X).records
        self.assertEqual([r.labels["step"] for r in records], [0, 1, 2])

    @parameterized.parameters(int, jnp.int32)
    def test_an_inner_function_is_not_found_under_old_labels(self, make):
        first = make(3)

        @jax.jit
        def block(x):
            return ops.record(x + 1, "r")

        def f(x, offset):
            for i in (first + offset, first + offset + 1):
                with ops.labels(layer=i):
                    x = block(x)
            return x

        for program in (lambda x: f(x, 0), jax.jit(lambda x: f(x, 0)), jax.jit(f)):
            args = (_X, 0) if program.__name__ == "f" else (_X,)
            records = capture.counted(program, *args).records
            self.assertEqual(sorted(r.labels["layer"] for r in records), [3, 4])

    def test_scopes_nest_and_prefix(self):
        @jax.jit
        def block(x):
            return ops.record_grad(ops.record(x, "x"), "g")

        def f(x):
            with ops.scope("model"):
                for i in range(2):
                    with ops.scope(f"block[{i}]"):
                        x = block(x)
            return ops.record(x, "top").sum()

        found = capture.counted(jax.jit(jax.value_and_grad(f)), _X)
        self.assertCountEqual(
            found.counts,
            ["top"] + [f"model/block[{i}]/{n}" for i in (0, 1) for n in "xg"],
        )

    def test_selection_sees_the_whole_name(self):
        def f(x):
            with ops.scope("a"):
                x = ops.record(x, "x")
            return ops.record(x, "x")

        found = capture.counted(jax.jit(f), _X, select=("a/*",))
        self.assertEqual(found.counts, {"a/x": 1})

    def test_scope_enters_a_named_scope(self):
        def f(x):
            with ops.scope("layer7"):
                return jnp.sin(x)

        text = jax.jit(f).lower(_X).as_text(debug_info=True)
        self.assertIn("layer7", text)

    def test_bad_contexts(self):
        with (
            self.assertRaisesRegex(errors.DmiValueError, "name="),
            ops.scope("a b"),
        ):
            pass
        with (
            self.assertRaisesRegex(errors.DmiTypeError, "layer="),
            ops.labels(layer="x"),
        ):
            pass


if __name__ == "__main__":
    absltest.main()
