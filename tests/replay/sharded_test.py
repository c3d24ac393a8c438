# SPDX-License-Identifier: Apache-2.0
"""Arenas on several devices: copied to all of them, or split among them."""

from __future__ import annotations

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

import jax_dmi as dmi
from support import images
from support import isolated


def _mesh():
    return Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))


def _arena(spec, **arguments):
    arena = dmi.ReplayArena(NamedSharding(_mesh(), spec), **arguments)
    arguments = {"x": images.spec("float32", 6), "n": images.spec("int32")}
    return arena, arena.define("d", arguments)


def _args(i):
    return {"x": np.full(6, i, np.float32), "n": i}


class ShardedTest(isolated.IsolatedTestCase):
    environment = isolated.FOUR_DEVICES

    def case_one_transfer_per_device(self):
        for spec in (P(), P("a"), P(("a", "b")), P(("b", "a")), P(None)):
            arena, d = _arena(spec)
            program = jax.jit(lambda b, i: b.unpack(d, i))
            arena.upload(d, [_args(0)])
            for count in (1, 7, 40, 7):
                before = arena.stats()
                with jax.transfer_guard("disallow"):
                    block = arena.upload(d, [_args(i) for i in range(count)])
                after = arena.stats()
                self.assertEqual(after.copies - before.copies, 4)
                self.assertEqual(block.words.sharding.spec, spec)
                self.assertLen(block.words.addressable_shards, 4)
                got = program(block, count - 1)
                self.assertEqual(int(got["n"]), count - 1)
                self.assertEqual(got["x"].tolist(), [count - 1] * 6)
                self.assertEqual(int(block.unpack(d, count - 1)["n"]), count - 1)
                self.assertEqual(
                    block.scan(d, lambda c, x: (c + x["n"], None), 0)[0],
                    count * (count - 1) // 2,
                )

    def case_parts_are_not_rewritten_either(self):
        for spec in (P(), P("a"), P(("a", "b"))):
            arena, d = _arena(spec)
            block = arena.upload(d, [_args(5)] * 40)
            images.fill_staging(arena)
            for shard in block.words.addressable_shards:
                self.assertFalse((np.asarray(shard.data) == 0xAAAAAAAA).any())
            self.assertEqual(int(block.unpack(d, 39)["n"]), 5)

    def case_any_number_of_parts(self):
        devices = np.array(jax.devices()[:3])
        sharding = NamedSharding(Mesh(devices, "x"), P("x"))
        arena = dmi.ReplayArena(sharding)
        d = arena.define("d", images.spec("int32"))
        for count in (1, 5, 90):
            block = arena.upload(d, [*range(count)])
            self.assertEqual(int(block.unpack(d, count - 1)), count - 1)

    def case_inside_shard_map(self):
        arena, d = _arena(P())
        block = arena.upload(d, [_args(i) for i in range(4)])

        def local(block, x):
            index = jax.lax.axis_index("a") * 2 + jax.lax.axis_index("b")
            return x + block.unpack(d, index)["n"]

        run = jax.jit(
            jax.shard_map(
                local,
                mesh=_mesh(),
                in_specs=(P(), P(("a", "b"))),
                out_specs=P(("a", "b")),
            )
        )
        self.assertEqual(run(block, jnp.zeros(4, jnp.int32)).tolist(), [0, 1, 2, 3])
        split = jax.shard_map(
            local,
            mesh=_mesh(),
            in_specs=(P("a"), P(("a", "b"))),
            out_specs=P(("a", "b")),
        )
        with self.assertRaisesRegex(dmi.DmiValueError, "in_specs"):
            jax.jit(split)(block, jnp.zeros(4, jnp.int32))

    def case_beside_arrays_of_the_same_mesh(self):
        arena, d = _arena(P())
        weights = jax.device_put(jnp.ones((4, 6)), NamedSharding(_mesh(), P("a", "b")))
        block = arena.upload(d, [_args(i) for i in range(4)])
        program = jax.jit(lambda b, w, i: w @ b.unpack(d, i)["x"])
        self.assertEqual(program(block, weights, 3).tolist(), [18] * 4)

    def case_one_of_several_devices(self):
        device = jax.devices()[2]
        arena = dmi.ReplayArena(device)
        d = arena.define("d", images.spec("int32"))
        block = arena.upload(d, [3])
        self.assertEqual(block.words.devices(), {device})
        self.assertEqual(int(block.unpack(d, 0)), 3)
        with jax.default_device(device):
            block = dmi.ReplayArena()
            d = block.define("d", images.spec("int32"))
            self.assertEqual(block.upload(d, [3]).words.devices(), {device})

    def case_shardings_of_more_dimensions(self):
        with self.assertRaisesRegex(dmi.DmiValueError, "one dimension"):
            dmi.ReplayArena(NamedSharding(_mesh(), P("a", "b")))


if __name__ == "__main__":
    absltest.main()
