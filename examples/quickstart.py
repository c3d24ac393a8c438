# SPDX-License-Identifier: Apache-2.0
"""Record the layers of a small network from inside jit, and read them back."""

import jax
import jax.numpy as jnp

import jax_dmi as dmi


@jax.jit
def network(weights, x):
    def layer(x, scanned):
        w, i = scanned
        x = dmi.record(jnp.tanh(x @ w), "layer/out", layer=i)
        return x, None

    return jax.lax.scan(layer, x, (weights, jnp.arange(len(weights))))[0]


weights = jax.random.normal(jax.random.key(0), (3, 64, 64)) / 8
with dmi.Monitor("runs/quickstart", exist="new") as monitor:
    for i in range(10):
        with monitor.step(i):
            network(weights, jnp.full((8, 64), 0.1 * i))

run = dmi.open_run(monitor.path)
outputs = run["layer/out"].stack()
print(run["layer/out"], outputs.shape, outputs.dtype)
print("mean |x| of layer 2 per step:", abs(outputs[2::3]).mean(axis=(1, 2)).round(3))
print("recorded", monitor.stats().recorded, "dropped", monitor.stats().dropped)
