# SPDX-License-Identifier: Apache-2.0
"""What a submission takes, what it refuses, and that a refusal changes nothing."""

from __future__ import annotations

import collections
import math
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jax_dmi as dmi
from jax_dmi import _native
from support import images


class Pair(NamedTuple):
    x: object
    y: object


def _roundtrip(arguments, args):
    """Uploads one submission and returns it unpacked inside jit."""
    arena = dmi.ReplayArena()
    d = arena.define("d", arguments)
    block = arena.upload(d, [args])
    return jax.jit(lambda block: block.unpack(d, 0))(block)


def _assert_same(got, want):
    for g, w in zip(images.leaves(got), images.leaves(want), strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        assert images.raw(g) == images.raw(w)


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(*images.NARROW)
    def test_every_type_comes_back_at_every_offset_in_a_word(self, name):
        rng = np.random.default_rng(0)
        # Odd numbers of narrow elements before it shift it within its word.
        for count in (1, 3, 4, 33):
            arguments = [images.spec(name, n) for n in (count, 5, 1, count)]
            args = [images.value(rng, a, nan=False) for a in arguments]
            _assert_same(_roundtrip(arguments, args), args)

    @parameterized.parameters(*range(9))
    def test_every_rank(self, rank):
        shape = (2, 1, 3, 2, 1, 2, 1, 3)[:rank]
        rng = np.random.default_rng(rank)
        arguments = {
            name: images.spec(name, *shape) for name in ("int32", "bfloat16", "int4")
        }
        args = {k: images.value(rng, a, nan=False) for k, a in arguments.items()}
        _assert_same(_roundtrip(arguments, args), args)

    def test_nothing_at_all(self):
        empty = {"a": images.spec("int32", 0), "b": images.spec("int4", 3, 0, 2)}
        args = {"a": np.zeros(0, np.int32), "b": np.zeros((3, 0, 2), ml_dtypes.int4)}
        _assert_same(_roundtrip(empty, args), args)
        self.assertEqual(_roundtrip({}, {}), {})
        self.assertIsNone(_roundtrip(None, None))

    @parameterized.parameters(1, 32, 33, 128, 129, 1024)
    def test_a_boundary_of_any_width(self, width):
        arrays = width // 2
        arguments = [images.spec("int32", 2)] * arrays
        arguments += [images.spec("int32")] * (width - arrays)
        args = [np.array([k, -k], np.int32) for k in range(arrays)]
        args += [*range(width - arrays)]
        arena = dmi.ReplayArena()
        d = arena.define("d", arguments)

        @jax.jit
        def weighed(block, index):
            leaves = block.unpack(d, index)
            return sum(k * leaf.ravel()[0] for k, leaf in enumerate(leaves))

        got = weighed(arena.upload(d, [args, args]), 1)
        want = sum(k * int(np.ravel(arg)[0]) for k, arg in enumerate(args))
        self.assertEqual(int(got), want % 2**32)

    @parameterized.parameters(
        ({"b": 1, "a": [2, (3, None)]},),
        (Pair(1, {"k": Pair(2, 3)}),),
        (collections.OrderedDict(b=1, a=2),),
        ({3: 1, 1: 2},),
        ((),),
        (5,),
    )
    def test_every_container(self, tree):
        arguments = jax.tree.map(lambda _: images.spec("int32"), tree)
        got = _roundtrip(arguments, tree)
        self.assertEqual(jax.tree.structure(got), jax.tree.structure(tree))
        self.assertEqual(jax.tree.map(int, got), tree)

    def test_keys_in_another_order(self):
        arguments = {"a": images.spec("int32"), "b": images.spec("int32")}
        got = _roundtrip(arguments, {"b": 2, "a": 1})
        self.assertEqual(jax.tree.map(int, got), {"a": 1, "b": 2})

    @parameterized.parameters(
        ("int8", -128),
        ("uint8", 255),
        ("int32", -(2**31)),
        ("uint32", 2**32 - 1),
        ("int32", True),
        ("int32", 3.0),
        ("bool", True),
        ("bool", 0),
        ("float32", 0.5),
        ("float32", 2**24),
        ("float32", math.inf),
        ("float32", math.nan),
        ("float16", 0.25),
        ("bfloat16", -1.5),
        ("complex64", 1 + 2j),
        ("complex64", 3.0),
        ("int4", -8),
        ("uint2", 3),
        ("float8_e4m3fn", 1.5),
        ("float32", np.float32(0.1)),
        ("int32", np.int32(7)),
        ("bool", np.True_),
        ("complex64", np.complex64(1j)),
        ("bfloat16", ml_dtypes.bfloat16(0.1)),
        ("int4", ml_dtypes.int4(3)),
    )
    def test_scalars_that_the_type_holds(self, name, value):
        got = np.asarray(_roundtrip(images.spec(name), value))
        want = np.asarray(value).astype(images.dtype(name))
        self.assertEqual(got.dtype, want.dtype)
        self.assertEqual(got.tobytes(), want.tobytes())

    @parameterized.parameters(
        ("int8", 128),
        ("uint8", -1),
        ("int32", 2**31),
        ("uint32", 2**32),
        ("int32", 2**70),
        ("int32", 0.5),
        ("int32", math.nan),
        ("bool", 2),
        ("float32", 0.1),
        ("float32", 2**24 + 1),
        ("float32", 1e300),
        ("float32", 1j),
        ("bfloat16", 257),
        ("int4", 8),
        ("uint2", -1),
        ("float4_e2m1fn", 7.0),
    )
    def test_scalars_that_it_does_not_hold(self, name, value):
        with self.assertRaisesRegex(dmi.DmiValueError, f"args of 'd'=.*no {name}"):
            _roundtrip(images.spec(name), value)

    def test_views_that_are_contiguous(self):
        rows = np.arange(20, dtype=np.int32).reshape(4, 5)
        _assert_same(_roundtrip(images.spec("int32", 5), rows[2]), rows[2])
        # A dimension of one element may have any stride.
        column = rows[:1, :][:, :5].T[:, :1].T
        _assert_same(_roundtrip(images.spec("int32", 1, 5), column), column)
        unaligned = np.frombuffer(bytes(range(21)), np.int32, offset=1, count=5)
        _assert_same(_roundtrip(images.spec("int32", 5), unaligned), unaligned)
        frozen = np.arange(5, dtype=np.int32)
        frozen.flags.writeable = False
        _assert_same(_roundtrip(images.spec("int32", 5), frozen), frozen)


_GOOD = {"pos": np.arange(6, dtype=np.int32).reshape(2, 3), "n": 1}
_BIG = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


class RefusalsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.arena = dmi.ReplayArena()
        arguments = {"pos": images.spec("int32", 2, 3), "n": images.spec("int32")}
        self.d = self.arena.define("step", arguments)

    @parameterized.named_parameters(
        ("type", {"pos": np.zeros((2, 3))}, TypeError, r"float64\[2, 3\], not int32"),
        ("shape", {"pos": _GOOD["pos"][:1]}, ValueError, r"int32\[1, 3\], not"),
        ("rank", {"pos": _GOOD["pos"].ravel()}, ValueError, r"int32\[6\], not"),
        ("order", {"pos": _GOOD["pos"].T.copy().T}, ValueError, "not contiguous"),
        ("stride", {"pos": _BIG[:, :, 0]}, ValueError, "ascontiguousarray"),
        ("swapped", {"pos": _GOOD["pos"].astype(">i4")}, TypeError, "byte-swapped"),
        ("device", {"pos": jnp.zeros((2, 3), jnp.int32)}, TypeError, "jax.Array"),
        ("list", {"pos": [[1, 2, 3], [4, 5, 6]]}, ValueError, "missing|no argument"),
        ("single", {"pos": 3}, ValueError, "single value"),
        ("text", {"pos": "abc"}, TypeError, "is a str"),
        ("object", {"pos": np.full((2, 3), None)}, TypeError, "object"),
        ("masked", {"pos": np.ma.zeros((2, 3), np.int32)}, TypeError, "masked"),
        ("buffer", {"pos": memoryview(b"123")}, TypeError, "memoryview"),
        ("vector", {"n": np.zeros(1, np.int32)}, ValueError, r"\['n'\] of 'step'"),
        ("wide", {"n": np.int64(1)}, TypeError, "int64"),
        ("none", {"n": None}, ValueError, r"args\['n'\] of 'step' is missing"),
        ("extra", {"m": 1}, ValueError, r"args\['m'\] is no argument of 'step'"),
    )
    def test_arguments_are_named_and_nothing_changes(self, change, error, message):
        clean, plan = self.arena.plan(), self.arena.plan()
        for good in (_GOOD, {**_GOOD, "n": 2}):
            for p in (clean, plan):
                p.submit(self.d, good)
            before = self.arena.stats()
            with self.assertRaisesRegex(error, message) as raised:
                plan.submit(self.d, {**_GOOD, **change})
            self.assertIsInstance(raised.exception, dmi.DmiError)
            self.assertEqual(self.arena.stats(), before)
        self.assertEqual(plan.submit(self.d, _GOOD), 2)
        clean.submit(self.d, _GOOD)
        want, got = clean.upload(), plan.upload()
        self.assertEqual(images.raw(got.words), images.raw(want.words))

    def test_containers_of_another_type(self):
        arena = dmi.ReplayArena()
        d = arena.define("d", (images.spec("int32"), images.spec("int32")))
        plan = arena.plan()
        for wrong in ([1, 2], (1, 2, 3), (1,), {"a": 1, "b": 2}, 1):
            with self.assertRaises(dmi.DmiValueError):
                plan.submit(d, wrong)
        self.assertEqual(plan.submit(d, (1, 2)), 0)

    @parameterized.named_parameters(
        ("scalar", 3, TypeError, "no shape and dtype"),
        ("key", jax.eval_shape(lambda: jax.random.key(0)), TypeError, "key_data"),
        ("object", np.zeros(2, object), TypeError, "no array"),
        ("swapped", np.zeros(2, ">f4"), TypeError, "byte-swapped"),
        ("wide", jax.ShapeDtypeStruct((2,), np.int64), ValueError, "jax_enable_x64"),
        ("huge", images.spec("int8", 2**33), ValueError, "8 GiB"),
        ("overflow", images.spec("int32", 2**62, 2**62), ValueError, "8 GiB"),
    )
    def test_definitions(self, leaf, error, message):
        with self.assertRaisesRegex(error, rf"arguments\['x'\].*{message}") as raised:
            self.arena.define("other", {"x": leaf})
        self.assertIsInstance(raised.exception, dmi.DmiError)
        self.assertEqual(self.arena.define("other", {}).name, "other")

    def test_a_name_means_one_thing(self):
        self.assertIs(self.arena.define("step", self.d.arguments), self.d)
        with self.assertRaisesRegex(dmi.DmiValueError, "another name"):
            self.arena.define("step", {})
        with self.assertRaises(dmi.DmiTypeError):
            self.arena.define("", {})

    def test_definitions_of_others(self):
        plan = self.arena.plan()
        later = self.arena.define("later", {})
        with self.assertRaisesRegex(dmi.DmiValueError, "define before plan"):
            plan.submit(later, {})
        with self.assertRaises(dmi.DmiTypeError):
            plan.submit("step", _GOOD)
        # An equal one is as good as the same.
        other = dmi.ReplayArena().define("step", self.d.arguments)
        self.assertEqual(other, self.d)
        self.assertEqual(hash(other), hash(self.d))
        self.assertEqual(plan.submit(other, _GOOD), 0)

    def test_an_upload_that_would_be_too_large(self):
        plan = self.arena.plan()
        plan.submit(self.d, _GOOD)
        staging = _native.ReplayStaging()
        plan._native = _native.ReplayPlan(staging, [self.d.layout], limit=256)
        plan.submit(self.d, _GOOD)
        plan.submit(self.d, _GOOD)
        before = staging.capacity
        with self.assertRaisesRegex(dmi.DmiValueError, "args of 'step' do not fit"):
            plan.submit(self.d, _GOOD)
        self.assertEqual((plan._native.counts, staging.capacity), ([2], before))


if __name__ == "__main__":
    absltest.main()
