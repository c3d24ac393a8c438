# SPDX-License-Identifier: Apache-2.0
"""Train a pipeline of four stages, and keep transfers out of its computations.

Every device holds one stage; micro-batches travel through them, forwards and then
backwards. A device that sends and waits has its link to spare, one that computes has
not: the program says which is which with ``open_window`` and ``close_window``, and
the Monitor moves the hidden states, over a simulated link, in the windows.
"""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

import jax_dmi as dmi

STAGES, LAYERS, MICRO_BATCHES, ROWS, WIDTH = 4, 3, 4, 1024, 256
TICKS = MICRO_BATCHES + STAGES - 1
STEPS, RATE = 16, 20.0
BYTES_PER_SECOND = 256e6

mesh = jax.make_mesh((STAGES,), ("stage",))
FORWARDS = [(i, (i + 1) % STAGES) for i in range(STAGES)]
BACKWARDS = [(b, a) for a, b in FORWARDS]

# --- The pipeline ------------------------------------------------------------


def permute(x, pairs):
    x = dmi.open_window(x)
    x = lax.ppermute(x, "stage", pairs)
    return dmi.close_window(x)


@jax.custom_vjp
def send(x):
    """Hands activations to the next stage, and their gradients to the one before."""
    return permute(x, FORWARDS)


# Boundaries count once, in the forward pass; the backward pass gets its own.
send.defvjp(
    lambda x: (permute(x, FORWARDS), None),
    lambda _, gradient: (permute(gradient, BACKWARDS),),
)


def loss(weights, inputs, targets):
    stage = lax.axis_index("stage")

    def block(h):
        for up, down in zip(weights["up"], weights["down"]):
            h = h + jnp.tanh(h @ up) @ down
        return h

    def tick(h, t):
        h = send(h)
        # Which micro-batch is here; in the bubble none, and nothing is computed.
        here = t - stage
        busy = (here >= 0) & (here < MICRO_BATCHES)
        h = jnp.where(stage == 0, inputs[jnp.clip(here, 0, MICRO_BATCHES - 1)], h)
        h = lax.cond(busy, block, lambda h: h, h)
        h = dmi.record(h, "hidden", layer=stage, labels={"batch": here}, when=busy)
        return h, h

    idle = lax.pcast(jnp.zeros((ROWS, WIDTH)), "stage", to="varying")
    _, hidden = lax.scan(tick, idle, jnp.arange(TICKS))
    error = jnp.mean((hidden[STAGES - 1 :] - targets) ** 2)
    return jnp.where(stage == STAGES - 1, error, 0.0), hidden


def stage_step(weights, inputs, targets):
    mine = jax.tree.map(lambda w: w[0], weights)
    with_aux = jax.value_and_grad(loss, has_aux=True)
    (error, hidden), gradients = with_aux(mine, inputs, targets)
    updated = jax.tree.map(lambda w, g: (w - RATE * g)[None], mine, gradients)
    return updated, lax.psum(error, "stage"), hidden[None]


train_step = jax.jit(
    jax.shard_map(
        stage_step,
        mesh=mesh,
        in_specs=(P("stage"), P(), P()),
        out_specs=(P("stage"), P(), P("stage")),
    )
)


def problem():
    """Weights float32[stage, layer, width, width], data float32[batch, row, width]."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    scale = WIDTH**-0.5
    weights = {
        "up": normal(STAGES, LAYERS, WIDTH, WIDTH) * scale,
        "down": normal(STAGES, LAYERS, WIDTH, WIDTH) * 0.1 * scale,
    }
    weights = jax.device_put(weights, jax.NamedSharding(mesh, P("stage")))
    inputs = normal(MICRO_BATCHES, ROWS, WIDTH)
    return weights, inputs, np.roll(inputs, 1, axis=-1)


# --- One training run --------------------------------------------------------


def train(name, windows):
    """Trains; returns the Monitor, the losses, and the hidden states of each step."""
    weights, inputs, targets = problem()
    losses, hidden = [], []
    with dmi.Monitor(
        f"runs/pipeline_{name}",
        exist="new",
        batch_bytes="1MiB",
        link=dmi.SimulatedLink(BYTES_PER_SECOND),
        windows=windows,
    ) as monitor:
        for step in range(STEPS):
            with monitor.step(step):
                weights, error, states = train_step(weights, inputs, targets)
                losses.append(float(error))
                hidden.append(states)
    return monitor, losses, [np.asarray(states) for states in hidden]


def check(monitor, hidden):
    """Compares every record with what the program returned; returns their number."""
    found = set()
    for record in dmi.open_run(monitor.path).select("hidden"):
        step, stage, batch = record.step, record.layer, record.labels["batch"]
        assert (step, stage, batch) not in found, f"{record} came twice"
        found.add((step, stage, batch))
        returned = hidden[step][stage, batch + stage]
        assert record.numpy().tobytes() == returned.tobytes(), record
    assert len(found) == STEPS * STAGES * MICRO_BATCHES, f"only {len(found)} came"
    return len(found)


# --- Transfers against critical regions --------------------------------------


def critical_regions(boundaries, pattern):
    """Returns int64[n, 2], begin and end in ns, from int64[b, 2] boundaries."""
    counters, times = boundaries.T
    critical = np.array([pattern.match(int(c)) is None for c in counters[:-1]])
    return np.stack([times[:-1], times[1:]], axis=1)[critical]


def overlaps(monitor, pattern):
    """Returns bytes and ns of transfers, and ns of those in critical regions."""
    size = moving = critical = 0
    for device in range(STAGES):
        boundaries = monitor.boundaries(device)
        first, last = boundaries[[0, -1], 1]
        regions = critical_regions(boundaries, pattern)
        for transfer in monitor.transfers():
            if transfer.device == device:
                # Behind the program there is nothing to disturb.
                begin, end = np.clip((transfer.begin_ns, transfer.end_ns), first, last)
                inside = np.clip(regions, begin, end)
                size += transfer.bytes if transfer.end_ns <= last else 0
                moving += end - begin
                critical += (inside[:, 1] - inside[:, 0]).sum()
    return size, moving, critical


def draw(monitors, pattern, file):
    """Draws two steps in the middle: transfers, and critical regions behind them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(monitors), figsize=(12, 5), layout="constrained", squeeze=False
    )
    for axis, (name, monitor) in zip(axes[:, 0], monitors.items()):
        middle = pattern.period * (STEPS // 2)
        start, end = monitor.boundaries(0)[[middle, middle + 2 * pattern.period - 1], 1]
        for device in range(STAGES):
            regions = critical_regions(monitor.boundaries(device), pattern)
            spans = [
                (t.begin_ns, t.end_ns)
                for t in monitor.transfers()
                if t.device == device
            ]
            for times, height, color in (
                (regions, 0.8, "0.85"),
                (np.array(spans).reshape(-1, 2), 0.4, "tab:red"),
            ):
                begin, length = times[:, 0] - start, times[:, 1] - times[:, 0]
                bars = np.stack([begin, length], axis=1) / 1e6
                axis.broken_barh(bars, (device - height / 2, height), color=color)
        axis.set(title=f"{name}: transfers (red), critical regions (grey)")
        axis.set(xlim=(0, (end - start) / 1e6), xlabel="ms", ylabel="device")
        axis.set_yticks(range(STAGES))
    figure.savefig(file, dpi=150)


def main():
    pattern = dmi.infer_window_pattern(train_step, *problem())
    print(f"{len(pattern.windows)} windows in {pattern.period} boundaries per step")
    print(f"{'':10}  records       all  while running      moving  critical  overlap")
    monitors = {}
    for name, windows in (("batching", None), ("windows", pattern)):
        monitor, losses, hidden = train(name, windows)
        assert losses[-1] < losses[0] / 2, losses
        records = check(monitor, hidden)
        size, moving, critical = overlaps(monitor, pattern)
        print(
            f"{name:10}{records:9}{monitor.stats().bytes / 1e6:9.0f} MB"
            f"{size / 1e6:11.0f} MB{moving / 1e6:9.0f} ms{critical / 1e6:9.0f} ms"
            f"{critical / max(moving, 1):9.3f}"
        )
        monitors[name] = monitor
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; every hidden state byte for byte")
    try:
        draw(monitors, pattern, "pipeline_windows.png")
    except ImportError:
        print("no picture: it needs matplotlib")
    else:
        print("picture: pipeline_windows.png")


if __name__ == "__main__":
    main()
