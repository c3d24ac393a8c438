# SPDX-License-Identifier: Apache-2.0
"""A Monitor used by several threads at once."""

from __future__ import annotations

import threading

from absl.testing import absltest
import jax
import jax.numpy as jnp

import jax_dmi as dmi
from support import memory_sink


@jax.jit
def _program(x):
    def body(x, _):
        return dmi.record(x + 1, "x"), None

    return jax.lax.scan(body, x, None, length=500)[0]


class _Loops:
    """Threads that call functions until one raises or ``stop``."""

    def __init__(self, *functions):
        self._stopped = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._loop, args=[function])
            for function in functions
        ]
        for thread in self._threads:
            thread.start()

    def _loop(self, function):
        try:
            while not self._stopped.is_set():
                function()
        except BaseException as error:
            self.errors.append(error)

    def stop(self):
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


class ThreadsTest(absltest.TestCase):
    def test_no_count_is_negative_while_records_are_written(self):
        sink = memory_sink.MemorySink()
        with dmi.Monitor(sink=sink, ring_bytes=4096, batch_records=5) as monitor:

            def look():
                found = monitor.stats()
                for counts in (found, *found.by_site.values()):
                    self.assertGreaterEqual(counts.pending, 0, found)

            loops = _Loops(look, look)
            for _ in range(4):
                _program(jnp.zeros(30)).block_until_ready()
            loops.stop()
        self.assertEmpty(loops.errors)
        self.assertEqual(monitor.stats().written, 2000)

    def test_methods_during_close_work_or_say_that_it_is_closed(self):
        for _ in range(10):
            monitor = dmi.Monitor(sink=memory_sink.MemorySink()).start()

            def step(monitor=monitor):
                with monitor.step(1):
                    _program(jnp.zeros(30))

            loops = _Loops(monitor.flush, step, monitor.stats, monitor.transfers)
            _program(jnp.zeros(30)).block_until_ready()
            monitor.close()
            loops.stop()
            for error in loops.errors:
                self.assertIsInstance(error, dmi.StateError)

    def test_every_thread_may_close(self):
        for _ in range(5):
            monitor = dmi.Monitor(sink=memory_sink.MemorySink()).start()
            _program(jnp.zeros(30))
            errors = []

            def close(monitor=monitor, errors=errors):
                try:
                    monitor.close()
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=close) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            self.assertEmpty(errors)
            self.assertEqual(monitor.stats().written, 500)


if __name__ == "__main__":
    absltest.main()
