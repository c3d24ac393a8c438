# SPDX-License-Identifier: Apache-2.0
"""How much memory a capture takes while it runs for many times its ring.

Measured in a process of its own, because a process never gives back all it took.
"""

from __future__ import annotations

import json
import subprocess
import sys

from jax_dmi.bench import harness

_RING = 64 << 20
_BATCH = 8 << 20
_RECORD = 1 << 20
_LAPS = 20

_PROGRAM = """
import json, resource, shutil, sys, tempfile
import jax, jax.numpy as jnp
import jax_dmi as dmi

ring, batch, record, laps = map(int, sys.argv[1:])

def program(x):
    def body(i, _):
        dmi.record(x, "x")
        return i + 1, None
    return jax.lax.scan(body, 0, None, length=ring // record)[0]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

x = jnp.zeros(record // 4, jnp.float32)
folder = tempfile.mkdtemp()
with dmi.Monitor(folder + "/warm", exact=False, ring_bytes=2 << 20) as monitor:
    jax.jit(lambda x: dmi.record(x, "warm"))(x).block_until_ready()
before = resident()
peak = before
with dmi.Monitor(folder + "/run", exact=False, ring_bytes=ring,
                 batch_bytes=batch) as monitor:
    compiled = jax.jit(program)
    for _ in range(laps):
        compiled(x).block_until_ready()
        peak = max(peak, resident())
    assert not monitor.stats().dropped
shutil.rmtree(folder)
print(json.dumps(peak - before))
"""


def run() -> list[harness.Row]:
    """Measures the peak over the memory before the capture."""
    arguments = [str(n) for n in (_RING, _BATCH, _RECORD, _LAPS)]
    taken = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
        taken.append(json.loads(done.stdout.splitlines()[-1]))
    allowed = _RING + 2 * _BATCH
    return [
        harness.row(
            f"memory: peak over a run of {_LAPS} rings / (ring + 2 batches)",
            [bytes_ / allowed for bytes_ in taken],
            1.0,
            detail=f"{sorted(taken)[2] / 2**20:.0f} MiB, ring {_RING >> 20} MiB,"
            f" batch {_BATCH >> 20} MiB",
        )
    ]
