# SPDX-License-Identifier: Apache-2.0
"""A sink that fails loses its batches, and holds up nothing."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import pytest

import jax_dmi as dmi


class _Failing(dmi.sinks.NullSink):
    """Raises at every batch, or only at the first."""

    def __init__(self, always: bool, grouped: bool) -> None:
        self.taken = 0
        self._calls = 0
        self._always = always
        if not grouped:
            self.write_many = None

    def write(self, batch):
        self._calls += 1
        if self._always or self._calls == 1:
            raise ValueError("out of paper")
        self.taken += batch.record_batch.num_rows

    def write_many(self, batches):
        for i, batch in enumerate(batches):
            try:
                self.write(batch)
            except ValueError as error:
                error.written = i
                raise


@jax.jit
def _program(x):
    dmi.record(x, "x")
    return x + 1


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_memory_of_failed_batches_is_free_at_once(always, grouped):
    sink = _Failing(always, grouped)
    monitor = dmi.Monitor(
        sink=sink, ring_bytes="1MiB", batch_bytes="64KiB", linger=0.01
    )
    gc.disable()
    try:
        with pytest.raises(dmi.CaptureError, match="out of paper") as caught:
            with monitor:
                for _ in range(100):
                    jax.block_until_ready(_program(jnp.zeros(8192)))
    finally:
        gc.enable()
    stats = monitor.stats()
    assert stats.pinned == 0
    assert set(stats.dropped) == {"sink"}
    assert stats.written == sink.taken
    assert stats.written + stats.dropped["sink"] == stats.recorded == 100
    assert (stats.written == 0) == always
    # Where it was raised is told in words.
    assert "in write" in "".join(caught.value.__cause__.__notes__)
