# SPDX-License-Identifier: Apache-2.0
"""A function gets the records it asked for, and may keep them."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import sinks
from support import batches


def _feed(sink: sinks.CallbackSink, *given: sinks.Batch) -> None:
    sink.open(batches.run_info(process=3))
    for batch in given:
        sink.write(batch)
    sink.flush()
    sink.close()


def test_every_record_arrives_as_it_was_recorded():
    values = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(40).astype(ml_dtypes.bfloat16),
        np.array(2.5),
        np.zeros((0, 3)),
    ]
    found = []
    batch = batches.batch(values, ["a", "b/é", "c", "d"], first_seq=7, device=1)
    _feed(sinks.CallbackSink(found.append), batch)
    assert [r.name for r in found] == ["a", "b/é", "c", "d"]
    assert [(r.seq, r.step, r.layer) for r in found] == [
        (i, i, None) for i in range(7, 11)
    ]
    assert {(r.device, r.process) for r in found} == {(1, 3)}
    for record, value in zip(found, values, strict=True):
        assert record.dtype == value.dtype
        np.testing.assert_array_equal(record.numpy(), value, strict=True)


@pytest.mark.parametrize(
    "select",
    ["block/*", ["block/*"], re.compile("^bl"), lambda name: name.startswith("b")],
)
def test_only_selected_records_arrive(select):
    found = []
    batch = batches.batch([np.zeros(9)] * 3, ["block/a", "loss", "block/b"])
    _feed(sinks.CallbackSink(found.append, select=select), batch, batch)
    assert [r.name for r in found] == ["block/a", "block/b"] * 2


def _is_freed(zero_copy: bool, kept: list) -> bool:
    native = batches.lease([np.arange(100)], sites=[1])
    payload = native.payload
    batch = batches.wrap(native, {1: batches.site("x", (100,), "int64")})
    _feed(sinks.CallbackSink(kept.append, zero_copy=zero_copy), batch)
    return not np.shares_memory(kept[0].numpy(), payload)


def test_kept_records_own_their_bytes():
    assert _is_freed(False, [])


def test_zero_copy_records_are_views():
    assert not _is_freed(True, [])


def test_a_failing_function_gets_the_records_behind_too():
    found = []

    def fail(record):
        found.append(record.seq)
        raise ValueError(f"at {record.seq}")

    with pytest.raises(ValueError, match="at 0"):
        _feed(sinks.CallbackSink(fail), batches.batch([np.zeros(9)] * 3))
    assert found == [0, 1, 2]


def test_jax_is_refused_inside():
    def convert(record):
        record.jax()

    with pytest.raises(errors.StateError, match="sink thread"):
        _feed(sinks.CallbackSink(convert), batches.batch([np.zeros(9)]))


def test_wrong_arguments_are_named():
    with pytest.raises(errors.DmiTypeError, match="fn=3"):
        sinks.CallbackSink(3)
    with pytest.raises(errors.DmiTypeError, match="select"):
        sinks.CallbackSink(print, select=[3])
