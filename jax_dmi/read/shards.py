# SPDX-License-Identifier: Apache-2.0
"""Puts arrays together from the blocks that their devices recorded."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import records
from jax_dmi.read import loading
from jax_dmi.read import rows as run_rows

Shape = tuple[int, ...]

# Arrays that a message lists.
_SHOWN = 8


def global_array(
    name: str,
    loaded: loading.Loaded,
    rows: run_rows.Rows,
    occurrence: int | None,
    spec: Any,
) -> np.ndarray:
    """Returns one whole array, see ``Series.global_array``.

    Args:
      name: Its name, for messages.
      loaded: The run.
      rows: Rows that may be meant, of that name.
      occurrence: Which one of those with one step and layer.
      spec: How ``shard_map`` splits it.
    """
    found = _choose(name, loaded, rows, occurrence)
    layout = loaded.descriptions.layouts.get(int(found.layout[0]))
    blocks = list(loaded.records(found))
    if layout is None:
        return blocks[0].numpy()
    if layout.kind == "spmd" and layout.global_shape is not None:
        shape = layout.global_shape
        begins = {d: _begin(index, len(shape)) for d, index in layout.index.items()}
    else:
        begins, shape = _manual(name, layout, spec)
    return _assembled(name, blocks, begins, shape)


# --- Which array is meant ----------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class _Arrays:
    """The arrays that rows are shards of, by time.

    Attributes:
      of_row: int64[n], the array of each row.
      first: int64[m], a row of each array.
      occurrence: int64[m], which one it is of those with its step and layer.
      count: int64[m], how many of these there are.
    """

    of_row: np.ndarray
    first: np.ndarray
    occurrence: np.ndarray
    count: np.ndarray


def _choose(
    name: str, loaded: loading.Loaded, rows: run_rows.Rows, occurrence: int | None
) -> run_rows.Rows:
    if not len(rows):
        raise errors.DmiValueError(f"{name!r} has no record of that step and layer.")
    arrays = _arrays(rows)
    meant = np.arange(len(arrays.first))
    if occurrence is not None:
        number = arrays.occurrence
        wanted = np.where(occurrence < 0, arrays.count + occurrence, occurrence)
        meant = np.flatnonzero(number == wanted)
    if len(meant) == 1:
        found = rows.take(arrays.of_row == meant[0])
        _check_counts(name, rows, found)
        return found
    listed = meant if len(meant) else np.arange(len(arrays.first))
    shown = [_told(loaded, rows, arrays, i) for i in listed[:_SHOWN].tolist()]
    if len(listed) > _SHOWN:
        shown.append(f"and {len(listed) - _SHOWN} more")
    problem = (
        f"{len(meant)} arrays of {name!r} can be meant; choose one by step=, layer="
        " and occurrence="
        if len(meant)
        else f"{name!r} has no occurrence={occurrence}; there are"
    )
    raise errors.DmiValueError(f"{problem}: {'; '.join(shown)}.")


def _check_counts(name: str, rows: run_rows.Rows, found: run_rows.Rows) -> None:
    """Raises if it is unknown which records of several devices belong together."""
    if not found.layout[0]:
        return
    alike = np.ones(len(rows), bool)
    for key in ("site", "layout", "has_step", "step", "has_layer", "layer"):
        alike &= getattr(rows, key) == getattr(found, key)[0]
    devices, counts = np.unique(rows.device[alike], return_counts=True)
    if counts.min() < counts.max():
        listed = ", ".join(f"{d}: {n}" for d, n in zip(devices, counts))
        raise errors.RunError(
            f"devices recorded {name!r} unequally often ({listed}): some records were"
            " dropped or are not written yet, so which belong together is not known."
            " With step= they would say."
        )


def _arrays(rows: run_rows.Rows) -> _Arrays:
    # On every device, the n-th record of a site, layout, step and layer belongs to
    # the n-th array. What has no layout is an array by itself.
    alone = rows.layout == 0
    label = (rows.has_step, rows.step, rows.has_layer, rows.layer)
    owner = (np.where(alone, rows.process, -1), np.where(alone, rows.device, -1))
    array = (rows.site, rows.layout, *owner, *label)
    device = (*array, rows.process, rows.device)
    nth = _position(device, rows.seq)
    order = np.lexsort((rows.time, nth, *array[::-1]))
    new = _changes([key[order] for key in (*array, nth)])
    first = order[new]
    of_row = np.empty(len(rows), np.int64)
    of_row[order] = np.cumsum(new) - 1
    by_time = np.lexsort((rows.seq[first], rows.time[first]))
    rank = np.empty(len(first), np.int64)
    rank[by_time] = np.arange(len(first))
    first = first[by_time]
    labels = [key[first] for key in label]
    occurrence = _position(labels, np.arange(len(first)))
    _, which = np.unique(np.stack(labels), axis=1, return_inverse=True)
    which = which.reshape(-1)
    return _Arrays(rank[of_row], first, occurrence, np.bincount(which)[which])


def _position(keys: Sequence[np.ndarray], by: np.ndarray) -> np.ndarray:
    """Returns int64[n], where each stands among those of equal keys, by ``by``."""
    order = np.lexsort((by, *keys[::-1]))
    new = _changes([key[order] for key in keys])
    begins = np.flatnonzero(new)
    place = np.arange(len(order)) - begins[np.cumsum(new) - 1]
    found = np.empty(len(order), np.int64)
    found[order] = place
    return found


def _changes(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Returns bool[n], which elements differ in a key from the one before."""
    new = np.zeros(len(keys[0]), bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return new


def _told(loaded: loading.Loaded, rows: run_rows.Rows, arrays: _Arrays, i: int) -> str:
    row = int(arrays.first[i])
    record = next(loaded.records(rows.take(slice(row, row + 1))))
    parts = [f"occurrence={arrays.occurrence[i]}"]
    if record.layer is not None:
        parts.insert(0, f"layer={record.layer}")
    if record.step is not None:
        parts.insert(0, f"step={record.step}")
    shape = record.global_shape
    if shape is not None:
        parts.append(f"{record.dtype.name}[{','.join(map(str, shape))}]")
    if rows.layout[row] == 0 and len(np.unique(rows.device)) > 1:
        parts.append(f"device {record.device}")
    return " ".join(parts)


# --- Where its blocks lie ----------------------------------------------------


def _begin(index: Sequence[tuple[int, int]] | None, rank: int) -> Shape:
    return (0,) * rank if index is None else tuple(start for start, _ in index)


def _manual(
    name: str, layout: run_format.LayoutInfo, spec: Any
) -> tuple[dict[int, Shape], Shape]:
    """Returns where blocks begin that were recorded inside ``shard_map``.

    Returns:
      The begin of the block of every device, and the shape of the whole array.
    """
    rank = len(layout.shard_shape)
    axes = _axes(name, layout, spec)
    sizes = dict(zip(layout.mesh_names, layout.mesh_shape))
    # Inside a partly manual region, devices hold parts of the block of the region.
    extents = [index for index in layout.index.values() if index is not None]
    block = layout.shard_shape
    if extents:
        block = tuple(max(e[d][1] for e in extents) for d in range(rank))
    begins = {}
    for device, at in zip(layout.devices, np.ndindex(*layout.mesh_shape)):
        coordinate = dict(zip(layout.mesh_names, at))
        inside = _begin(layout.index.get(device), rank)
        begin = []
        for d, names in enumerate(axes):
            number = 0
            for axis in names:
                number = number * sizes[axis] + coordinate[axis]
            begin.append(number * block[d] + inside[d])
        begins[device] = tuple(begin)
    counts = [int(np.prod([sizes[axis] for axis in names])) for names in axes]
    return begins, tuple(n * size for n, size in zip(counts, block))


def _axes(name: str, layout: run_format.LayoutInfo, spec: Any) -> list[tuple[str, ...]]:
    """Returns the mesh axes that split each dimension."""
    rank = len(layout.shard_shape)
    if spec is None:
        holders = [d for d, replica in layout.replica.items() if replica == 0]
        if len(holders) <= 1:
            return [()] * rank
        raise errors.DmiValueError(
            f"{name!r} was recorded inside shard_map, where the whole array is not"
            " known: pass spec=, the PartitionSpec that splits it over the mesh axes"
            f" {list(layout.mesh_names)}."
        )
    entries = (spec,) if isinstance(spec, str) else tuple(spec)
    axes = [
        () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for entry in entries
    ]
    used = [axis for names in axes for axis in names]
    fits = set(used) <= set(layout.mesh_names) and len(set(used)) == len(used)
    if not fits or len(axes) > rank:
        raise errors.DmiValueError(
            f"spec={spec!r} does not fit {name!r}: its blocks have the shape"
            f" {list(layout.shard_shape)}, its mesh the axes {list(layout.mesh_names)},"
            " each of which can split one dimension."
        )
    return axes + [()] * (rank - len(axes))


def _assembled(
    name: str,
    blocks: Sequence[records.Record],
    begins: Mapping[int, Shape],
    shape: Shape,
) -> np.ndarray:
    """Returns the whole array.

    Raises:
      RunError: A part of it is not there.
      DmiValueError: Devices differ about a part.
    """
    out = np.empty(shape, blocks[0].dtype)
    taken: dict[tuple[Shape, Shape], records.Record] = {}
    for block in sorted(blocks, key=lambda record: (record.replica, record.device)):
        begin = begins.get(block.device)
        if begin is None:
            raise errors.RunError(
                f"{name!r} was recorded by device {block.device}, which its program"
                " did not use; run.verify() tells more."
            )
        place = (begin, block.shape)
        if place in taken:
            _check_equal(name, taken[place], block)
            continue
        where = tuple(slice(b, b + size) for b, size in zip(begin, block.shape))
        out[where] = block.numpy()
        taken[place] = block
    covered = sum(int(np.prod(extent)) for _, extent in taken)
    if covered != out.size:
        have = sorted(block.device for block in blocks)
        raise errors.RunError(
            f"the run lacks shards of {name!r}: the devices {have} hold"
            f" {covered} of {out.size} elements; see the dropped and missing records"
            " in run.verify()."
        )
    return out


def _check_equal(name: str, one: records.Record, other: records.Record) -> None:
    if one.numpy().tobytes() != other.numpy().tobytes():
        raise errors.DmiValueError(
            f"the devices {one.device} and {other.device} recorded different values of"
            f" the same part of {name!r}; if they are different parts, spec= lacks a"
            " mesh axis, else compare the records of run.select(device=...)."
        )
