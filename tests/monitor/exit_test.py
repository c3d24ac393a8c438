# SPDX-License-Identifier: Apache-2.0
"""The end of a process without ``close``: what was dispatched is still written."""

from __future__ import annotations

import contextlib
import os
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

import jax_dmi as dmi
from support import isolated

_PROGRAM = """
import os, signal, sys, threading, time
import jax
import jax.numpy as jnp
import jax_dmi as dmi
from support import memory_sink

RUN = sys.argv[1]

@jax.jit
def program(x):
    def body(x, i):
        return dmi.record(jnp.sin(x @ x), "x", layer=i), None
    return jax.lax.scan(body, x, jnp.arange(40))[0]

X = jnp.ones((120, 120))
"""


def _run(script: str, run: str = "", environment=None) -> str:
    text = _PROGRAM + script
    return isolated.run_python(["-c", text, run], environment or {}, 100.0)


class ExitTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("in_flight", "m = dmi.Monitor(RUN).start(); program(X)", 40),
        (
            "many_in_flight_with_results_dropped",
            "m = dmi.Monitor(RUN).start()\nfor _ in range(20): program(X)",
            800,
        ),
        ("monitor_dropped", "dmi.Monitor(RUN).start(); program(X)", 40),
        ("sys_exit", "m = dmi.Monitor(RUN).start(); program(X); sys.exit(0)", 40),
        (
            "inside_a_step",
            "m = dmi.Monitor(RUN).start(); s = m.step(3); s.__enter__(); program(X)",
            40,
        ),
        (
            "signal_handler_that_exits",
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
            "m = dmi.Monitor(RUN).start(); program(X)\n"
            "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
            40,
        ),
        (
            "first_step_after_the_main_thread_ended",
            "m = dmi.Monitor(RUN).start()\n"
            "def late():\n"
            "    threading.main_thread().join()\n"
            "    with m.step(5): program(X).block_until_ready()\n"
            "threading.Thread(target=late).start()",
            40,
        ),
    )
    def test_everything_dispatched_is_written(self, script, count):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            _run(script, path)
            run = dmi.open_run(path)
            report = run.verify()
            self.assertTrue(report.ok and report.closed, report)
            self.assertEqual(report.dropped, {})
            self.assertLen(run["x"], count)

    def test_programs_of_four_devices_are_written(self):
        script = """
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((4,), ("d",))
m = dmi.Monitor(RUN).start()
program(jax.device_put(X, NamedSharding(mesh, PartitionSpec("d"))))
"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            _run(script, path, isolated.FOUR_DEVICES)
            run = dmi.open_run(path)
            self.assertTrue(run.verify().ok)
            self.assertLen(list(run.select("x")), 160)

    def test_a_daemon_thread_that_dispatches_does_not_spoil_the_run(self):
        script = """
def dispatch():
    while True:
        program(X)

m = dmi.Monitor(RUN).start()
threading.Thread(target=dispatch, daemon=True).start()
while m.stats().written < 100:
    m.flush()
"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            # JAX may abort at the very end: it does so without a Monitor, too.
            with contextlib.suppress(AssertionError):
                _run(script, path)
            run = dmi.open_run(path)
            report = run.verify()
            self.assertTrue(report.ok and report.closed, report)
            self.assertGreaterEqual(len(run["x"]), 100)
            self.assertContainsSubset(report.dropped, ["closed"])

    def test_a_thread_that_outlives_the_main_thread_is_waited_for(self):
        script = """
def dispatch():
    threading.main_thread().join()
    for _ in range(20):
        results.append(program(X))

results = []
m = dmi.Monitor(RUN).start()
threading.Thread(target=dispatch).start()
"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            _run(script, path)
            run = dmi.open_run(path)
            report = run.verify()
            self.assertTrue(report.ok and report.closed, report)
            self.assertEqual(report.dropped, {})
            self.assertLen(run["x"], 800)

    @parameterized.named_parameters(
        (
            "with",
            "with dmi.Monitor(RUN) as m:\n"
            "    for i in range(100):\n"
            "        with m.step(i): program(X)\n"
            "        if i == 5: signal.raise_signal(signal.SIGINT)",
        ),
        (
            "no_with",
            "m = dmi.Monitor(RUN).start()\n"
            "for i in range(6): program(X)\n"
            "signal.raise_signal(signal.SIGINT)",
        ),
    )
    def test_an_interrupt_loses_nothing(self, script):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            with self.assertRaisesRegex(AssertionError, "exit status -2\n"):
                _run(script, path)
            run = dmi.open_run(path)
            report = run.verify()
            self.assertTrue(report.ok and report.closed, report)
            self.assertEqual(report.dropped, {})
            self.assertLen(run["x"], 240)

    def test_after_interrupts_at_any_moment_a_process_captures_again(self):
        script = """
import random
random.seed(3)
with dmi.Monitor(sink=dmi.sinks.NullSink()):
    program(X)
interrupted = recorded = 0
for i in range(40):
    path = f"{RUN}/{i}"
    monitor = dmi.Monitor(path)
    timer = threading.Timer(
        random.uniform(0, 0.08), signal.raise_signal, [signal.SIGINT]
    )
    try:
        timer.start()
        with monitor:
            # Python drops an interrupt that hits a finalizer.
            for _ in range(300):
                with monitor.step(i):
                    program(X).block_until_ready()
    except KeyboardInterrupt:
        interrupted += 1
        # It may have come between the start and the body of `with`.
        monitor.close()
    timer.join()
    if monitor.path:
        report = dmi.open_run(path).verify()
        assert report.ok and report.closed and not report.dropped, (i, report)
        recorded += sum(last + 1 for last in report.last.values())
assert interrupted > 30 and recorded > 400, (interrupted, recorded)
sinks = [t for t in threading.enumerate() if "sink" in t.name]
assert not sinks, sinks
"""
        with tempfile.TemporaryDirectory() as folder:
            _run(script, folder)

    def test_a_killed_process_leaves_what_was_flushed(self):
        script = """
m = dmi.Monitor(RUN).start()
program(X)
m.flush()
program(X)
os.kill(os.getpid(), signal.SIGTERM)
"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            with self.assertRaisesRegex(AssertionError, "exit status -15"):
                _run(script, path)
            run = dmi.open_run(path)
            report = run.verify()
            self.assertTrue(report.ok and not report.closed, report)
            self.assertGreaterEqual(len(run["x"]), 40)

    def test_a_forked_child_is_refused_and_leaves_the_run_alone(self):
        script = """
m = dmi.Monitor(RUN).start()
program(X).block_until_ready()
child = os.fork()
if not child:
    refused = 0
    for method in (m.flush, m.close, m.stats):
        try:
            method()
        except dmi.StateError:
            refused += 1
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
program(X)
"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            _run(script, path)
            run = dmi.open_run(path)
            self.assertTrue(run.verify().ok)
            self.assertLen(run["x"], 80)

    def test_children_record_nothing_and_leave_a_busy_process_alone(self):
        script = """
one = jax.jit(lambda x: dmi.record(x * 2, "small"))
small = jnp.ones(3)
m = dmi.Monitor(RUN).start()
one(small).block_until_ready()

def in_child(leave):
    child = os.fork()
    if not child:
        signal.alarm(20)
        for _ in range(5):
            one(small)
        leave(_native.control_losses(0)["forked"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5

def after_exit_hooks(status):
    # Then out: JAX itself hangs or crashes where its client is torn down in a child.
    atexit._run_exitfuncs()
    os._exit(status)

in_child(after_exit_hooks)
done = threading.Event()

def dispatch():
    while not done.is_set():
        program(X).block_until_ready()

thread = threading.Thread(target=dispatch)
thread.start()
for _ in range(30):
    in_child(os._exit)
done.set()
thread.join()
m.close()
stats = m.stats()
assert stats.recorded == stats.written and not stats.dropped, stats
assert stats.by_site["small"].recorded == 1
"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            _run("import atexit\nfrom jax_dmi import _native\n" + script, path)
            report = dmi.open_run(path).verify()
            self.assertTrue(report.ok and report.closed, report)

    def test_children_of_multiprocessing(self):
        script = '''
import multiprocessing
CHILD = """
import sys
import jax.numpy as jnp
import jax_dmi as dmi
try:
    dmi.Monitor(sys.argv[1]).start()
except dmi.RunExistsError:
    with dmi.Monitor(sys.argv[1], exist="new") as m:
        for i in range(7):
            dmi.record(jnp.full(3, i), "child")
    sys.exit(m.stats().written)
"""
m = dmi.Monitor(RUN).start()
program(X)
for method, code, status in (
    ("spawn", CHILD, 7),
    ("fork", "import sys; sys.exit(3)", 3),
    ("forkserver", CHILD, 7),
):
    process = multiprocessing.get_context(method).Process(target=exec, args=[code])
    process.start()
    program(X)
    process.join(60)
    assert process.exitcode == status, (method, process.exitcode)
'''
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run")
            _run(script, path)
            for name, site, count in (
                ("run", "x", 160),
                ("run-2", "child", 7),
                ("run-3", "child", 7),
            ):
                run = dmi.open_run(os.path.join(folder, name))
                report = run.verify()
                self.assertTrue(report.ok and report.closed, report)
                self.assertLen(run[site], count)

    def test_a_blocked_program_does_not_keep_the_process(self):
        script = """
import jax_dmi.session
jax_dmi.session.SINK_PATIENCE = jax_dmi.session._PROGRAM_PATIENCE = 0.5
os.dup2(1, 2)
sink = memory_sink.GateSink()
m = dmi.Monitor(sink=sink, ring_bytes="256KiB", stall_timeout=1e6).start()
program(X)
sink.entered.wait()
"""
        output = _run(script)
        self.assertIn("the sink made no progress", output)
        self.assertRegex(output, "dropped: .'closed': 3[0-9]")

    def test_a_hanging_sink_does_not_keep_the_process_or_speak_of_internals(self):
        script = """
import jax_dmi.session
jax_dmi.session.SINK_PATIENCE = 0.5
os.dup2(1, 2)
sink = memory_sink.GateSink()
m = dmi.Monitor(sink=sink).start()
program(X)
sink.entered.wait()
"""
        output = _run(script)
        self.assertIn("the sink made no progress", output)
        self.assertNotIn("leaked", output)

    def test_an_interrupted_close_does_not_abort_the_process(self):
        script = """
def interrupted():
    raise KeyboardInterrupt

m = dmi.Monitor(sink=memory_sink.MemorySink()).start()
m._session.end = interrupted
try:
    m.close()
except KeyboardInterrupt:
    print("interrupted")
"""
        self.assertIn("interrupted", _run(script))


if __name__ == "__main__":
    absltest.main()
