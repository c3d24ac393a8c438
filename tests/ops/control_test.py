# SPDX-License-Identifier: Apache-2.0
"""The programs the Monitor dispatches itself: fences, and the ambient step."""

from __future__ import annotations

import time

from absl.testing import absltest
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from jax_dmi import ops
from jax_dmi import spec as capture_spec
from jax_dmi.ops import control
from support import isolated


class ControlTest(isolated.IsolatedTestCase):
    environment = isolated.FOUR_DEVICES

    def setUp(self):
        super().setUp()
        ops.register()

    def slow(self, x):
        """A program that takes some tenths of a second."""
        return lax.fori_loop(0, 100, lambda _, c: jnp.tanh(c @ c), x)

    def case_fences_wait_for_programs_on_one_device(self):
        devices = jax.devices()
        f = jax.jit(self.slow)
        xs = [jax.device_put(np.eye(256, dtype=np.float32), d) for d in devices]
        jax.block_until_ready([f(x) for x in xs])
        control.fences(devices)
        for _ in range(3):
            running = [f(x) for x in xs]
            control.fences(devices)
            self.assertTrue(all(y.is_ready() for y in running))

    def case_fences_wait_for_programs_on_all_devices(self):
        mesh = Mesh(np.array(jax.devices()), ("a",))
        x = jax.device_put(np.ones((256, 256), np.float32), NamedSharding(mesh, P("a")))
        f = jax.jit(self.slow)
        jax.block_until_ready(f(x))
        for _ in range(3):
            running = f(x)
            control.fences(jax.devices())
            self.assertTrue(running.is_ready())

    def case_setting_the_step_does_not_wait(self):
        f = jax.jit(self.slow)
        x = np.eye(512, dtype=np.float32)
        for multi in (False, True):
            control.set_step(jax.devices(), 0, True, multi)
        jax.block_until_ready(f(x))
        begin = time.monotonic()
        jax.block_until_ready(f(x))
        alone = time.monotonic() - begin
        running = f(x)
        begin = time.monotonic()
        for multi in (False, True):
            control.set_step(jax.devices(), 1, True, multi)
        self.assertLess(time.monotonic() - begin, alone)
        jax.block_until_ready(running)

    def case_results_are_ready_when_the_step_is_set(self):
        for multi in (False, True):
            words = control.set_step(jax.devices(), -5, False, multi)
            flat = np.concatenate([np.asarray(w) for w in jax.tree.leaves(words)])
            low, high, flags, kind = flat.reshape(4, 4).T
            self.assertEqual(set(low), {2**32 - 5})
            self.assertEqual(set(high), {2**32 - 1})
            self.assertEqual(set(flags), {1})
            self.assertEqual(set(kind), {int(multi)})
        (words,) = control.set_step(jax.devices()[:1], None, True, False)
        self.assertEqual(np.asarray(words).tolist(), [0, 0, 2, 0])

    def case_the_settings_of_the_caller_do_not_matter(self):
        mesh = jax.make_mesh((4,), ("m",))
        with (
            jax.set_mesh(mesh),
            jax.enable_x64(True),
            capture_spec.overriding(capture_spec.CaptureSpec()),
        ):
            control.set_step(jax.devices(), 3, True, True)
            control.fences(jax.devices())
            control.fences(jax.devices()[1:3])
        with jax.disable_jit(), jax.transfer_guard("disallow"):
            control.set_step(jax.devices(), 4, True, True)
            control.fences(jax.devices()[:1])


if __name__ == "__main__":
    absltest.main()
