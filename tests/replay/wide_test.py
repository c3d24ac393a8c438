# SPDX-License-Identifier: Apache-2.0
"""Arguments of 64 bits and more, which JAX holds only where it is told to."""

from __future__ import annotations

from typing import ClassVar

from absl.testing import absltest
import jax
import numpy as np

import jax_dmi as dmi
from support import images
from support import isolated


class WideTest(isolated.IsolatedTestCase):
    environment: ClassVar = {"JAX_ENABLE_X64": "1"}

    def case_every_type_comes_back(self):
        rng = np.random.default_rng(0)
        names = [*images.NARROW, *images.WIDE]
        arguments = [images.spec(n, size) for n in names for size in (1, 3, 5)]
        arguments += [images.spec(n) for n in names]
        arena = dmi.ReplayArena()
        d = arena.define("d", arguments)
        args = [[images.value(rng, a, nan=False) for a in arguments] for _ in range(3)]
        block = arena.upload(d, args)
        program = jax.jit(lambda b, i: b.unpack(d, i))
        for index, want in enumerate(args):
            for got in (program(block, index), block.unpack(d, index)):
                for g, w in zip(images.leaves(got), want, strict=True):
                    self.assertEqual(g.dtype, w.dtype)
                    self.assertEqual(images.raw(g), images.raw(w))

    def case_scalars(self):
        arena = dmi.ReplayArena()
        for name, value in [
            ("int64", -(2**63)),
            ("int64", 2**63 - 1),
            ("uint64", 2**64 - 1),
            ("float64", 0.1),
            ("complex128", 0.1 + 0.2j),
            ("int64", np.int64(7)),
        ]:
            d = arena.define(f"{name} {value}", images.spec(name))
            got = arena.upload(d, [value]).unpack(d, 0)
            self.assertEqual((got.item(), got.dtype), (value, images.dtype(name)))
        d = arena.define("d", images.spec("int64"))
        for value in (2**63, -(2**63) - 1, 0.5):
            with self.assertRaises(dmi.DmiValueError):
                arena.upload(d, [value])

    def case_an_index_of_64_bits_is_clamped(self):
        arena = dmi.ReplayArena()
        d = arena.define("d", images.spec("int32"))
        block = arena.upload(d, [0, 1, 2])
        program = jax.jit(lambda b, i: b.unpack(d, i))
        for index, want in [(2**32, 2), (2**63 - 1, 2), (-(2**32) + 1, 0), (1, 1)]:
            self.assertEqual(int(program(block, np.int64(index))), want)
        self.assertEqual(int(program(block, np.uint64(2**64 - 1))), 2)

    def case_programs_without_64_bits(self):
        arena = dmi.ReplayArena()
        d = arena.define("d", images.spec("float64", 2))
        block = arena.upload(d, [np.zeros(2)])
        with jax.enable_x64(False), self.assertRaisesRegex(dmi.StateError, "x64"):
            jax.jit(lambda b: b.unpack(d, 0))(block)


if __name__ == "__main__":
    absltest.main()
