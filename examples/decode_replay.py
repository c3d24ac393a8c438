# SPDX-License-Identifier: Apache-2.0
"""Decode with one compiled layer, 40 times per token, 26 arguments each time.

Once every argument travels by itself, once all of a token travel in one upload.
What was uploaded together can also be scanned over, in one program per token. The
tokens are the same; the transfers and the times are printed.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi

LAYERS, TOKENS, ROUNDS = 40, 24, 3
BATCH, WIDTH, HEADS, VOCABULARY = 4, 64, 4, 96
PAGE, PAGES = 8, 8  # positions per page, pages per sequence
SLOTS = BATCH * PAGES * PAGE  # of one layer

# What a serving engine tells a layer anew for every token.
VECTORS = {
    "positions": ((BATCH,), jnp.int32),
    "lengths": ((BATCH,), jnp.int32),
    "slots": ((BATCH,), jnp.int32),
    "pages": ((BATCH, PAGES), jnp.int32),
    "window": ((BATCH,), jnp.int32),
    "sinks": ((BATCH,), jnp.int32),
    "active": ((BATCH,), jnp.bool_),
    "adapter": ((BATCH,), jnp.int32),
    "adapter_scale": ((BATCH,), jnp.float32),
    "head_gain": ((HEADS,), jnp.float32),
    "head_bias": ((HEADS,), jnp.float32),
}
SCALARS = {
    "layer": jnp.int32,
    "first_slot": jnp.int32,
    **dict.fromkeys(
        ("rope_base", "rope_scale", "score_scale", "score_cap", "norm_epsilon"),
        jnp.float32,
    ),
    **dict.fromkeys(
        ("query_gain", "key_gain", "value_gain", "attention_gain", "mlp_gain"),
        jnp.float32,
    ),
    **dict.fromkeys(("residual_gain", "clip", "noise"), jnp.float32),
}
ARGUMENTS = {
    **{name: jax.ShapeDtypeStruct(*spec) for name, spec in VECTORS.items()},
    **{name: jax.ShapeDtypeStruct((), dtype) for name, dtype in SCALARS.items()},
}
assert len(ARGUMENTS) == 26


def weights(key):
    def normal(*shape):
        nonlocal key
        key, use = jax.random.split(key)
        return jax.random.normal(use, shape) / np.sqrt(shape[-2])

    return {
        "embed": 8 * normal(VOCABULARY, WIDTH),
        "head": normal(WIDTH, VOCABULARY),
        "qkv": normal(LAYERS, WIDTH, 3 * WIDTH),
        "out": normal(LAYERS, WIDTH, WIDTH) / 8,
        "up": normal(LAYERS, WIDTH, 2 * WIDTH),
        "down": normal(LAYERS, 2 * WIDTH, WIDTH) / 8,
        "adapters": normal(4, WIDTH, WIDTH) / 8,
    }


def normalize(x, epsilon):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)


def rotate(x, positions, a):
    half = x.shape[-1] // 2
    rates = a["rope_base"] ** (-jnp.arange(half) / half)
    angles = (positions * a["rope_scale"])[:, None, None] * rates
    left, right = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def attend(q, cache, a):
    """Attention of one position over the pages of its sequence."""
    slots = a["pages"][:, :, None] * PAGE + jnp.arange(PAGE)
    slots = a["first_slot"] + slots.reshape(BATCH, -1)
    keys, values = cache[0][slots], cache[1][slots]
    scores = jnp.einsum("bhd,bshd->bhs", q, keys) * a["score_scale"]
    scores = a["score_cap"] * jnp.tanh(scores / a["score_cap"])
    scores = scores * a["head_gain"][:, None] + a["head_bias"][:, None]
    place = jnp.arange(PAGE * PAGES)
    seen = place < a["lengths"][:, None]
    near = place > (a["positions"] - a["window"])[:, None]
    seen &= near | (place < a["sinks"][:, None])
    scores = jnp.where(seen[:, None], scores, -1e9)
    return jnp.einsum("bhs,bshd->bhd", jax.nn.softmax(scores), values)


def layer(w, x, cache, a):
    """One layer of the decoder on one position of every sequence."""
    at = a["layer"]
    y = normalize(x, a["norm_epsilon"])
    y += (y[:, None] @ w["adapters"][a["adapter"]])[:, 0] * a["adapter_scale"][:, None]
    q, k, v = jnp.split((y @ w["qkv"][at]).reshape(BATCH, HEADS, -1), 3, axis=-1)
    q = rotate(q, a["positions"], a) * a["query_gain"]
    k = rotate(k, a["positions"], a) * a["key_gain"]
    slots = a["first_slot"] + a["slots"]
    cache = cache.at[0, slots].set(k).at[1, slots].set(v * a["value_gain"])
    attended = attend(q, cache, a).reshape(BATCH, WIDTH) @ w["out"][at]
    x = a["residual_gain"] * x + a["attention_gain"] * attended
    y = normalize(x, a["norm_epsilon"]) @ w["up"][at]
    y = a["mlp_gain"] * (jax.nn.silu(y) @ w["down"][at])
    y = jnp.clip(y, -a["clip"], a["clip"]) + a["noise"]
    return jnp.where(a["active"][:, None], x + y, x), cache


def arguments(token, number):
    """The 26 arguments of one layer, as a scheduler computes them."""
    sequences = np.arange(BATCH, dtype=np.int32)
    position = np.full(BATCH, token, np.int32)
    pages = np.arange(BATCH * PAGES, dtype=np.int32).reshape(PAGES, BATCH).T.copy()
    return {
        "positions": position,
        "lengths": position + 1,
        "slots": pages[sequences, token // PAGE] * PAGE + np.int32(token % PAGE),
        "pages": pages,
        "window": np.full(BATCH, 32, np.int32),
        "sinks": sequences,
        "active": np.ones(BATCH, bool),
        "adapter": sequences,
        "adapter_scale": np.full(BATCH, 0.5, np.float32),
        "head_gain": np.linspace(0.5, 1.5, HEADS, dtype=np.float32),
        "head_bias": np.zeros(HEADS, np.float32),
        "layer": np.int32(number),
        "first_slot": np.int32(number * SLOTS),
        "rope_base": np.float32(10000),
        "rope_scale": np.float32(1),
        "score_scale": np.float32(0.25),
        "score_cap": np.float32(30),
        "norm_epsilon": np.float32(1e-6),
        **{name: np.float32(1) for name in SCALARS if name.endswith("_gain")},
        "clip": np.float32(5),
        "noise": np.float32(0),
    }


@jax.jit
def first(w, tokens):
    return w["embed"][tokens]


@jax.jit
def last(w, x):
    return (normalize(x, 1e-6) @ w["head"]).argmax(-1)


def decode(w, run_layers):
    """Decodes TOKENS tokens; returns them, and the seconds it took."""
    cache = jnp.zeros((2, LAYERS * SLOTS, HEADS, WIDTH // HEADS))
    tokens = jnp.arange(BATCH)
    decoded = []
    begin = time.perf_counter()
    for number in range(TOKENS):
        replays = [arguments(number, i) for i in range(LAYERS)]
        x, cache = run_layers(w, first(w, tokens), cache, replays)
        tokens = last(w, x)
        decoded.append(np.asarray(tokens))
    return np.stack(decoded, axis=1), time.perf_counter() - begin


def main():
    w = weights(jax.random.key(0))
    arena = dmi.ReplayArena()
    definition = arena.define("layer", ARGUMENTS)

    plain_layer = jax.jit(layer, donate_argnums=2)

    def plainly(w, x, cache, replays):
        for args in replays:
            x, cache = plain_layer(w, x, cache, args)
        return x, cache

    @jax.jit(donate_argnums=2)
    def arena_layer(w, x, cache, block, index):
        x, cache = layer(w, x, cache, block.unpack(definition, index))
        return x, cache, index + 1

    def through_the_arena(w, x, cache, replays):
        block = arena.upload(definition, replays)
        index = zero
        for _ in replays:
            x, cache, index = arena_layer(w, x, cache, block, index)
        return x, cache

    @jax.jit(donate_argnums=2)
    def all_layers(w, x, cache, block):
        def body(carry, args):
            return layer(w, *carry, args), None

        return block.scan(definition, body, (x, cache), length=LAYERS)[0]

    def in_one_program(w, x, cache, replays):
        return all_layers(w, x, cache, arena.upload(definition, replays))

    zero = jnp.int32(0)
    ways = {
        "plain arguments": plainly,
        "replay arena": through_the_arena,
        "replay arena, scan": in_one_program,
    }
    tokens = {name: decode(w, way)[0] for name, way in ways.items()}  # compiles
    seconds = {name: [] for name in ways}
    before = arena.stats()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            seconds[name].append(decode(w, way)[1])
    after = arena.stats()
    for name, decoded in tokens.items():
        assert (decoded == tokens["plain arguments"]).all(), name

    print(f"{TOKENS} tokens of {BATCH} sequences, the same every way; the first:")
    print(f"  {tokens['plain arguments'][0].tolist()}")
    transfers = dict.fromkeys(
        ways, (after.copies - before.copies) // (2 * ROUNDS * TOKENS)
    )
    transfers["plain arguments"] = LAYERS * len(ARGUMENTS)
    print(f"  {'':20}transfers/token   tokens/s")
    for name in ways:
        rate = TOKENS / min(seconds[name])
        print(f"  {name:20}{transfers[name]:15d}   {rate:8.1f}")
    print(f"  {after}")


if __name__ == "__main__":
    main()
