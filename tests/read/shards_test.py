# SPDX-License-Identifier: Apache-2.0
"""Whole arrays from what devices recorded of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import read
from support import batches
from support import runs
from support.runs import Rec

_WHOLE = np.arange(42, dtype=np.float32).reshape(7, 6)
P = jax.sharding.PartitionSpec


def _quarters() -> dict[int, list[list[int]]]:
    """Cuts 7 x 6 in blocks of 4 x 3, as SPMD pads 7 to 8."""
    rows, columns = ([0, 4], [4, 7]), ([0, 3], [3, 6])
    return {2 * r + c: [rows[r], columns[c]] for r in (0, 1) for c in (0, 1)}


def _shard(whole, index, padded=(4, 3)) -> np.ndarray:
    block = np.full(padded, np.nan, whole.dtype)
    part = whole[tuple(slice(*extent) for extent in index)]
    block[tuple(slice(0, n) for n in part.shape)] = part
    return block


def _write(path, wholes, layout, index, *, skip=(), padded=(4, 3), **fields):
    """Writes a record per whole array and device, in a batch per device."""
    writer = runs.Writer(path)
    for device, extents in index.items():
        writer.write(
            *(
                Rec(
                    _shard(whole, extents, padded),
                    device=device,
                    layout=layout,
                    shape=whole.shape,
                    **{key: value[i] for key, value in fields.items()},
                )
                for i, whole in enumerate(wholes)
                if (device, i) not in skip
            )
        )
    writer.close()
    return read.open_run(path)["x"]


def test_uneven_shards_come_together_without_padding(tmp_path):
    index = _quarters()
    layout = runs.spmd((7, 6), index, padded=(4, 3))
    series = _write(tmp_path / "run", [_WHOLE], layout, index)
    np.testing.assert_array_equal(series.global_array(), _WHOLE)
    found = list(read.open_run(tmp_path / "run").select())
    assert [r.shape for r in found] == [(4, 3), (4, 3), (3, 3), (3, 3)]
    assert [r.global_shape for r in found] == [(7, 6)] * 4
    assert found[3].index == (slice(4, 7), slice(3, 6))
    for record in found:
        np.testing.assert_array_equal(record.numpy(), _WHOLE[record.index])


def test_an_axis_that_is_not_split_has_the_index_of_jax(tmp_path):
    index = {0: [[0, 7], [0, 3]], 1: [[0, 7], [3, 6]]}
    layout = runs.spmd((7, 6), index)
    _write(tmp_path / "run", [_WHOLE], layout, index, padded=(7, 3))
    found = list(read.open_run(tmp_path / "run").select())
    assert [r.index for r in found] == [
        (slice(None), slice(0, 3)),
        (slice(None), slice(3, 6)),
    ]


def test_several_arrays_are_told_apart(tmp_path):
    index = _quarters()
    layout = runs.spmd((7, 6), index, padded=(4, 3))
    wholes = [_WHOLE + i for i in range(6)]
    steps, layers = [0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 1, 1]
    series = _write(tmp_path / "run", wholes, layout, index, step=steps, layer=layers)
    np.testing.assert_array_equal(series.global_array(0, 1), wholes[2])
    for occurrence in (0, 1, -2, -1):
        found = series.global_array(0, 0, occurrence)
        np.testing.assert_array_equal(found, wholes[occurrence % 2])
    with pytest.raises(errors.DmiValueError) as caught:
        series.global_array(step=1)
    message = str(caught.value)
    assert "3 arrays" in message and "step=1 layer=1 occurrence=1" in message
    with pytest.raises(errors.DmiValueError, match=r"no occurrence=2.*occurrence=1"):
        series.global_array(0, 0, 2)
    with pytest.raises(errors.DmiValueError, match="no record of that step"):
        series.global_array(step=9)


def test_a_missing_shard_raises(tmp_path):
    index = _quarters()
    layout = runs.spmd((7, 6), index, padded=(4, 3))
    wholes = [_WHOLE, _WHOLE + 1]
    series = _write(tmp_path / "run", wholes, layout, index, skip={(2, 1)}, step=[0, 1])
    np.testing.assert_array_equal(series.global_array(step=0), _WHOLE)
    with pytest.raises(errors.RunError, match=r"\[0, 1, 3\] hold 33 of 42"):
        series.global_array(step=1)


def test_shards_are_not_paired_by_guess(tmp_path):
    index = _quarters()
    layout = runs.spmd((7, 6), index, padded=(4, 3))
    wholes = [_WHOLE, _WHOLE + 1, _WHOLE + 2]
    series = _write(tmp_path / "run", wholes, layout, index, skip={(2, 1)})
    with pytest.raises(errors.RunError, match=r"unequally often \(0: 3, 1: 3, 2: 2"):
        series.global_array(occurrence=1)


def test_replicas_fill_in_and_are_compared(tmp_path):
    index = {0: [[0, 7], [0, 3]], 1: [[0, 7], [3, 6]], 2: [[0, 7], [0, 3]]}
    layout = runs.spmd((7, 6), index, {2: 1})
    steps = [0, 1]
    series = _write(
        tmp_path / "run",
        [_WHOLE, _WHOLE],
        layout,
        index,
        skip={(0, 1)},
        padded=(7, 3),
        step=steps,
    )
    np.testing.assert_array_equal(series.global_array(step=0), _WHOLE)
    np.testing.assert_array_equal(series.global_array(step=1), _WHOLE)


def test_differing_replicas_raise(tmp_path):
    index = {0: [[0, 7], [0, 6]], 1: [[0, 7], [0, 6]]}
    layout = runs.spmd((7, 6), index, {1: 1})
    writer = runs.Writer(tmp_path / "run")
    for device in index:
        value = _WHOLE + device
        writer.write(Rec(value, device=device, layout=layout))
    writer.close()
    with pytest.raises(errors.DmiValueError, match="devices 0 and 1"):
        read.open_run(tmp_path / "run")["x"].global_array()


def test_shards_of_several_processes_come_together(tmp_path):
    path = tmp_path / "run"
    index = _quarters()
    layout = runs.spmd((7, 6), index, padded=(4, 3))
    for process in (0, 1):
        devices = (2 * process, 2 * process + 1)
        info = batches.run_info(process=process, process_count=2, devices=devices)
        writer = runs.Writer(path, info=info)
        for device in devices:
            block = _shard(_WHOLE, index[device])
            writer.write(Rec(block, device=device, layout=layout, shape=(7, 6)))
        writer.close()
    np.testing.assert_array_equal(read.open_run(path)["x"].global_array(), _WHOLE)


_MESH = {"a": 2, "b": 3}


def _blocks(spec) -> dict[int, list[list[int]]]:
    """Cuts a 12 x 6 array on the mesh as ``spec`` says."""
    found = {}
    for device, (a, b) in enumerate(np.ndindex(2, 3)):
        at = {"a": a, "b": b}
        extents = []
        for size, entry in zip((12, 6), spec):
            names = (
                () if entry is None else (entry,) if isinstance(entry, str) else entry
            )
            number, count = 0, 1
            for name in names:
                number, count = number * _MESH[name] + at[name], count * _MESH[name]
            block = size // count
            extents.append([number * block, (number + 1) * block])
        found[device] = extents
    return found


@pytest.mark.parametrize(
    "spec",
    [
        P("a", "b"),
        P("b", "a"),
        P(("a", "b"), None),
        P(("b", "a")),
        P(None, "b"),
        ("a", "b"),
        [("a", "b")],
    ],
    ids=str,
)
def test_blocks_of_shard_map_come_together_by_spec(tmp_path, spec):
    whole = np.arange(72, dtype=np.int32).reshape(12, 6)
    entries = [*tuple(spec), None, None][:2]
    index = _blocks(entries)
    block = [stop - start for start, stop in index[0]]
    layout = runs.manual(block, _MESH)
    writer = runs.Writer(tmp_path / "run")
    for device, extents in index.items():
        part = whole[tuple(slice(*e) for e in extents)]
        writer.write(Rec(part, device=device, layout=layout))
    writer.close()
    series = read.open_run(tmp_path / "run")["x"]
    np.testing.assert_array_equal(series.global_array(spec=spec), whole)
    (record, *_) = read.open_run(tmp_path / "run").select()
    assert record.index is None and record.global_shape is None
    with pytest.raises(errors.DmiValueError, match=r"spec=.*\['a', 'b'\]"):
        series.global_array()
    for wrong in (P("c"), P("a", "a"), P(None, None, "a")):
        with pytest.raises(errors.DmiValueError, match="does not fit"):
            series.global_array(spec=wrong)


def test_a_spec_that_lacks_an_axis_is_noticed(tmp_path):
    layout = runs.manual((2,), {"a": 2, "b": 2})
    writer = runs.Writer(tmp_path / "run")
    for device in range(4):
        writer.write(Rec(np.full(2, device), device=device, layout=layout))
    writer.close()
    series = read.open_run(tmp_path / "run")["x"]
    assert series.global_array(spec=P(("a", "b"))).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(errors.DmiValueError, match="lacks a mesh axis"):
        series.global_array(spec=P("a"))


def test_blocks_of_a_partly_manual_region_come_together(tmp_path):
    # Manual over a, automatic over b, which splits the columns 5 into 3 and 2.
    whole = np.arange(20, dtype=np.float32).reshape(4, 5)
    index = {d: [[0, 2], [[0, 3], [3, 5]][d % 2]] for d in range(4)}
    layout = runs.manual((2, 3), {"a": 2, "b": 2}, index)
    writer = runs.Writer(tmp_path / "run")
    for device, (_, columns) in index.items():
        part = whole[2 * (device // 2) : 2 * (device // 2) + 2, slice(*columns)]
        padded = _shard(part, [[0, 2], [0, part.shape[1]]], (2, 3))
        writer.write(Rec(padded, device=device, layout=layout, shape=(2, 5)))
    writer.close()
    series = read.open_run(tmp_path / "run")["x"]
    np.testing.assert_array_equal(series.global_array(spec=P("a")), whole)


def test_a_value_that_one_device_recorded_needs_no_spec(tmp_path):
    layout = runs.manual((2, 3), {"a": 2}, replicas={1: 1})
    value = np.ones((2, 3))
    runs.write(tmp_path / "run", [Rec(value, layout=layout)])
    series = read.open_run(tmp_path / "run")["x"]
    np.testing.assert_array_equal(series.global_array(), value)
    np.testing.assert_array_equal(series.stack()[0], value)


def test_arrays_of_single_devices_are_told_apart(tmp_path):
    writer = runs.Writer(tmp_path / "run")
    for device in (0, 1):
        writer.write(Rec(_WHOLE + device, step=3, device=device, time_ns=device))
    writer.close()
    series = read.open_run(tmp_path / "run")["x"]
    with pytest.raises(errors.DmiValueError, match=r"device 0.*device 1"):
        series.global_array(step=3)
    for device in (0, 1):
        found = series.global_array(occurrence=device)
        np.testing.assert_array_equal(found, _WHOLE + device)
