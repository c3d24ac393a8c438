# SPDX-License-Identifier: Apache-2.0
"""Turn recorded activations into training shards for a sparse autoencoder.

    python sae_dataset.py            # records a small network, then makes shards
    python sae_dataset.py RUN NAME   # of a run you have

Needs `pip install safetensors`.
Every shard is a safetensors file with one tensor, [rows, width]: the vectors of all
records of a name, shuffled over a buffer that is much smaller than the run.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.flax

import jax_dmi as dmi

SHARD_ROWS = 8192
BUFFER_ROWS = 4 * SHARD_ROWS


def record_something() -> str:
    """Records 64 steps of a small network; returns the run."""

    @jax.jit
    def network(weights, key):
        x = jax.random.normal(key, (32, 64, 128))
        return dmi.record(jax.nn.gelu(x @ weights).astype(jnp.bfloat16), "mlp/out")

    weights = jax.random.normal(jax.random.key(0), (128, 256)) / 12
    with dmi.Monitor("runs/sae", exist="new") as monitor:
        for i, key in enumerate(jax.random.split(jax.random.key(1), 64)):
            with monitor.step(i):
                network(weights, key)
    return monitor.path


def vectors(series, rng):
    """Yields shuffled arrays [SHARD_ROWS, width]; the last one may be shorter."""
    waiting = []
    for batch in series.batches(8):
        waiting.append(batch.reshape(-1, batch.shape[-1]))
        if sum(map(len, waiting)) >= BUFFER_ROWS:
            buffer = rng.permutation(np.concatenate(waiting))
            yield buffer[:SHARD_ROWS]
            waiting = [buffer[SHARD_ROWS:]]
    buffer = rng.permutation(np.concatenate(waiting))
    for i in range(0, len(buffer), SHARD_ROWS):
        yield buffer[i : i + SHARD_ROWS]


def main() -> None:
    path, name = sys.argv[1:] or (record_something(), "mlp/out")
    run = dmi.open_run(path)
    report = run.verify()
    if not report.ok:
        sys.exit(f"{path} is not whole:\n{report}")
    out = pathlib.Path(f"{path}-shards")
    out.mkdir()
    total = 0
    for i, rows in enumerate(vectors(run[name], np.random.default_rng(0))):
        file = out / f"shard-{i:05d}.safetensors"
        safetensors.flax.save_file({"activations": jnp.asarray(rows)}, file)
        total += len(rows)
    print(f"{run[name]}: {total} vectors of {rows.shape[-1]} {rows.dtype} in {out}")


if __name__ == "__main__":
    main()
