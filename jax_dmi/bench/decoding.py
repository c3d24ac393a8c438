# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a small decoder that replays one compiled layer.

Every token takes 40 replays with 26 arguments each: as plain arguments, through the
arena, and through the arena in one program that scans over the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi.bench import harness

_LAYERS, _WIDTH, _BATCH, _TOKENS = 40, 64, 4, 20
_PAGES, _PAGE = 8, 8
_ARGUMENTS = {
    "layer": jax.ShapeDtypeStruct((), jnp.int32),
    "slots": jax.ShapeDtypeStruct((_BATCH,), jnp.int32),
    "pages": jax.ShapeDtypeStruct((_BATCH, _PAGES), jnp.int32),
    "lengths": jax.ShapeDtypeStruct((_BATCH,), jnp.int32),
    **{f"gain {k}": jax.ShapeDtypeStruct((_BATCH,), jnp.float32) for k in range(22)},
}


def _layer(w: dict, x: jax.Array, cache: jax.Array, args: dict):
    """One layer on one position of every sequence, over pages of a cache."""
    gains = [args[f"gain {k}"][:, None] for k in range(22)]
    y = jnp.tanh(x @ w["in"][args["layer"]]) * sum(gains) / 22
    first = args["layer"] * _BATCH * _PAGES * _PAGE
    cache = cache.at[first + args["slots"]].set(y)
    places = args["pages"][:, :, None] * _PAGE + jnp.arange(_PAGE)
    seen = cache[first + places.reshape(_BATCH, -1)]
    scores = jnp.einsum("bd,bsd->bs", y, seen)
    known = jnp.arange(_PAGES * _PAGE) < args["lengths"][:, None]
    weight = jax.nn.softmax(jnp.where(known, scores, -1e9))
    mixed = jnp.einsum("bs,bsd->bd", weight, seen)
    return x + mixed @ w["out"][args["layer"]], cache


def _weights() -> dict[str, jax.Array]:
    shape = (_LAYERS, _WIDTH, _WIDTH)
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "in": jax.random.normal(keys[0], shape) / 8,
        "out": jax.random.normal(keys[1], shape) / 64,
        "embed": jax.random.normal(keys[2], (_WIDTH, _WIDTH)),
    }


def _arguments(token: int) -> list[dict[str, Any]]:
    pages = np.arange(_BATCH * _PAGES, dtype=np.int32).reshape(_BATCH, _PAGES)
    common = {
        "slots": pages[:, token // _PAGE] * _PAGE + np.int32(token % _PAGE),
        "pages": pages,
        "lengths": np.full(_BATCH, token + 1, np.int32),
        **{f"gain {k}": np.full(_BATCH, 1 + k / 64, np.float32) for k in range(22)},
    }
    return [{"layer": np.int32(layer), **common} for layer in range(_LAYERS)]


def _decode(w: dict, run_layers: Callable) -> np.ndarray:
    cache = jnp.zeros((_LAYERS * _BATCH * _PAGES * _PAGE, _WIDTH))
    tokens = jnp.arange(_BATCH)
    decoded = []
    for token in range(_TOKENS):
        x = w["embed"][tokens]
        x, cache = run_layers(w, x, cache, _arguments(token))
        tokens = (x @ w["embed"]).argmax(-1)
        decoded.append(np.asarray(tokens))
    return np.stack(decoded)


def _ways() -> dict[str, Callable]:
    arena = dmi.ReplayArena()
    kind = arena.define("layer", _ARGUMENTS)
    alone = jax.jit(_layer, donate_argnums=2)

    def plain(w, x, cache, replays):
        for args in replays:
            x, cache = alone(w, x, cache, args)
        return x, cache

    @jax.jit(donate_argnums=2)
    def one(w, x, cache, block, index):
        return *_layer(w, x, cache, block.unpack(kind, index)), index + 1

    def packed(w, x, cache, replays):
        block, index = arena.upload(kind, replays), jnp.int32(0)
        for _ in replays:
            x, cache, index = one(w, x, cache, block, index)
        return x, cache

    @jax.jit(donate_argnums=2)
    def together(w, x, cache, block):
        def body(carry, args):
            x, cache = carry
            return _layer(w, x, cache, args), None

        return block.scan(kind, body, (x, cache), length=_LAYERS)[0]

    def scanned(w, x, cache, replays):
        return together(w, x, cache, arena.upload(kind, replays))

    return {"plain": plain, "arena": packed, "arena, scan": scanned}


def rows() -> list[harness.Row]:
    """Compares tokens per second; all ways decode the same tokens."""
    w, ways = _weights(), _ways()
    tokens = {name: _decode(w, way) for name, way in ways.items()}
    for name, decoded in tokens.items():
        if not np.array_equal(decoded, tokens["plain"]):
            raise AssertionError(f"{name} decodes other tokens than plain arguments")
    times = harness.rounds(
        {
            name: lambda way=way: harness.timed(lambda: _decode(w, way))
            for name, way in ways.items()
        },
        count=7,
        warmup=1,
    )
    rates = {name: [_TOKENS / s for s in seconds] for name, seconds in times.items()}
    detail = ", ".join(f"{name} {np.median(r):.0f}/s" for name, r in rates.items())
    return [
        harness.row(
            f"replay: tokens per second, {name} / plain arguments",
            harness.ratios(rates[name], rates["plain"]),
            detail=detail,
        )
        for name in ("arena", "arena, scan")
    ]
