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


def _run(path, exist="error"):
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
            [sys.executable, "-P", "-c", _PROGRAM, str(port), str(k), str(path), exist],
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


if __name__ == "__main__":
    absltest.main()
