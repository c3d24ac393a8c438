# SPDX-License-Identifier: Apache-2.0
"""Puts arrays together from the blocks their devices recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import records

if TYPE_CHECKING:
    from jax_dmi.read import run as run_room

Bounds = tuple[tuple[int, int], ...]


def global_array(
    run: run_room.Run,
    name: str,
    rows: np.ndarray,
    occurrence: int | None,
    spec: Any,
) -> np.ndarray:
    """Returns one whole array, see ``Series.global_array``."""
    groups = _candidates(run, rows)
    chosen = _choose(name, groups, occurrence)
    found = [run.record(int(i)) for i in chosen]
    layout = run.layout(run.index.layout[chosen[0]])
    if layout is None:
        return found[0].numpy()
    if layout.kind == "manual":
        return _assemble(name, found, *_manual_places(name, found, layout, spec))
    assert layout.global_shape is not None
    places = {r.device: _bounds(r.index, layout.global_shape) for r in found}
    return _assemble(name, found, places, layout.global_shape)


def _candidates(run: run_room.Run, rows: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Groups rows that are shards of one array; each group says what it is.

    On every device the n-th record of a site, step and layer belongs to the n-th
    array.
    """
    index = run.index
    seen: dict[tuple, int] = {}
    groups: dict[tuple, list[int]] = {}
    for i in rows[np.argsort(index.seq[rows], kind="stable")]:
        step = int(index.step[i]) if index.has_step[i] else None
        layer = int(index.layer[i]) if index.has_layer[i] else None
        kind = (int(index.site[i]), int(index.layout[i]), step, layer)
        place = (*kind, int(index.process[i]), int(index.device[i]))
        number = seen.get(place, 0)
        seen[place] = number + 1
        groups.setdefault((*kind, number), []).append(int(i))
    return [
        (f"step={key[2]} layer={key[3]} occurrence={key[4]}", np.array(members))
        for key, members in sorted(groups.items(), key=lambda item: min(item[1]))
    ]


def _choose(
    name: str, groups: list[tuple[str, np.ndarray]], occurrence: int | None
) -> np.ndarray:
    if not groups:
        raise errors.DmiValueError(f"{name!r} has no record of that step and layer.")
    if occurrence is None and len(groups) > 1:
        shown = "; ".join(text for text, _ in groups[:8])
        more = f"; and {len(groups) - 8} more" if len(groups) > 8 else ""
        raise errors.DmiValueError(
            f"{name!r} has {len(groups)} arrays that could be meant: {shown}{more};"
            " choose by step=, layer= and occurrence=."
        )
    wanted = occurrence or 0
    if not 0 <= wanted < len(groups):
        raise errors.DmiValueError(
            f"occurrence={occurrence} is out of range; {name!r} has {len(groups)}."
        )
    return groups[wanted][1]


def _bounds(index: Any, shape: tuple[int, ...]) -> Bounds:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _manual_places(
    name: str,
    found: Sequence[records.Record],
    layout: run_format.LayoutInfo,
    spec: Any,
) -> tuple[dict[int, Bounds], tuple[int, ...]]:
    """Returns where the blocks of a ``shard_map`` lie under ``spec``."""
    if spec is None:
        raise errors.DmiValueError(
            f"{name!r} was recorded inside shard_map, where the whole array is not"
            f" known; pass spec=, over the mesh axes {list(layout.mesh_names)}."
        )
    sizes = dict(zip(layout.mesh_names, layout.mesh_shape, strict=True))
    block = layout.shard_shape
    axes = [_names(entry) for entry in tuple(spec)]
    unknown = {n for names in axes for n in names} - set(sizes)
    if unknown or len(axes) > len(block):
        raise errors.DmiValueError(
            f"spec={spec!r} does not fit blocks of shape {list(block)} on a mesh with"
            f" axes {list(sizes)}."
        )
    axes += [()] * (len(block) - len(axes))
    positions = {
        device: dict(zip(layout.mesh_names, at, strict=True))
        for device, at in zip(
            layout.devices, np.ndindex(*layout.mesh_shape), strict=True
        )
    }
    places = {}
    for record in found:
        bounds = []
        for names, size in zip(axes, block, strict=True):
            at = 0
            for n in names:
                at = at * sizes[n] + positions[record.device][n]
            bounds.append((at * size, (at + 1) * size))
        places[record.device] = tuple(bounds)
    shape = tuple(
        size * int(np.prod([sizes[n] for n in names], dtype=np.int64))
        for names, size in zip(axes, block, strict=True)
    )
    return places, shape


def _names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _assemble(
    name: str,
    found: Sequence[records.Record],
    places: dict[int, Bounds],
    shape: tuple[int, ...],
) -> np.ndarray:
    out = np.empty(shape, found[0].dtype)
    covered = np.zeros(shape, bool)
    for record in found:
        place = tuple(slice(*bounds) for bounds in places[record.device])
        out[place] = record.numpy()
        covered[place] = True
    if not covered.all():
        raise errors.DmiValueError(
            f"{name!r} lacks shards: the records of devices"
            f" {sorted(places)} cover {int(covered.sum())} of {covered.size} elements;"
            " another process may have written them, or they were dropped."
        )
    return out
