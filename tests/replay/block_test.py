# SPDX-License-Identifier: Apache-2.0
"""Blocks inside programs: what compiles, what transfers, what an index means."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from support import images


class BlockTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.arena = dmi.ReplayArena()
        self.step = self.arena.define(
            "step", {"x": images.spec("float32", 4), "n": images.spec("int32")}
        )
        self.mask = self.arena.define("mask", images.spec("bool", 5))

    def upload(self, steps, masks=0):
        plan = self.arena.plan()
        for i in range(max(steps, masks)):
            if i < steps:
                plan.submit(self.step, {"x": np.full(4, i, np.float32), "n": 10 * i})
            if i < masks:
                plan.submit(self.mask, np.arange(5) == i)
        return plan.upload()

    def n(self, block, index):
        return block.unpack(self.step, index)["n"]

    def test_definitions_are_counted_apart(self):
        block = self.upload(3, masks=5)
        self.assertEqual((block.count(self.step), block.count(self.mask)), (3, 5))
        self.assertEqual([int(self.n(block, i)) for i in range(3)], [0, 10, 20])
        for i in range(5):
            self.assertEqual(
                block.unpack(self.mask, i).tolist(), [j == i for j in range(5)]
            )
        self.assertIn("'step': 3, 'mask': 5", repr(block))

    def test_one_program_serves_any_count(self):
        compiled = []

        @jax.jit
        def program(block, index):
            compiled.append(1)
            total = lax.fori_loop(
                0, block.count(self.step), lambda i, t: t + self.n(block, i), 0
            )
            return self.n(block, index), total

        for count in (9, 1, 5, 9, 2):
            n, total = program(self.upload(count), count - 1)
            self.assertEqual(int(n), 10 * (count - 1))
            self.assertEqual(int(total), 5 * count * (count - 1))
        self.assertLen(compiled, 1)
        program(self.upload(500), 0)
        program(self.upload(9), 0)
        self.assertLen(compiled, 2)

    @parameterized.parameters("int8", "int32", "uint32")
    def test_an_index_known_at_run_time_is_clamped(self, name):
        block = self.upload(4)
        program = jax.jit(self.n)
        kind = np.dtype(name)
        for index in (0, 3, 4, np.iinfo(kind).max, np.iinfo(kind).min, -1):
            if np.iinfo(kind).min <= index:
                got = int(program(block, kind.type(index)))
                self.assertEqual(got, 10 * min(max(int(index), 0), 3))

    def test_an_index_known_before_is_checked(self):
        block = self.upload(4)
        for index in (4, -1, 2**40):
            message = f"index={index} of 'step'.*4"
            with self.assertRaisesRegex(dmi.DmiIndexError, message):
                block.unpack(self.step, index)
        with self.assertRaises(dmi.DmiIndexError):
            block.unpack(self.step, jnp.int32(4))
        with self.assertRaises(dmi.DmiIndexError):
            jax.jit(lambda b: self.n(b, -1))(block)
        # Inside jit the number of submissions is not known.
        self.assertEqual(int(jax.jit(lambda b: self.n(b, 7))(block)), 30)
        # Nor is it to what came through a transformation, until it is read.
        again = jax.tree.map(lambda words: words, block)
        self.assertEqual(again.count(self.step), 4)
        with self.assertRaises(dmi.DmiIndexError):
            self.n(again, 4)

    @parameterized.parameters(1.0, "1", None, np.float32(1))
    def test_an_index_is_an_integer(self, index):
        with self.assertRaisesRegex(dmi.DmiTypeError, "index="):
            self.upload(2).unpack(self.step, index)

    def test_a_traced_index_is_an_integer(self):
        block = self.upload(2)
        for index in (1.0, np.arange(2)):
            with self.assertRaisesRegex(dmi.DmiTypeError, "index="):
                jax.jit(self.n)(block, index)

    def test_without_submissions_everything_is_zero(self):
        block = self.upload(0, masks=2)
        got = jax.jit(lambda b, i: b.unpack(self.step, i))(block, 3)
        self.assertEqual(got["x"].tolist(), [0, 0, 0, 0])
        self.assertEqual(int(got["n"]), 0)
        with self.assertRaises(dmi.DmiIndexError):
            block.unpack(self.step, 0)
        empty = self.arena.plan().upload()
        self.assertEqual(empty.count(self.mask), 0)
        self.assertEqual(empty.scan(self.step, lambda c, x: (c, x), 5)[0], 5)

    def test_an_arena_without_definitions(self):
        arena = dmi.ReplayArena()
        block = arena.plan().upload()
        self.assertEqual(arena.stats().copies, 1)
        with self.assertRaisesRegex(dmi.DmiValueError, "not in this block"):
            block.unpack(self.step, 0)

    def test_closing_over_a_block_raises(self):
        block = self.upload(2)
        for program in (
            lambda i: self.n(block, i),
            lambda i: block.scan(self.step, lambda c, x: (c, x["n"]), 0, length=2),
            lambda i: lax.scan(lambda c, i: (c, self.n(block, i)), 0, jnp.arange(2)),
            lambda i: jax.vmap(lambda i: self.n(block, i))(jnp.arange(2)),
        ):
            with self.assertRaisesRegex(dmi.StateError, "as an argument"):
                jax.jit(program)(0)
        jax.jit(lambda b: jax.jit(lambda i: self.n(b, i))(0))(block)

    def test_under_transformations_outside_of_jit(self):
        block = self.upload(3)

        def loss(w, index):
            return (w * block.unpack(self.step, index)["x"]).sum()

        self.assertEqual(jax.grad(loss)(jnp.ones(4), 2).tolist(), [2] * 4)
        got = jax.vmap(lambda i: self.n(block, i))(jnp.arange(5))
        self.assertEqual(got.tolist(), [0, 10, 20, 20, 20])

    def test_inside_transformations(self):
        block = self.upload(3)

        @jax.jit
        def program(block, w):
            def body(w, index):
                x = block.unpack(self.step, index)["x"]
                return jnp.sin(w) * x, w.sum()

            def run(w):
                return lax.scan(jax.checkpoint(body), w, jnp.arange(3))[0].sum()

            return jax.grad(run)(w), jax.vmap(lambda i: self.n(block, i))(jnp.arange(3))

        _, n = program(block, jnp.ones(4))
        self.assertEqual(n.tolist(), [0, 10, 20])

    def test_blocks_go_through_control_flow(self):
        one, two = self.upload(2), self.upload(2)

        @jax.jit
        def program(first, one, two):
            block = lax.cond(first, lambda: one, lambda: two)
            return self.n(block, 1), block

        n, out = program(True, one, two)
        self.assertEqual((int(n), out.count(self.step)), (10, 2))

    def test_blocks_that_were_stacked(self):
        one, two = self.upload(2), self.upload(2)
        both = jax.tree.map(lambda *words: jnp.stack(words), one, two)
        with self.assertRaisesRegex(dmi.DmiValueError, "vmap"):
            self.n(both, 0)
        got = jax.jit(jax.vmap(lambda b: self.n(b, 1)))(both)
        self.assertEqual(got.tolist(), [10, 10])

    def test_scan_runs_over_the_submissions(self):
        traced = []

        def add(total, args):
            traced.append(1)
            return total + args["n"], args["x"][0]

        for count in (3, 5, 3, 5):
            total, xs = self.upload(count).scan(self.step, add, 0)
            self.assertEqual(int(total), 5 * count * (count - 1))
            self.assertEqual(xs.tolist(), [*range(count)])
        # Once per count; scan itself traces its body once or twice.
        self.assertLessEqual(len(traced), 4)
        block = self.upload(5)
        self.assertEqual(block.scan(self.step, add, 0, length=2)[1].tolist(), [0, 1])
        with self.assertRaisesRegex(dmi.DmiValueError, "length=6"):
            block.scan(self.step, add, 0, length=6)

    def test_scan_inside_jit(self):
        def run(block, length):
            return block.scan(self.step, lambda c, x: (c + x["n"], x["n"]), 0, length)

        program = jax.jit(run, static_argnums=1)
        self.assertEqual(program(self.upload(4), 3)[1].tolist(), [0, 10, 20])
        with self.assertRaisesRegex(dmi.DmiValueError, "length=None"):
            program(self.upload(4), None)

    def test_scan_of_a_function_of_traced_values(self):
        block = self.upload(3)

        def loss(w):
            return block.scan(self.step, lambda c, x: (c + w * x["n"], None), 0.0)[0]

        self.assertEqual(float(jax.grad(loss)(2.0)), 30)

    def test_one_transfer_per_upload(self):
        program = jax.jit(lambda b, i: self.n(b, i))
        index = jax.device_put(np.int32(1))
        program(self.upload(4), index)
        self.n(self.upload(4), 1)
        with jax.transfer_guard("disallow"):
            before = self.arena.stats().copies
            block = self.upload(4)
            self.assertEqual(self.arena.stats().copies, before + 1)
            program(block, index)
            self.n(block, 1)
        with jax.transfer_guard_host_to_device("disallow_explicit"):
            program(block, index)
            with self.assertRaisesRegex(RuntimeError, "Disallowed"):
                self.upload(4)

    def test_equal_definitions_share_programs(self):
        compiled = []

        @jax.jit
        def program(block):
            compiled.append(1)
            return block.unpack(self.mask, 0)

        for _ in range(3):
            arena = dmi.ReplayArena()
            arena.define("step", self.step.arguments)
            mask = arena.define("mask", self.mask.arguments)
            program(arena.upload(mask, [np.zeros(5, bool)]))
        self.assertLen(compiled, 1)


if __name__ == "__main__":
    absltest.main()
