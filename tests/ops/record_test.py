# SPDX-License-Identifier: Apache-2.0
"""``record``: what it accepts, what it refuses and what it leaves in programs."""

from __future__ import annotations

import dataclasses

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

_MODES = (dict(exact=True), dict(exact=False))
_DTYPES = [
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "float8_e3m4", "float8_e4m3", "float8_e8m0fnu"),
    *("int4", "uint4", "int2", "uint2", "float4_e2m1fn"),
]
_WIDE = ["int64", "uint64", "float64", "complex128"]


def _dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Block:
    weight: jax.Array
    bias: jax.Array | None


class ValuesTest(parameterized.TestCase):
    @parameterized.product(dtype=_DTYPES, count=[7, 8, 1])
    def test_every_dtype_comes_back_bitwise(self, dtype, count):
        x = (np.arange(count) % 3).astype(_dtype(dtype))
        found = capture.counted(jax.jit(lambda x: ops.record(x, "x")), x)
        (r,) = found.records
        self.assertEqual(r.site["dtype"], dtype)
        self.assertEqual(r.payload.dtype, x.dtype)
        self.assertEqual(r.payload.tobytes(), x.tobytes())
        self.assertEqual(np.asarray(found.out).tobytes(), x.tobytes())

    @parameterized.parameters(*_WIDE)
    def test_wide_types(self, dtype):
        with jax.enable_x64(True):
            x = np.array([1, 2**40 + 1, 3]).astype(dtype)
            (r,) = capture.counted(jax.jit(lambda x: ops.record(x, "x")), x).records
        self.assertEqual(r.payload.dtype, x.dtype)
        np.testing.assert_array_equal(r.payload, x)

    def test_special_values_keep_their_bits(self):
        bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32)
        x = bits.view(np.float32)
        (r,) = capture.counted(jax.jit(lambda x: ops.record(x, "x")), x).records
        np.testing.assert_array_equal(r.payload.view(np.uint32), bits)

    @parameterized.parameters((0,), (3, 0), (0, 0, 2))
    def test_zero_size(self, *shape):
        x = np.zeros(shape, np.float32)
        for mode in _MODES:
            (r,) = capture.counted(
                jax.jit(lambda x: ops.record(x, "x") * 2), x, **mode
            ).records
            self.assertEqual(r.payload.shape, shape)

    def test_scalar(self):
        (r,) = capture.counted(jax.jit(lambda x: ops.record(x, "x")), 2.5).records
        self.assertEqual((r.payload.shape, r.payload), ((), 2.5))

    def test_leaves_of_a_pytree_get_their_path(self):
        tree = {"a": (np.float32(1), np.arange(2)), "b": _Block(np.ones(3), None)}
        found = capture.counted(jax.jit(lambda t: ops.record(t, "t")), tree)
        self.assertEqual(found.counts, {"t/a/0": 1, "t/a/1": 1, "t/b/weight": 1})
        self.assertEqual(jax.tree.structure(found.out), jax.tree.structure(tree))

    def test_numbers_and_numpy_arrays_stay_what_they_are(self):
        wide = np.array([1.0, 2.0], np.float64)
        found = capture.counted(lambda: ops.record((3, wide), "x"))
        self.assertIs(found.out[1], wide)
        self.assertEqual(found.out[0], 3)
        self.assertEqual(found.counts, {"x/0": 1, "x/1": 1})

    @parameterized.named_parameters(
        ("key", lambda: jax.random.key(0), "key"),
        ("string", lambda: "text", "str"),
        ("object", object, "object"),
        ("token", lax.create_token, "Token|token|Array"),
        ("float0", lambda: np.zeros(2, jax.dtypes.float0), "void|float0"),
    )
    def test_other_kinds_are_refused(self, make, kind):
        for value in (make(), {"leaf": make()}):
            with self.assertRaisesRegex(errors.DmiTypeError, f"'x.*({kind})"):
                capture.counted(ops.record, value, "x")

    def test_traced_keys_are_refused(self):
        with self.assertRaisesRegex(errors.DmiTypeError, "key_data"):
            capture.counted(jax.jit(lambda k: ops.record(k, "x")), jax.random.key(0))


class NamesTest(parameterized.TestCase):
    @parameterized.parameters("", "a b", "ä", "a\n", "a" * 201, "a,b", "a(b)")
    def test_bad_names_are_refused_with_and_without_capture(self, name):
        for call in (ops.record, ops.record_grad):
            with self.assertRaisesRegex(errors.DmiValueError, "name="):
                call(np.ones(2), name)

    @parameterized.parameters("a", "block[3]/resid:0.x_Y-1", "a" * 200)
    def test_good_names(self, name):
        self.assertEqual(
            capture.counted(ops.record, np.ones(2), name).counts, {name: 1}
        )

    def test_a_name_must_be_a_string(self):
        with self.assertRaisesRegex(errors.DmiTypeError, "name=3"):
            ops.record(np.ones(2), 3)

    def test_names_of_leaves_are_checked(self):
        with self.assertRaisesRegex(errors.DmiValueError, "leaf.*x/a b"):
            capture.counted(ops.record, {"a b": np.ones(2)}, "x")

    def test_the_source_is_the_line_of_the_call(self):
        (r,) = capture.counted(
            jax.jit(lambda x: ops.record(x, "x")), np.ones(2)
        ).records
        self.assertRegex(r.site["source"], r"^record_test\.py:\d+$")


class ProgramsTest(parameterized.TestCase):
    def lower(self, f, *args, spec=None, **kwargs):
        with capture_spec.overriding(spec):
            return jax.jit(f, **kwargs).lower(*args).as_text()

    def test_nothing_is_left_without_capture(self):
        def f(x):
            x = ops.record(x, "r", step=1, when=x[0] > 0)
            x = ops.record_grad(x, "g")
            with ops.scope("s"), ops.labels(layer=2):
                x = ops.advance_boundary(ops.record(x, "r"))
            return ops.close_window(ops.open_window(x)).sum()

        x = np.ones((2, 3), np.float32)
        for program, arg in (
            (f, x[0]),
            (jax.grad(f), x[0]),
            (jax.vmap(jax.grad(f)), x),
        ):
            text = self.lower(program, arg)
            self.assertNotIn("custom_call", text)
            self.assertNotIn("optimization_barrier", text)

    def test_nothing_is_left_of_what_is_not_selected(self):
        spec = capture_spec.CaptureSpec(select=("yes/*",))
        text = self.lower(lambda x: ops.record(x, "no/x"), np.ones(3), spec=spec)
        self.assertNotIn("dmi", text)
        text = self.lower(lambda x: ops.record(x, "yes/x"), np.ones(3), spec=spec)
        self.assertIn("dmi_record", text)

    @parameterized.parameters(*_MODES)
    def test_tracing_alone_records_nothing(self, exact):
        x = np.ones(3, np.float32)
        for trace, listed in (
            (lambda f: jax.make_jaxpr(f)(x), True),
            (lambda f: jax.eval_shape(f, x), True),
            (lambda f: jax.jit(f).lower(x), False),
        ):
            found = capture.counted(trace, lambda x: ops.record(x, "r"), exact=exact)
            self.assertEmpty(found.records)
            # No program was made, which is all that the account can see.
            self.assertLen(found.never_lowered, int(listed))
        found = capture.counted(jax.eval_shape, lambda x: ops.record(x, "r"), x)
        self.assertRegex(str(found.never_lowered[0]), r"^r float32\[3\] at .*:\d+$")

    def test_ahead_of_time_compilation(self):
        x = np.arange(3, dtype=np.float32)

        def run():
            return jax.jit(lambda x: ops.record(x, "r")).lower(x).compile()(x)

        (r,) = capture.counted(run).records
        np.testing.assert_array_equal(r.payload, x)

    def test_donated_arguments(self):
        f = jax.jit(lambda x: ops.record(x, "r") + 1, donate_argnums=0)
        x = jnp.arange(4.0)
        found = capture.counted(f, x)
        np.testing.assert_array_equal(found.records[0].payload, np.arange(4.0))
        np.testing.assert_array_equal(found.out, np.arange(4.0) + 1)
        self.assertTrue(x.is_deleted())

    @parameterized.parameters(*_MODES)
    def test_internal_checks_pass(self, exact):
        jax.config.update("jax_enable_checks", True)
        self.addCleanup(jax.config.update, "jax_enable_checks", False)

        def body(c, i):
            c = jax.checkpoint(lambda c: ops.record(jnp.sin(c), "r", step=i))(c)
            return ops.advance_boundary(ops.record_grad(c, "g")), None

        def loss(x):
            y = lax.cond(x[0] > 0, lambda x: ops.record(x, "c"), lambda x: x, x)
            return lax.scan(body, y, jnp.arange(3))[0].sum()

        x = np.ones(4, np.float32)
        found = capture.counted(jax.jit(jax.value_and_grad(loss)), x, exact=exact)
        self.assertEqual(found.counts, {"r": 3, "g": 3, "c": 1})
        capture.counted(jax.jit(jax.vmap(jax.grad(loss))), x[None], exact=exact)
        capture.counted(jax.jit(jax.hessian(loss)), x, exact=exact)

    @parameterized.parameters(*_MODES)
    def test_no_copy_and_no_second_call(self, exact):
        spec = capture_spec.CaptureSpec(exact=exact)

        def f(x):
            def body(c, _):
                return ops.record(c @ c, "r"), None

            return lax.scan(body, x, None, length=4)[0]

        x = np.ones((64, 64), np.float32)
        with capture_spec.overriding(spec):
            text = jax.jit(f).lower(x).compile().as_text()
        plain = jax.jit(f).lower(x).compile().as_text()
        self.assertEqual(text.count('custom_call_target="dmi_record"'), 1)
        self.assertEqual(text.count(" copy("), plain.count(" copy("))

    def test_fast_mode_has_no_effect(self):
        x = np.ones(3, np.float32)
        for exact in (True, False):
            with capture_spec.overriding(capture_spec.CaptureSpec(exact=exact)):
                jaxpr = jax.make_jaxpr(lambda x: ops.record(x, "r"))(x)
            self.assertEqual(bool(jaxpr.effects), exact)

    def test_programs_do_not_depend_on_trace_order(self):
        def f(x):
            return ops.record(x, "r")

        spec = capture_spec.CaptureSpec(select=("*", "some other"))
        x = np.ones(3, np.float32)
        first = self.lower(f, x, spec=spec)
        self.lower(lambda x: ops.record(x * 2, "q"), x, spec=spec)
        jax.clear_caches()
        self.assertEqual(self.lower(f, x, spec=spec), first)

    def test_a_platform_without_handlers_is_refused(self):
        with capture_spec.overriding(capture_spec.CaptureSpec()):
            traced = jax.jit(lambda x: ops.record(x, "r")).trace(np.ones(3))
            with self.assertRaisesRegex(errors.DmiValueError, "'tpu'.*Monitor"):
                traced.lower(lowering_platforms=("tpu",))
            self.assertIn(
                "dmi_record", traced.lower(lowering_platforms=("cuda",)).as_text()
            )

    @parameterized.product(
        call=[lambda x: ops.record(x, "r"), ops.advance_boundary], exact=[True, False]
    )
    def test_the_function_of_a_reduction_is_refused(self, call, exact):
        def f(x):
            return lax.reduce(x, np.float32(0), lambda a, b: call(a + b), (0,))

        # JAX itself refuses effects there.
        with self.assertRaisesRegex(
            (errors.DmiValueError, NotImplementedError), "reduce"
        ):
            capture.counted(jax.jit(f), np.ones(3, np.float32), exact=exact)

    def test_symbolic_shapes_are_refused(self):
        (n,) = jax.export.symbolic_shape("n")
        shape = jax.ShapeDtypeStruct((n,), np.float32)
        f = jax.export.export(jax.jit(lambda x: ops.record(x, "r")))
        with (
            capture_spec.overriding(capture_spec.CaptureSpec()),
            self.assertRaisesRegex(errors.DmiTypeError, "symbolic"),
        ):
            f(shape)


class SizesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("float32", 5, 20), ("int4", 5, 3), ("int2", 5, 2), ("bool", 5, 5)
    )
    def test_a_record_over_the_limit_is_refused_when_lowered(self, dtype, n, size):
        x = np.zeros(n, _dtype(dtype))
        f = jax.jit(lambda x: ops.record(x, "big"))
        with capture_spec.overriding(capture_spec.CaptureSpec(size_limit=size)):
            f.lower(x)
        with capture_spec.overriding(capture_spec.CaptureSpec(size_limit=size - 1)):
            traced = f.trace(x)
            with self.assertRaisesRegex(
                errors.DmiValueError, f"'big'.*{size} bytes.*hold {size - 1},"
            ):
                traced.lower()

    def test_the_batch_of_vmap_counts(self):
        x = np.zeros((8, 4), np.float32)
        with capture_spec.overriding(capture_spec.CaptureSpec(size_limit=16)):
            jax.jit(lambda x: ops.record(x, "r")).lower(x[0])
            with self.assertRaisesRegex(errors.DmiValueError, "128 bytes"):
                jax.jit(jax.vmap(lambda x: ops.record(x, "r"))).lower(x)


class VmapTest(parameterized.TestCase):
    def test_the_site_knows_the_batch_axes(self):
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

        def f(x):
            return ops.record(x, "r")

        inner = jax.vmap(f, in_axes=1, out_axes=1)
        for program, shape, axes in (
            (inner, (2, 3), [1]),
            (jax.vmap(inner), (2, 3, 4), [0, 2]),
            (jax.vmap(inner, in_axes=2, out_axes=2), (2, 3, 4), [1, 2]),
        ):
            arg = x[:, :, 0] if len(shape) == 2 else x
            (r,) = capture.counted(jax.jit(program), arg).records
            self.assertEqual((tuple(r.site["shape"]), r.site["vmap"]), (shape, axes))
            np.testing.assert_array_equal(r.payload, arg)

    def test_what_is_not_batched_is_recorded_once_and_unbatched(self):
        f = jax.vmap(lambda x, y: x + ops.record(y, "r"), in_axes=(0, None))
        (r,) = capture.counted(jax.jit(f), np.ones(3), np.float32(2)).records
        self.assertEqual((r.payload.shape, r.site["vmap"]), ((), []))


class ThreadsTest(absltest.TestCase):
    def test_an_override_is_seen_by_its_thread_only(self):
        from concurrent import futures

        spec = capture_spec.CaptureSpec()
        with capture_spec.overriding(spec), futures.ThreadPoolExecutor(1) as other:
            self.assertIs(capture_spec.active(), spec)
            self.assertIsNone(other.submit(capture_spec.active).result(30))


if __name__ == "__main__":
    absltest.main()
