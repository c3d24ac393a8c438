# SPDX-License-Identifier: Apache-2.0
"""A wall clock that jumps back while a process records."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sysconfig

from absl.testing import absltest

import jax_dmi as dmi
from support import isolated

# An hour back at every third look; the monotonic clocks are left alone.
_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  static long looks;
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(clock, now);
  if (clock == CLOCK_REALTIME) {
    now->tv_sec -= 3600 * (__atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED) / 3);
  }
  return status;
}
"""

_PROGRAM = """
import sys, time
import jax
import jax.numpy as jnp
import jax_dmi as dmi

looks = [time.time() for _ in range(9)]
assert looks[0] - looks[-1] > 5000, looks

@jax.jit
def program(x):
    def body(x, _):
        return dmi.record(x + 1, "x"), None
    return jax.lax.scan(body, x, None, length=20)[0]

with dmi.Monitor(sys.argv[1], linger=0.01, segment_bytes="64KiB") as monitor:
    x = jnp.zeros(1000)
    for i in range(20):
        with monitor.step(i):
            x = program(x)
        if i % 4 == 0:
            monitor.flush(timeout=30.0)
assert monitor.stats().written == 400
"""


class ClockTest(absltest.TestCase):
    def test_nothing_is_lost_and_the_order_stays(self):
        folder = pathlib.Path(self.create_tempdir().full_path)
        (folder / "clock.c").write_text(_CLOCK)
        compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
        subprocess.run(
            [compiler or "cc", "-shared", "-fPIC", "-o", "clock.so", "clock.c", "-ldl"],
            cwd=folder,
            check=True,
            timeout=60,
        )
        path = str(folder / "run")
        environment = {"LD_PRELOAD": os.fspath(folder / "clock.so")}
        isolated.run_python(["-c", _PROGRAM, path], environment, 100.0)
        run = dmi.open_run(path)
        report = run.verify()
        self.assertTrue(report.ok and report.closed, report)
        records = list(run.select("x"))
        self.assertEqual([r.numpy()[0] for r in records], list(range(1, 401)))
        self.assertEqual(run["x"].steps.tolist(), [i // 20 for i in range(400)])
        times = [r.time_ns for r in records]
        self.assertEqual(times, sorted(times))


if __name__ == "__main__":
    absltest.main()
