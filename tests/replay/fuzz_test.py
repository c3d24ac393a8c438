# SPDX-License-Identifier: Apache-2.0
"""Random plans: packed, uploaded and unpacked, to the byte."""

from __future__ import annotations

from absl.testing import absltest
import jax
import numpy as np

import jax_dmi as dmi
from support import images

_ARENAS = 16
_PLANS = 1250  # of each


def _shape(rng):
    shape = rng.integers(1, 4, rng.integers(0, 9))
    if shape.size and rng.random() < 0.1:
        shape[rng.integers(shape.size)] = 0
    if shape.size and rng.random() < 0.3:
        shape[rng.integers(shape.size)] = rng.integers(1, 200)
    while np.prod(shape) > 600:
        shape = shape[:-1]
    return [int(size) for size in shape]


def _arguments(rng):
    width = int(rng.choice([0, 1, 3, 8, 24]))
    names = rng.choice(images.NARROW, width)
    return {f"a{k}": images.spec(n, *_shape(rng)) for k, n in enumerate(names)}


class _Kind:
    """A definition, submissions to choose from, and a program that unpacks."""

    def __init__(self, rng, arena, number):
        self.d = arena.define(f"kind {number}", _arguments(rng))
        self.args = [self._random(rng, nan) for nan in (True, True, False, False)]
        self.arrays = [images.leaves(args) for args in self.args]
        self.bytes = [images.submission(arrays) for arrays in self.arrays]
        self.unpack = jax.jit(lambda block, index: block.unpack(self.d, index))

    def _random(self, rng, nan):
        return {
            name: images.value(rng, wanted, nan)
            for name, wanted in self.d.arguments.items()
        }

    def assert_comes_back(self, block, index, choice):
        got = self.unpack(block, np.int32(index))
        for leaf, want in zip(jax.tree.leaves(got), self.arrays[choice], strict=True):
            assert leaf.dtype == want.dtype and leaf.shape == want.shape
            # A program may alter which NaN it is; the image does not.
            if choice >= 2:
                assert images.raw(leaf) == images.raw(want)


def _run_plan(rng, arena, kinds):
    """Uploads one random plan and compares the image; returns what is in it."""
    for bank in arena._banks:
        if bank.free:
            bank.staging.fill(0xAA)
    plan = arena.plan()
    order = []
    count = int(rng.integers(0, 12)) if rng.random() < 0.97 else 150
    for _ in range(count):
        number, choice = int(rng.integers(len(kinds))), int(rng.integers(4))
        index = plan.submit(kinds[number].d, kinds[number].args[choice])
        assert index == sum(n == number for n, _ in order)
        order.append((number, choice))
    block = plan.upload()
    data = images.raw(block.words)
    want = images.image(len(kinds), [(n, kinds[n].bytes[c]) for n, c in order])
    assert data[: len(want)] == want
    assert data.count(b"\0", len(want)) == len(data) - len(want)
    return block, order


class FuzzTest(absltest.TestCase):
    def test_random_plans(self):
        plans = 0
        for seed in range(_ARENAS):
            rng = np.random.default_rng(seed)
            arena = dmi.ReplayArena(banks=int(rng.integers(1, 4)))
            kinds = [_Kind(rng, arena, n) for n in range(rng.integers(1, 4))]
            for _ in range(_PLANS):
                block, order = _run_plan(rng, arena, kinds)
                plans += 1
                if order and rng.random() < 0.3:
                    place = int(rng.integers(len(order)))
                    number, choice = order[place]
                    index = sum(n == number for n, _ in order[:place])
                    kinds[number].assert_comes_back(block, index, choice)
            self.assertEqual(arena.stats().copies, _PLANS)
        self.assertEqual(plans, 20_000)


if __name__ == "__main__":
    absltest.main()
