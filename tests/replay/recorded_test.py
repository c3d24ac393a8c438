# SPDX-License-Identifier: Apache-2.0
"""Arenas of what a run recorded."""

from __future__ import annotations

import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

import jax_dmi as dmi
from support import images
from support import isolated


def _record(folder, program, steps, *args):
    """Runs a program that records, once per step, and opens the run."""
    with dmi.Monitor(folder) as monitor:
        for step in range(steps):
            with monitor.step(step):
                jax.block_until_ready(program(step, *args))
    return dmi.open_run(folder)


@jax.jit
def _layers(step):
    def body(x, layer):
        dmi.record(x, "in", layer=layer)
        x = x * 2 + layer
        dmi.record(x.astype(jnp.bfloat16), "out", layer=layer)
        return x, None

    x = jnp.arange(6.0).reshape(2, 3) + step
    x, _ = jax.lax.scan(body, x, jnp.arange(3))
    dmi.record(x.sum(), "sum")


class RecordedTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.run_ = _record(self.create_tempdir().full_path + "/run", _layers, 5)

    def assert_holds(self, kind, block, sites, places):
        self.assertEqual(block.count(kind), len(places))
        for i, (step, layer) in enumerate(places):
            got = block.unpack(kind, i)
            for name, site in sites.items():
                (want,) = self.run_.select(site, step=step, layer=layer)
                self.assertEqual(images.raw(got[name]), images.raw(want.numpy()))

    @parameterized.parameters(
        (None, range(5)),
        (3, [3]),
        (range(1, 3), [1, 2]),
        ([4, 0], [0, 4]),
        ({np.int64(2)}, [2]),
    )
    def test_submissions_are_steps_and_layers(self, steps, chosen):
        sites = {"x": "in", "y": "out"}
        kind, block = dmi.ReplayArena.from_run(self.run_, sites, steps)
        self.assertEqual(kind.arguments["y"].dtype, jnp.bfloat16)
        self.assert_holds(
            kind, block, sites, [(s, k) for s in chosen for k in range(3)]
        )

    def test_a_site_without_layers(self):
        kind, block = dmi.ReplayArena.from_run(self.run_, {"s": "sum"})
        self.assert_holds(kind, block, {"s": "sum"}, [(s, None) for s in range(5)])

    def test_sites_that_do_not_belong_together(self):
        with self.assertRaisesRegex(dmi.DmiValueError, "'sum' lacks.*layer 0"):
            dmi.ReplayArena.from_run(self.run_, {"x": "in", "s": "sum"})
        with self.assertRaises(dmi.UnknownNameError):
            dmi.ReplayArena.from_run(self.run_, {"x": "inn"})
        with self.assertRaisesRegex(dmi.DmiValueError, "steps=9.*0, 1, 2, 3, 4"):
            dmi.ReplayArena.from_run(self.run_, {"x": "in"}, steps=9)
        for arguments in ({}, "in", None):
            with self.assertRaisesRegex(dmi.DmiTypeError, "arguments="):
                dmi.ReplayArena.from_run(self.run_, arguments)

    def test_a_site_of_several_shapes(self):
        def program(step):
            dmi.record(jnp.zeros(step + 1), "x")

        run = _record(self.create_tempdir().full_path + "/run", program, 2)
        with self.assertRaisesRegex(dmi.DmiValueError, r"float32\[1\].*float32\[2\]"):
            dmi.ReplayArena.from_run(run, {"x": "x"})
        kind, block = dmi.ReplayArena.from_run(run, {"x": "x"}, steps=1)
        self.assertEqual(block.unpack(kind, 0)["x"].shape, (2,))

    def test_several_records_of_one_step(self):
        def program(step):
            for i in range(3):
                dmi.record(jnp.full(2, 10 * step + i), "x")

        run = _record(self.create_tempdir().full_path + "/run", program, 2)
        kind, block = dmi.ReplayArena.from_run(run, {"x": "x"})
        got = block.scan(kind, lambda c, args: (c, args["x"][0]), 0)[1]
        self.assertEqual(got.tolist(), [0, 1, 2, 10, 11, 12])


class ShardedTest(isolated.IsolatedTestCase):
    environment = isolated.FOUR_DEVICES

    def case_shards_are_put_together(self):
        mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
        sharding = NamedSharding(mesh, P("a", "b"))
        x = jax.device_put(jnp.arange(24.0).reshape(4, 6), sharding)
        program = jax.jit(lambda step, x: dmi.record(x * step, "x"))
        with tempfile.TemporaryDirectory() as folder:
            run = _record(folder + "/run", program, 3, x)
            kind, block = dmi.ReplayArena.from_run(run, {"x": "x"})
        self.assertEqual(block.count(kind), 3)
        for step in range(3):
            got = block.unpack(kind, step)["x"]
            self.assertEqual(got.tolist(), (x * step).tolist())

    def case_inside_shard_map(self):
        mesh = Mesh(np.array(jax.devices()), "a")
        local = jax.shard_map(
            lambda x: dmi.record(x, "x"), mesh=mesh, in_specs=P("a"), out_specs=P("a")
        )
        program = jax.jit(lambda step, x: local(x))
        with tempfile.TemporaryDirectory() as folder:
            run = _record(folder + "/run", program, 1, jnp.arange(8.0))
            with self.assertRaisesRegex(dmi.DmiValueError, "shard_map"):
                dmi.ReplayArena.from_run(run, {"x": "x"})


if __name__ == "__main__":
    absltest.main()
