# SPDX-License-Identifier: Apache-2.0
"""Programs of several devices, beside others and in front of a full ring."""

from __future__ import annotations

import threading

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

import jax_dmi as dmi
from support import isolated
from support import memory_sink


class ManyDevicesTest(isolated.IsolatedTestCase):
    environment = isolated.FOUR_DEVICES

    def case_every_record_has_the_step_of_its_own_thread(self):
        # One thread dispatches inside `m.step`, one with `step=`, both every kind.
        steps = 40
        mesh = jax.make_mesh((4,), ("d",))
        sharded = NamedSharding(mesh, P("d"))
        whole = jax.device_put(np.arange(8.0, dtype=np.float32), sharded)
        parts = [jax.device_put(np.ones(3, np.float32), d) for d in jax.devices()]

        def summed(x):
            return jax.lax.psum(dmi.record(x + 1, "ambient/sum"), "d")

        ambient = [
            jax.jit(lambda x: dmi.record(x * 2, "ambient/whole")),
            jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=P("d"), out_specs=P())),
        ]
        ambient_one = jax.jit(lambda x: dmi.record(x + 2, "ambient/one"))
        own = jax.jit(lambda x, i: dmi.record(x * i, "own/whole", step=i))
        own_one = jax.jit(lambda x, i: dmi.record(x + i, "own/one", step=i))
        numbers = [jnp.int32(1000 + i) for i in range(steps)]
        failures = []

        def dispatch_with_steps_of_their_own():
            try:
                for i, number in enumerate(numbers):
                    own(whole, number)
                    for x in parts:
                        own_one(x, jax.device_put(1000 + i, x.device))
            except BaseException as error:
                failures.append(error)

        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink) as monitor:
            thread = threading.Thread(target=dispatch_with_steps_of_their_own)
            thread.start()
            for i in range(steps):
                with monitor.step(i):
                    for program in ambient:
                        program(whole)
                    for x in parts:
                        ambient_one(x)
            thread.join(120)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])
        stats = monitor.stats()
        self.assertEqual((stats.dropped, stats.pending), ({}, 0))
        expected = {"ambient/whole": 0, "ambient/sum": 0, "ambient/one": 0}
        expected |= {"own/whole": 1000, "own/one": 1000}
        for name, first in expected.items():
            for device in range(4):
                seen = [
                    r.step for r in sink.records if (r.name, r.device) == (name, device)
                ]
                self.assertEqual(seen, list(range(first, first + steps)), name)
        for r in sink.records:
            if r.name == "own/one":
                np.testing.assert_array_equal(r.value, np.full(3, 1.0 + r.step))
            if r.name == "own/whole":
                begin = 2 * r.device
                np.testing.assert_array_equal(
                    r.value, np.arange(begin, begin + 2, dtype=np.float32) * r.step
                )

    def case_a_program_compiled_under_a_larger_ring_counts_on_every_device(self):
        mesh = jax.make_mesh((4,), ("d",))
        x = jax.device_put(np.zeros(4096, np.float32), NamedSharding(mesh, P("d")))

        def body(x):
            return dmi.record(x + 1, "manual")

        def program(x):
            x = dmi.record(x * 2, "auto")
            return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)

        with dmi.Monitor(sink=memory_sink.MemorySink(), ring_bytes="1MiB"):
            compiled = jax.jit(program).lower(x).compile()
        with dmi.Monitor(sink=memory_sink.MemorySink(), ring_bytes=4096) as monitor:
            np.testing.assert_array_equal(compiled(x), np.ones(4096))
            monitor.flush()
        stats = monitor.stats()
        self.assertEqual((stats.recorded, stats.written), (8, 0))
        for counts in (*stats.by_device.values(), *stats.by_site.values()):
            self.assertEqual(counts.dropped, {"too_large": counts.recorded})
        self.assertEqual(len(stats.by_device), 4)


# One device records into a full ring; the others wait for it at a collective.
_STALL = """
import sys, time
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import jax_dmi as dmi
from support import memory_sink

stall_timeout, seconds_per_write = map(float, sys.argv[1:])

class Slow(memory_sink.GateSink):
    def write(self, batch):
        time.sleep(seconds_per_write)
        super().write(batch)

mesh = jax.make_mesh((4,), ("d",))

def body(x):
    first = jax.lax.axis_index("d") == 0
    def record(x, _):
        return dmi.record(x + 1, "x", when=first), None
    return jax.lax.psum(jax.lax.scan(record, x, None, length=1200)[0], "d")

program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P()))
x = jax.device_put(jnp.arange(80.0), NamedSharding(mesh, P("d")))
sink = Slow(opened=seconds_per_write > 0)
monitor = dmi.Monitor(
    sink=sink, ring_bytes=4096, batch_records=4, stall_timeout=stall_timeout
).start()
total = program(x).block_until_ready()
assert total[0] == sum(range(0, 80, 20)) + 4 * 1200, total
sink.gate.set()
try:
    monitor.close()
except dmi.CaptureError as error:
    print(error)
stats = monitor.stats()
assert stats.recorded == 1200 == stats.written + stats.dropped["stalled"], stats
assert stats.by_device[0].recorded == 1200 and not stats.pending
"""


class CollectiveTest(absltest.TestCase):
    def run_stalled(self, *arguments):
        # XLA ends a process in which a device waits for 60 s; here, for 6 s.
        flags = (
            isolated.FOUR_DEVICES["XLA_FLAGS"],
            "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1",
            "--xla_cpu_collective_call_terminate_timeout_seconds=5",
        )
        return isolated.run_python(
            ["-c", _STALL, *map(str, arguments)], {"XLA_FLAGS": " ".join(flags)}, 90.0
        )

    def test_behind_a_dead_sink_a_device_waits_for_the_budget_only(self):
        self.assertIn("stayed full for stall_timeout=2.0 s", self.run_stalled(2.0, 0))

    # Moving all the time, and so slow that all of it takes twice what XLA allows.
    def test_behind_a_slow_sink_a_device_waits_for_four_budgets_only(self):
        self.assertIn("kept other devices waiting", self.run_stalled(1.0, 0.04))


if __name__ == "__main__":
    absltest.main()
