# SPDX-License-Identifier: Apache-2.0
"""Faults around a Monitor: what it says, what it keeps, and that the next one works."""

from __future__ import annotations

import os
import pathlib
import pickle
import threading
import time

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import serialize_executable
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi import session
from jax_dmi import switches
from support import disk
from support import isolated
from support import memory_sink


@jax.jit
def _program(x):
    return dmi.record(x + 1, "x")


def _sink_threads():
    return [t for t in threading.enumerate() if t.name == "jax_dmi sink"]


def _assert_balanced(stats):
    parts = stats.written + sum(stats.dropped.values()) + stats.pending
    assert stats.recorded == parts, stats


class HangingSinkTest(absltest.TestCase):
    def test_close_ends_and_names_the_sink_and_the_next_monitor_works(self):
        session.SINK_PATIENCE, patience = 0.3, session.SINK_PATIENCE
        self.addCleanup(setattr, session, "SINK_PATIENCE", patience)
        sink = memory_sink.GateSink()
        monitor = dmi.Monitor(sink=sink, linger=0.0).start()
        _program(jnp.zeros(4)).block_until_ready()
        self.assertTrue(sink.entered.wait(30))
        _program(jnp.ones(4))
        with self.assertRaisesRegex(dmi.CaptureError, "the sink made no progress"):
            monitor.close()
        stats = monitor.stats()
        self.assertEqual((stats.recorded, stats.pending), (2, 2))
        _assert_balanced(stats)
        self.assertFalse(sink.closed)

        other = memory_sink.MemorySink()
        with dmi.Monitor(sink=other):
            _program(jnp.full(4, 5.0))
        self.assertEqual([r.value[0] for r in other.records], [6.0])

        # What hung holds its memory until it lets go, and only then.
        (thread,) = _sink_threads()
        sink.gate.set()
        thread.join(30)
        self.assertFalse(thread.is_alive())
        self.assertEqual([r.value[0] for r in sink.records], [1.0, 2.0])
        stats = monitor.stats()
        self.assertEqual((stats.written, stats.pending), (2, 0))


class StartTest(parameterized.TestCase):
    @parameterized.parameters(
        (memory_sink.MemorySink, "open"), (switches.Switches, "start")
    )
    def test_a_start_that_fails_leaves_nothing_behind(self, where, method):
        def fail(*arguments):
            raise KeyboardInterrupt

        sink = memory_sink.MemorySink()
        with absltest.mock.patch.object(where, method, fail):
            with self.assertRaises(KeyboardInterrupt):
                dmi.Monitor(sink=sink).start()
        self.assertTrue(sink.closed)
        self.assertEmpty(_sink_threads())
        self.assertNotIn("custom_call", jax.jit(_program).lower(jnp.ones(3)).as_text())
        with dmi.Monitor(sink=(other := memory_sink.MemorySink())):
            _program(jnp.ones(3))
        self.assertLen(other.records, 1)

    def test_a_place_that_cannot_be_written_is_refused_and_the_next_one_works(self):
        folder = self.create_tempdir()
        folder.create_file("file")
        with self.assertRaisesRegex(dmi.RunError, "file/run"):
            dmi.Monitor(os.path.join(folder.full_path, "file/run")).start()
        with dmi.Monitor(os.path.join(folder.full_path, "run")) as monitor:
            _program(jnp.ones(3))
        self.assertLen(dmi.open_run(monitor.path)["x"], 1)


class FullDiskTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_only_what_was_counted_is_lost(self, for_good):
        size, half, count = 6000, 50, 110 if for_good else 80  # 24 KB each.
        full = "No space left|File too large"
        folder = self.create_tempdir().full_path
        with disk.small_disk(pathlib.Path(folder, "disk")) as is_small:
            filler = pathlib.Path(folder, "disk/filler")
            filler.write_bytes(bytes(800_000))
            path = os.path.join(folder, "disk/run")
            # Where files are small instead, all must come in one batch.
            options = {} if is_small else {"batch_bytes": "4MiB", "linger": 60.0}
            monitor = dmi.Monitor(path, ring_bytes="16MiB", **options).start()
            for i in range(count):
                _program(jnp.full(size, float(i))).block_until_ready()
                if i == half:
                    with self.assertRaisesRegex(dmi.CaptureError, full):
                        monitor.flush()
                    if not for_good:
                        filler.unlink()
                elif i > half and i % 10 == 9 and not for_good:
                    # The first failure stays known; what comes now is written.
                    with self.assertRaisesRegex(dmi.CaptureError, full):
                        monitor.flush()
            with self.assertRaisesRegex(dmi.CaptureError, f"({full}).*dropped.*sink"):
                monitor.close()
            stats = monitor.stats()
            self.assertEqual((stats.recorded, stats.pending), (count, 0))
            self.assertEqual(set(stats.dropped), {"sink"})
            _assert_balanced(stats)
            run = dmi.open_run(path)
            records = list(run.select("x"))
            self.assertLen(records, stats.written)
            for r in records:
                np.testing.assert_array_equal(r.numpy(), np.full(size, r.seq + 1.0))
            report = run.verify()
            self.assertEmpty(report.corrupt)
            last = report.last.get((0, 0), -1)
            gaps = sum(map(len, report.missing.get((0, 0), [])))
            self.assertEqual(last + 1 - gaps, stats.written)
            if for_good:
                self.assertLess(last, half)
            else:
                self.assertEqual(last, count - 1)
                self.assertEqual(report.dropped, stats.dropped)


class ExecutablesTest(absltest.TestCase):
    def test_two_hundred_monitors_and_every_program_kept_alive(self):
        def compiled(name):
            x = jnp.zeros(64)
            return jax.jit(lambda x: dmi.record(x, name)).lower(x).compile()

        kept = []
        mapped = []
        for i in range(200):
            sink = memory_sink.MemorySink()
            with dmi.Monitor(sink=sink, select=(f"{i % 7}*", "*")) as monitor:
                if i % 10 == 0:
                    kept.append(compiled(f"{i}"))
                for program in kept:
                    program(jnp.full(64, float(i)))
            self.assertEqual([r.value[0] for r in sink.records], [i] * len(kept))
            self.assertEqual(
                [r.name for r in sink.records], [f"{10 * k}" for k in range(len(kept))]
            )
            # No ring to record into, and all of them say so.
            kept[0](jnp.zeros(64)).block_until_ready()
            self.assertEqual(monitor.stats().dropped, {"closed": 1})
            mapped.append(int(pathlib.Path("/proc/self/statm").read_text().split()[0]))
        self.assertEmpty(_sink_threads())
        # In pages of 4 KiB; a ring that stayed would be 256 MiB.
        self.assertLess(mapped[-1] - mapped[20], 65536)

    def test_a_deserialized_executable_records_under_its_names(self):
        with dmi.Monitor(sink=memory_sink.MemorySink()):
            program = jax.jit(lambda x: dmi.record(x * 2, "stored", layer=3))
            stored = pickle.dumps(
                serialize_executable.serialize(program.lower(jnp.ones(4)).compile())
            )
        script = """
import pickle, sys
import jax.numpy as jnp
from jax.experimental import serialize_executable
import jax_dmi as dmi
from support import memory_sink

with open(sys.argv[1], "rb") as file:
    program = serialize_executable.deserialize_and_load(*pickle.load(file))
# Before there was any Monitor.
assert program(jnp.ones(4))[0] == 2
sink = memory_sink.MemorySink()
with dmi.Monitor(sink=sink):
    program(jnp.full(4, 5.0))
print([(r.name, r.layer, r.value.tolist()) for r in sink.records])
"""
        path = self.create_tempfile().full_path
        pathlib.Path(path).write_bytes(stored)
        output = isolated.run_python(["-c", script, path], {}, 60.0)
        self.assertEqual(output.strip(), str([("stored", 3, [10.0] * 4)]))


class OtherThreadTest(absltest.TestCase):
    def test_what_no_flush_can_wait_for_is_written_or_counted(self):
        @jax.jit
        def slow(x):
            def body(x, _):
                return dmi.record(jnp.tanh(x @ x), "slow"), None

            return jax.lax.scan(body, x, None, length=200)[0]

        x = jnp.ones((200, 200)) / 200
        slow(x).block_until_ready()
        ended = threading.Event()

        def dispatch():
            slow(x)  # Its result is gone at once: nothing is left to wait for.
            ended.set()

        with dmi.Monitor(sink=memory_sink.MemorySink()) as monitor:
            slow(x).block_until_ready()
            monitor.flush()
            thread = threading.Thread(target=dispatch)
            thread.start()
            thread.join(60)
            self.assertTrue(ended.is_set())
            monitor.flush()
        deadline = time.monotonic() + 60
        while (stats := monitor.stats()).recorded < 400:
            self.assertLess(time.monotonic(), deadline)
        _assert_balanced(stats)
        self.assertEqual((stats.recorded, stats.pending), (400, 0))
        self.assertContainsSubset(stats.dropped, ["closed"])


if __name__ == "__main__":
    absltest.main()
