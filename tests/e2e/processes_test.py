# SPDX-License-Identifier: Apache-2.0
"""One run of two real processes that share their devices by jax.distributed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from absl.testing import absltest
import numpy as np

import jax_dmi as dmi

_PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
port, process, path, exist = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(process))
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
import jax_dmi as dmi

mesh = jax.make_mesh((4,), ("d",))
sharding = NamedSharding(mesh, PartitionSpec("d"))
values = np.arange(40, dtype=np.float32).reshape(10, 4)
x = jax.make_array_from_callback((8, 4), sharding, lambda i: values[:8][i])
program = jax.jit(lambda x: dmi.record(x * 2, "whole") + 1)
local = jax.jit(lambda x: dmi.record(x, "local"))
try:
    monitor = dmi.Monitor(path, exist=exist, ring_bytes="1MiB").start()
except dmi.RunError as error:
    print("refused:", error)
    sys.exit(3)
for step in range(3):
    with monitor.step(step):
        x = program(x)
        local(np.full(3, jax.process_index(), np.float32))
x.block_until_ready()
monitor.close()
print(monitor.path, monitor.stats().recorded, monitor.stats().dropped)
"""


# A window carries four times as much in process 0 as in process 1, until they agree.
_AGREEING = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
port, process, path, exist = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(process))
import collections
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import jax_dmi as dmi

device = jax.local_devices()[0]
exchange = lambda i, y: jnp.sort(y[::-1])
@jax.jit
def step(x, y):
    x = dmi.record(x + 1, "row")
    (x, y) = dmi.open_window((x, y))
    y = jax.lax.fori_loop(0, 20, exchange, y)
    return dmi.close_window((x, y))

pattern = dmi.infer_window_pattern(step, jnp.zeros(1 << 16), jnp.ones(1 << 12))
monitor = dmi.Monitor(
    path, exist=exist, devices=[device], windows=pattern, ring_bytes="64MiB",
    link=dmi.SimulatedLink(10e6 if int(process) else 40e6),
).start()
x, y = jax.device_put((jnp.zeros(1 << 16), jnp.ones(1 << 12)), device)

def carried(begin):
    found = collections.Counter()
    for t in monitor.transfers():
        if t.kind == "window" and t.occurrence > begin:
            found[t.occurrence] += t.bytes
    return found

def run_until(done):
    global x, y
    for _ in range(220):
        x, y = step(x, y)
        jax.block_until_ready((x, y))
        if done():
            return
    raise AssertionError(f"nothing after 220 steps: {monitor.window_state()}")

estimate = lambda: monitor.window_state().windows[0].estimate
run_until(lambda: estimate() and len(carried(-1)) >= 8)
mine = np.float32(estimate())
limit = int(np.min(multihost_utils.process_allgather(mine)))
monitor.limit_grants(limit)
before = max(carried(-1).values())
now = pattern.match(int(monitor.boundaries()[-1, 0]) - 1).occurrence
run_until(lambda: len(carried(now)) >= 8)
assert max(carried(now).values()) <= limit, (carried(now), limit)
monitor.close()
print("agreed", limit, before)
"""


def _run(path, exist="error", program=_PROGRAM):
    """Runs both processes; returns exit status and output of each."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    children = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(port), str(k), str(path), exist],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    results = []
    for child in children:
        try:
            out, error = child.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            for other in children:
                other.kill()
            raise
        results.append((child.returncode, out, error))
    return results


class ProcessesTest(absltest.TestCase):
    def test_two_processes_write_one_run(self):
        path = os.path.join(self.create_tempdir().full_path, "run")
        for status, out, error in _run(path):
            self.assertEqual(status, 0, error)
            self.assertIn("9 {}", out)
        run = dmi.open_run(path)
        report = run.verify()
        self.assertTrue(report.ok and report.closed, report)
        self.assertLen(report.last, 4)
        whole = np.arange(32, dtype=np.float32).reshape(8, 4)
        for step in range(3):
            array = run["whole"].global_array(step=step)
            np.testing.assert_array_equal(array, whole * 2)
            whole = whole * 2 + 1
        self.assertEqual({r.process for r in run.select("local")}, {0, 1})
        for record in run.select("local"):
            self.assertEqual(record.numpy()[0], record.process)

        with self.subTest("a run that exists is refused in both"):
            for status, out, error in _run(path):
                self.assertEqual(status, 3, error)
                self.assertIn("refused:", out)
        with self.subTest("or both take the next name"):
            for status, out, error in _run(path, "new"):
                self.assertEqual(status, 0, error)
                self.assertIn("run-2", out)

    def test_two_processes_agree_on_one_grant(self):
        path = os.path.join(self.create_tempdir().full_path, "run")
        limits = []
        largest = []
        for status, out, error in _run(path, program=_AGREEING):
            self.assertEqual(status, 0, error)
            limit, before = out.split("agreed")[1].split()
            limits.append(int(limit))
            largest.append(int(before))
        self.assertEqual(limits[0], limits[1])
        # Without the agreement, more would have moved.
        self.assertGreater(max(largest), limits[0])
        self.assertTrue(dmi.open_run(path).verify().ok)


if __name__ == "__main__":
    absltest.main()
