# SPDX-License-Identifier: Apache-2.0
"""The demo: a small character transformer on real text, seen from inside.

Trains on the help texts of Python itself. Every block records its residual
stream, its attention pattern and the gradient of its residual stream, from inside
a jitted training step, a scan over layers and reverse-mode differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import functools
import pydoc_data.topics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 4, 128, 4, 64, 8

# --- Text --------------------------------------------------------------------


def text() -> np.ndarray:
    """Returns int32[n], some 500 kB of English as character numbers 0 to 127."""
    topics = pydoc_data.topics.topics
    joined = "\n".join(topics[key] for key in sorted(topics))
    raw = np.frombuffer(joined.encode("ascii", "replace"), np.uint8)
    return raw.astype(np.int32)


def batches(data: np.ndarray, seed: int = 0) -> Iterator[np.ndarray]:
    """Yields int32[BATCH, LENGTH + 1], random places of the text."""
    random = np.random.default_rng(seed)
    while True:
        begins = random.integers(0, data.size - LENGTH - 1, BATCH)
        yield np.stack([data[i : i + LENGTH + 1] for i in begins])


# --- Model -------------------------------------------------------------------


def init(key: jax.Array) -> dict[str, Any]:
    """Returns the parameters; those of the blocks are stacked along layers."""
    shapes = {
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    keys = jax.random.split(key, len(shapes) + 2)
    blocks = {
        name: jax.random.normal(k, (LAYERS, *shape)) / np.sqrt(shape[0])
        for k, (name, shape) in zip(keys, shapes.items())
    }
    return {
        "embed": 0.02 * jax.random.normal(keys[-2], (128, WIDTH)),
        "position": 0.02 * jax.random.normal(keys[-1], (LENGTH, WIDTH)),
        "blocks": blocks,
    }


def normalize(x: jax.Array) -> jax.Array:
    """Scales the last axis to a root mean square of one."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(x: jax.Array, block: dict[str, jax.Array], layer: jax.Array) -> jax.Array:
    """Causal self-attention; records its pattern."""
    q, k, v = jnp.split(normalize(x) @ block["qkv"], 3, axis=-1)
    q, k, v = (y.reshape(*y.shape[:-1], HEADS, -1) for y in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    pattern = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    dmi.record(pattern.astype(jnp.bfloat16), "block/pattern", layer=layer)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", pattern, v)
    return mixed.reshape(x.shape) @ block["out"]


def apply_block(x: jax.Array, scanned: tuple[Any, jax.Array]) -> tuple[jax.Array, None]:
    """One transformer block; records its residual stream and the gradient of it."""
    block, layer = scanned
    x = x + attention(x, block, layer)
    x = x + jax.nn.gelu(normalize(x) @ block["up"]) @ block["down"]
    x = dmi.record(x, "block/resid", layer=layer)
    x = dmi.record_grad(x, "block/resid_grad", layer=layer)
    return x, None


def loss_fn(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """Returns the mean cross entropy of the next character, in nats."""
    x = params["embed"][tokens[:, :-1]] + params["position"]
    x, _ = jax.lax.scan(apply_block, x, (params["blocks"], jnp.arange(LAYERS)))
    logits = normalize(x) @ params["embed"].T
    picked = jnp.take_along_axis(
        jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1
    )
    return -jnp.mean(picked)


# --- Training ----------------------------------------------------------------


@functools.partial(jax.jit, donate_argnums=0)
def train_step(
    state: tuple[Any, Any, Any, jax.Array], tokens: jax.Array
) -> tuple[tuple[Any, Any, Any, jax.Array], jax.Array]:
    """One step of Adam."""
    params, mean, square, count = state
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
    count = count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, grads)

    def update(p, m, s):
        m = m / (1 - 0.9**count)
        s = s / (1 - 0.99**count)
        return p - 1e-3 * m / (jnp.sqrt(s) + 1e-8)

    params = jax.tree.map(update, params, mean, square)
    return (params, mean, square, count), loss


def initial_state(seed: int = 0) -> tuple[Any, Any, Any, jax.Array]:
    """Returns fresh parameters and the state of Adam."""
    params = init(jax.random.key(seed))
    zeros = jax.tree.map(jnp.zeros_like, params)
    return params, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Trained:
    """Losses per step, and the median seconds of a step without the first ones."""

    losses: list[float]
    step_seconds: float


def train(
    steps: int,
    monitor: dmi.Monitor | None = None,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Trained:
    """Trains from scratch, under ``monitor`` if there is one."""
    state, data = initial_state(), batches(text())
    losses, seconds = [], []
    for step in range(steps):
        tokens = next(data)
        begin = time.perf_counter()
        if monitor is None:
            state, loss = train_step(state, tokens)
        else:
            with monitor.step(step):
                state, loss = train_step(state, tokens)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
        on_step(step, losses[-1])
    settled = seconds[min(5, steps - 1) :]
    return Trained(losses, float(np.median(settled)))
