# SPDX-License-Identifier: Apache-2.0
"""Find the layer that went wrong, alone, from what a run recorded.

A network is run and its layers are recorded. Later one of its layers is changed. The
recorded inputs are fed through every layer by itself, so the changed one is found
without running the network; then one activation is patched and followed.
"""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi

LAYERS, STEPS, CHANGED = 6, 4, 4


def layer(w, x):
    return x + jnp.tanh(x @ w) / 4


@jax.jit
def network(weights, x):
    def body(x, scanned):
        w, i = scanned
        x = dmi.record(x, "layer/in", layer=i)
        return dmi.record(layer(w, x), "layer/out", layer=i), None

    return jax.lax.scan(body, x, (weights, jnp.arange(LAYERS)))[0]


@jax.jit
def differences(block, weights):
    """How far every recorded output is from what its layer computes now."""

    def compare(number, args):
        out = layer(weights[number % LAYERS], args["x"])
        return number + 1, abs(out - args["y"]).max()

    return block.scan(kind, compare, 0, length=STEPS * LAYERS)[1]


@jax.jit
def finish(block, weights, step, at, patch):
    """Runs the layers from ``at`` on, from its recorded input plus a patch."""
    x = block.unpack(kind, step * LAYERS + at)["x"] + patch
    return jax.lax.fori_loop(at, LAYERS, lambda i, x: layer(weights[i], x), x)


def record_a_run(folder, weights):
    with dmi.Monitor(folder) as monitor:
        for i in range(STEPS):
            with monitor.step(i):
                network(weights, jnp.full((3, 32), 0.1 * (i + 1)))
    return dmi.open_run(folder)


weights = jax.random.normal(jax.random.key(0), (LAYERS, 32, 32)) / 6
with tempfile.TemporaryDirectory() as folder:
    run = record_a_run(folder, weights)
    # One submission per step and layer, all of them in one upload.
    kind, block = dmi.ReplayArena.from_run(run, {"x": "layer/in", "y": "layer/out"})
print(block)

changed = weights.at[CHANGED].mul(1.01)
apart = np.asarray(differences(block, changed)).reshape(STEPS, LAYERS).max(axis=0)
print("difference by layer:", apart.round(5))
print("the changed layer is", apart.argmax())
assert apart.argmax() == CHANGED
assert (np.delete(apart, CHANGED) < 1e-6).all()

patch = jnp.zeros((3, 32)).at[1, 7].set(1.0)
plain = finish(block, weights, 2, 3, jnp.zeros((3, 32)))
patched = finish(block, weights, 2, 3, patch)
moved = np.asarray(abs(patched - plain).max(axis=1))
last = block.unpack(kind, 3 * LAYERS - 1)["y"]
np.testing.assert_allclose(plain, last, rtol=1e-5, atol=1e-6)
print("patching row 1 moves the output rows by", moved.round(4))
assert moved[1] > 0.5 and moved[0] == moved[2] == 0
