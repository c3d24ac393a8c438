# SPDX-License-Identifier: Apache-2.0
"""The native capture of a device, dropped while programs still record."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import jax_dmi as dmi
from jax_dmi import _native
from jax_dmi import monitor as capture_monitor
from jax_dmi import sinks

_DEVICE = jax.devices("cpu")[0]


def _program():
    """A compiled program that records even where nobody captures any more."""

    def fn(x):
        dmi.record(x, "x")
        return x + 1

    x = jnp.ones(4)
    with capture_monitor.Monitor(sink=sinks.NullSink()):
        compiled = jax.jit(fn).lower(x).compile()
    return lambda: jax.block_until_ready(compiled(x))


def _capture(queue: _native.BatchQueue) -> _native.Capture:
    return _native.Capture(
        platform="cpu",
        ordinal=_DEVICE.local_hardware_id or 0,
        device=_DEVICE.id,
        ring_bytes=4096,
        ring_slots=16,
        overflow="block",
        stall_seconds=60.0,
        checksum=True,
        batch_bytes=4096,
        batch_records=16,
        linger_seconds=60.0,
        queue=queue,
    )


def _closed() -> int:
    return _native.control_losses(_DEVICE.id).get("closed", 0)


def test_ring_of_a_collected_capture_is_taken_away():
    run = _program()
    queue = _native.BatchQueue()
    capture = _capture(queue)
    capture.start()
    run()
    before = _closed()
    del capture
    run()
    assert _closed() == before + 1
    assert [batch.count for batch in queue.pop(8, 0.0)] == [1]


def test_capture_takes_away_no_ring_but_its_own():
    run = _program()
    queue = _native.BatchQueue()
    old = _capture(queue)
    old.start()
    old.stop()
    new = _capture(queue)
    new.start()
    old.stop()
    del old
    before = _closed()
    run()
    assert _closed() == before
    assert new.seal(60.0) == 1
    new.stop()
