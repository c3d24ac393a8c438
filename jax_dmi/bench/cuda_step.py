# SPDX-License-Identifier: Apache-2.0
"""What it costs a training step on a GPU to let all residuals out.

A transformer of 12 layers in bf16, and the residual stream behind every layer: thrown
away, recorded, passed to an ``io_callback``, and returned and copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax.experimental import io_callback
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi.bench import device
from jax_dmi.bench import harness
from jax_dmi.bench import programs

_REACH = 1.02
# Compiles in seconds: without a search among generated kernels.
_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The model, and how often it takes a step."""

    layers: int = 12
    width: int = 1024
    heads: int = 16
    length: int = 1024
    batch: int = 4
    steps: int = 8
    rounds: int = 5
    ring_bytes: int = 1 << 30


def run(plan: Plan | None = None) -> list[harness.Row]:
    """Measures steps, on a GPU unless there is a ``plan``."""
    if plan is None:
        device.need_gpu()
        plan = Plan()
    times = _measure(plan)
    names = {
        "record": "recorded",
        "callback": "passed to io_callback",
        "outputs": "returned and copied",
    }
    return [
        harness.row(
            f"cuda: step of {plan.layers} layers, residuals {what} / not let out",
            harness.ratios(times[name], times["none"]),
            _REACH if name == "record" else None,
            detail=f"{harness.micros(times[name])} / {harness.micros(times['none'])}",
        )
        for name, what in names.items()
    ]


# --- Model -------------------------------------------------------------------

Tap = Callable[[jax.Array, jax.Array], jax.Array]


def _init(plan: Plan) -> dict[str, jax.Array]:
    width = plan.width
    shapes = {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {
        name: jax.random.normal(key, (plan.layers, *shape), jnp.bfloat16)
        / np.sqrt(shape[0]).astype(jnp.bfloat16)
        for key, (name, shape) in zip(keys, shapes.items())
    }


def _normalize(x: jax.Array) -> jax.Array:
    scale = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return x * jax.lax.rsqrt(scale + 1e-6).astype(x.dtype)


def _block(x: jax.Array, block: dict[str, jax.Array], heads: int) -> jax.Array:
    qkv = jnp.split(_normalize(x) @ block["qkv"], 3, axis=-1)
    q, k, v = (y.reshape(*y.shape[:-1], heads, -1) for y in qkv)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + mixed.reshape(x.shape) @ block["out"]
    return x + jax.nn.gelu(_normalize(x) @ block["up"]) @ block["down"]


def _step(plan: Plan, tap: Tap, returned: bool) -> Any:
    def loss_fn(params, x):
        def body(x, scanned):
            block, layer = scanned
            x = tap(_block(x, block, plan.heads), layer)
            return x, x if returned else None

        x, out = jax.lax.scan(body, x, (params, jnp.arange(plan.layers)))
        return jnp.mean(jnp.square(x.astype(jnp.float32))), out

    def step(params, x):
        grads, out = jax.grad(loss_fn, has_aux=True)(params, x)
        params = jax.tree.map(lambda p, g: p - g.astype(p.dtype) * 1e-3, params, grads)
        return params, out

    return jax.jit(step, donate_argnums=0, compiler_options=_OPTIONS)


class _Callback:
    """Passes values to Python, and counts how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: jax.Array, layer: jax.Array) -> jax.Array:
        # Under a gradient JAX drops a callback in scan whose result is not used.
        zero = jax.ShapeDtypeStruct((), x.dtype)
        return x + io_callback(self._call, zero, jax.lax.stop_gradient(x), layer)

    def _call(self, x: Any, layer: Any) -> Any:
        del layer
        self.calls += 1
        return np.zeros((), x.dtype)


# --- Measurement -------------------------------------------------------------


def _measure(plan: Plan) -> dict[str, list[float]]:
    x = jnp.ones((plan.batch, plan.length, plan.width), jnp.bfloat16)
    callback = _Callback()
    steps = {
        "none": _step(plan, lambda x, layer: x, False),
        "record": _step(plan, lambda x, i: dmi.record(x, "resid", layer=i), False),
        "callback": _step(plan, callback, False),
        "outputs": _step(plan, lambda x, layer: x, True),
    }
    states = {name: _init(plan) for name in steps}

    with programs.monitor(exact=False, ring_bytes=plan.ring_bytes) as active:

        def seconds(name: str) -> float:
            active.flush()

            def take() -> None:
                out = []
                for _ in range(plan.steps):
                    states[name], more = steps[name](states[name], x)
                    if more is not None:
                        more.copy_to_host_async()
                        out.append(more)
                jax.block_until_ready(states[name])
                jax.effects_barrier()
                for more in out:
                    np.asarray(more)

            return harness.timed(take) / plan.steps

        def apart(name: str) -> float:
            with programs.unrecorded():
                return seconds(name)

        variants: dict[str, Callable[[], float]] = {
            name: lambda name=name: apart(name) for name in steps
        }
        variants["record"] = lambda: seconds("record")
        times = harness.rounds(variants, count=plan.rounds, warmup=1)
        active.flush()
        stats = active.stats()
        expected = (plan.rounds + 1) * plan.steps * plan.layers
        if stats.dropped or {stats.written, callback.calls} != {expected}:
            raise RuntimeError(
                f"of {expected} residuals {callback.calls} were passed to a callback,"
                f" and not all were recorded: {stats}"
            )
    return times
