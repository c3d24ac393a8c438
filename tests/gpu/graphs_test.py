# SPDX-License-Identifier: Apache-2.0
"""Records inside command buffers: captured once, replayed many times.

Needs a GPU, or emulated kernels, whose calls are then captured as XLA captures them.
A handler runs when its call is captured, and not when that is replayed. So a program
whose records come out every time although the handler ran a few times only was
replayed: that is the proof here, and it needs no profiler, under which XLA captures
nothing. The host's allocator hands out other addresses each time, and other addresses
are captured anew, so emulated kernels show it within the loop of one program only.
"""

from __future__ import annotations

import functools

from absl.testing import absltest
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

import jax_dmi as dmi
from jax_dmi import _native
from support import backend
from support import isolated
from support import memory_sink

_RUNS = 64
_LINKS = 8
# The parent's pool holds most of the memory of a GPU.
_CHILD = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_CAPTURED = {**_CHILD, "DMI_FAKE_CUDA_CAPTURE": "1"}
_NOT_CAPTURED = {
    **_CHILD,
    "DMI_FAKE_CUDA_CAPTURE": "0",
    "XLA_FLAGS": "--xla_gpu_enable_command_buffer=",
}


def _chain(x, links=_LINKS, name="link"):
    """Alternates kernels and records: enough of both for a command buffer."""
    for i in range(links):
        x = dmi.record(x + 1, f"{name}{i}")
    return x


def _calls(run) -> int:
    """How often the handler of records is called during ``run()``."""
    before = _native.handler_calls()
    run()
    return _native.handler_calls() - before


def _monitor(sink, **settings):
    return dmi.Monitor(sink=sink, **{"ring_bytes": "1MiB", **settings})


def _repeat(program, times, x):
    for _ in range(times):
        x = jax.block_until_ready(program(x))
    return x


class CapturedTest(isolated.IsolatedTestCase):
    environment = _CAPTURED

    def assertFew(self, calls, records):
        """Most records were replays of calls; at least one was none."""
        self.assertGreater(calls, 0)
        if backend.platform() == "cuda":
            self.assertLess(calls, records // 4)

    def assertChain(self, records, begin, runs, size, links=_LINKS):
        """The records of so many chains, one after another, bit by bit."""
        self.assertLen(records, runs * links)
        for i, record in enumerate(records):
            self.assertEqual(record.seq, i)
            self.assertEqual(record.name, f"link{i % links}")
            expected = np.full(size, begin + i + 1, np.float32)
            self.assertEqual(record.value.tobytes(), expected.tobytes())

    def case_replays_call_no_handler(self):
        sink = memory_sink.MemorySink()
        program = jax.jit(_chain)
        with _monitor(sink):
            calls = _calls(lambda: _repeat(program, _RUNS, jnp.zeros(1000)))
        self.assertChain(sink.records, 0, _RUNS, 1000)
        self.assertFew(calls, _RUNS * _LINKS)

    def case_bodies_of_loops_are_replayed(self):
        def body(x, _):
            return _chain(x), None

        program = jax.jit(lambda x: lax.scan(body, x, None, length=10)[0])
        sink = memory_sink.MemorySink()
        with _monitor(sink):
            calls = _calls(lambda: _repeat(program, 8, jnp.zeros(100)))
        self.assertChain(sink.records, 0, 80, 100)
        self.assertLess(calls, 80 * _LINKS // 4)

    # XLA may hand a call the address of a row instead of a copy of it.
    def case_rows_of_a_scanned_array(self):
        rows = np.arange(16 * 64, dtype=np.float32).reshape(16, 64)

        def body(total, row):
            return total + dmi.record(row, "row")[0], None

        program = jax.jit(lambda rows: lax.scan(body, 0.0, rows)[0])
        sink = memory_sink.MemorySink()
        with _monitor(sink):
            _repeat(lambda x: (program(x), x)[1], 4, jnp.asarray(rows))
        self.assertEqual(
            [record.value.tobytes() for record in sink.records],
            [row.tobytes() for row in rows] * 4,
        )

    # One executable all the way: what it captured outlives the Monitors.
    def case_replays_with_a_monitor_swapped_in_between(self):
        size = 3000
        first, second = memory_sink.MemorySink(), memory_sink.MemorySink()
        with _monitor(first):
            x = jnp.zeros(size)
            program = jax.jit(_chain).lower(x).compile()
            x = _repeat(program, 1 + _RUNS, x)
        self.assertChain(first.records, 0, 1 + _RUNS, size)

        lost = _native.control_losses(jax.devices()[0].id).get("closed", 0)
        x = _repeat(program, 5, x)
        self.assertEqual(
            _native.control_losses(jax.devices()[0].id)["closed"] - lost, 5 * _LINKS
        )
        self.assertLen(first.records, (1 + _RUNS) * _LINKS)

        begin = float(x[0])

        def run():
            with _monitor(second, ring_bytes="256KiB"):
                _repeat(program, 1 + _RUNS, x)

        self.assertFew(_calls(run), _RUNS * _LINKS)
        self.assertChain(second.records, begin, 1 + _RUNS, size)

    # Inside a conditional node a command buffer may hold little but kernels.
    def case_conditionals(self):
        @jax.jit
        def program(x, index):
            x = _chain(x, 3, "before")
            branches = [
                functools.partial(lambda x, k: _chain(x, 2, f"branch{k}-"), k=k)
                for k in range(3)
            ]
            x = lax.cond(index > 0, lambda x: _chain(x, 2, "yes"), lambda x: x - 1, x)
            x = lax.switch(index, branches, x)
            return _chain(x, 3, "after")

        sink = memory_sink.MemorySink()
        indices = [jnp.int32(k) for k in range(3)]
        expected, value = [], 0.0

        def note(names):
            nonlocal value
            for name in names:
                value += 1
                expected.append((name, value))

        def run():
            x = jnp.zeros(100)
            for i in range(_RUNS):
                x = jax.block_until_ready(program(x, indices[i % 3]))

        for i in range(_RUNS):
            note(f"before{n}" for n in range(3))
            if i % 3:
                note(f"yes{n}" for n in range(2))
            else:
                value -= 1
            note(f"branch{i % 3}-{n}" for n in range(2))
            note(f"after{n}" for n in range(3))
        with _monitor(sink):
            calls = _calls(run)
        self.assertEqual([(r.name, float(r.value[0])) for r in sink.records], expected)
        self.assertFew(calls, len(expected))

    def case_gates_and_steps_reach_what_was_captured(self):
        sink = memory_sink.MemorySink()
        with _monitor(sink) as monitor:
            x = jnp.zeros(100)
            program = jax.jit(_chain).lower(x).compile()
            for i in range(20):
                if i == 5:
                    monitor.disable("link[1-7]")
                if i == 15:
                    monitor.enable("*")
                with monitor.step(i):
                    x = program(x)
        names = [f"link{n}" for n in range(_LINKS)]
        expected = [
            (i, name)
            for i in range(20)
            for name in (names[:1] if 5 <= i < 15 else names)
        ]
        self.assertEqual([(r.step, r.name) for r in sink.records], expected)


class NotCapturedTest(isolated.IsolatedTestCase):
    """What the counter shows where there are no command buffers."""

    environment = _NOT_CAPTURED

    def case_every_record_calls_its_handler(self):
        sink = memory_sink.MemorySink()
        with _monitor(sink):
            calls = _calls(lambda: _repeat(jax.jit(_chain), _RUNS, jnp.zeros(100)))
        self.assertEqual(calls, _RUNS * _LINKS)
        self.assertLen(sink.records, _RUNS * _LINKS)


if __name__ == "__main__":
    absltest.main()
