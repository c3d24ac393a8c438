# SPDX-License-Identifier: Apache-2.0
"""Calls in programs of several devices: one partitioner for all our operations.

A side-effecting call cannot stand in a program that XLA partitions by itself. So
it is lowered to a placeholder, an identity on its first operand with a sharding
rule that lets every sharding through. When the partitioner reaches it, it asks
back with the sharding that was chosen, and gets a module that makes the call on
the local shard. No data moves.

The key inside the placeholder is computed from what the answer depends on. That
makes programs with records equal from one process to the next, so a compilation
cache finds them, and the question is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from jax_dmi import _compat
from jax_dmi import errors
from jax_dmi.ops import sites

_TARGET = "dmi_partitioned"

# Emits the call on local operands and returns what replaces the first of them.
Emit = Callable[[list[Any], sites.Layout], list[Any]]


@dataclasses.dataclass(frozen=True)
class _Placeholder:
    place: _compat.Placement
    varying: frozenset[str]
    emit: Emit


_placeholders: dict[str, _Placeholder] = {}


def call(
    operands: Sequence[Any],
    ranks: Sequence[int],
    place: _compat.Placement,
    varying: frozenset[str],
    identity: Sequence[Any],
    emit: Emit,
) -> list[Any]:
    """Emits a call that runs on each device's own shard of the first operand.

    Args:
      operands: The values; all but the first are scalars or words, replicated.
      ranks: Rank of each operand.
      place: Where the program runs.
      varying: Manual axes over which the first operand may vary.
      identity: Everything besides ``place`` and ``varying`` that ``emit`` depends
        on, as JSON data.
      emit: Makes the local call.
    """
    if not place.devices:
        raise errors.DmiValueError(
            "the devices of this program are not known: record inside a partly"
            " manual shard_map needs a mesh of devices, not an abstract one."
        )
    key = sites.canonical(
        [
            identity,
            place.mesh_names,
            place.mesh_shape,
            place.devices,
            sorted(place.manual),
            sorted(varying),
        ]
    )
    key = f"{sites.identifier(key) & (2**64 - 1):016x}"
    _placeholders[key] = _Placeholder(place, varying, emit)
    words = [f"w{i}" if rank else "" for i, rank in enumerate(ranks[1:])]
    return _compat.partitioned_call(
        _TARGET,
        operands,
        [operands[0].type],
        key,
        f"{', '.join(['...', *words])} -> ...",
        tuple(filter(None, words)),
    )


def register() -> None:
    """Registers the partitioner for the placeholders; call once per process."""
    _compat.register_partitioner(_TARGET, _partition)


def _partition(key: str, shapes: Any, tiled: Any, sharding: Any) -> bytes:
    found = _placeholders[key]
    layout = _layout(found, shapes[0][0], tiled[0][0], sharding)
    return _compat.build_module(tiled, lambda operands: found.emit(operands, layout))


def manual_layout(
    place: _compat.Placement, varying: frozenset[str], shape: Sequence[int]
) -> sites.Layout:
    """Returns the layout of a local block inside a fully manual region."""
    shards = [sites.Shard(None, k) for k in _replicas(place, varying)]
    return _manual(place, varying, tuple(shape), shards)


def _layout(
    found: _Placeholder,
    shape: tuple[int, ...],
    shard_shape: tuple[int, ...],
    sharding: Any,
) -> sites.Layout:
    place = found.place
    automatic = _automatic_coordinate(place)
    tiles = _tiles(sharding, len(shape), max(automatic) + 1)
    outer = _replicas(place, found.varying | (set(place.mesh_names) - place.manual))
    shards = []
    for device, at in enumerate(automatic):
        coordinates, replica = tiles[at]
        index = tuple(
            (min(c * step, size), min((c + 1) * step, size))
            for c, step, size in zip(coordinates, shard_shape, shape)
        )
        copies = max(r for _, r in tiles) + 1
        shards.append(sites.Shard(index, replica + copies * outer[device]))
    if place.manual:
        return _manual(place, found.varying, shard_shape, shards)
    return sites.Layout(
        kind="spmd",
        devices=place.devices,
        mesh_names=place.mesh_names,
        mesh_shape=place.mesh_shape,
        global_shape=tuple(shape),
        shard_shape=tuple(shard_shape),
        spec=_spec(place, [coordinates for coordinates, _ in tiles]),
        shards=tuple(shards),
        varying=(),
    )


def _tiles(sharding: Any, rank: int, devices: int) -> list[tuple[tuple[int, ...], int]]:
    """Returns ``(tile coordinates, replica)`` for each logical device.

    Args:
      sharding: An ``HloSharding`` as partition callbacks receive it.
      rank: Rank of the array.
      devices: Number of logical devices.
    """
    if not sharding.is_tiled():
        return [((0,) * rank, k) for k in range(devices)]
    grid = np.asarray(sharding.tile_assignment_devices()).reshape(
        sharding.tile_assignment_dimensions()
    )
    grid = grid.reshape(*grid.shape[:rank], -1)
    result: list[Any] = [None] * devices
    for position in np.ndindex(*grid.shape):
        *coordinates, replica = position
        result[int(grid[position])] = (tuple(coordinates), replica)
    return result


def _manual(place, varying, shard_shape, shards) -> sites.Layout:
    return sites.Layout(
        kind="manual",
        devices=place.devices,
        mesh_names=place.mesh_names,
        mesh_shape=place.mesh_shape,
        global_shape=None,
        shard_shape=tuple(shard_shape),
        spec=None,
        shards=tuple(shards),
        varying=tuple(name for name in place.mesh_names if name in varying),
    )


def _coordinates(place: _compat.Placement) -> list[tuple[int, ...]]:
    return list(np.ndindex(*place.mesh_shape))


def _automatic_coordinate(place: _compat.Placement) -> list[int]:
    """Returns each device's number among those that differ in automatic axes."""
    axes = [i for i, n in enumerate(place.mesh_names) if n not in place.manual]
    sizes = [place.mesh_shape[i] for i in axes]
    return [
        int(np.ravel_multi_index([at[i] for i in axes], sizes)) if axes else 0
        for at in _coordinates(place)
    ]


def _replicas(place: _compat.Placement, varying: frozenset[str]) -> list[int]:
    """Numbers the devices that hold the same value, given what can differ."""
    axes = [i for i, n in enumerate(place.mesh_names) if n in varying]
    seen: dict[tuple[int, ...], int] = {}
    numbers = []
    for at in _coordinates(place):
        same = tuple(at[i] for i in axes)
        numbers.append(seen.get(same, 0))
        seen[same] = numbers[-1] + 1
    return numbers


def _spec(
    place: _compat.Placement, tiles: Sequence[tuple[int, ...]]
) -> tuple[tuple[str, ...] | None, ...] | None:
    """Reads the mesh axes that split each dimension off the tile coordinates.

    Returns:
      Axis names per dimension, None for whole dimensions; None altogether if the
      tiling is not made of mesh axes.
    """
    grid = np.array(tiles, np.int64).reshape(*place.mesh_shape, -1)
    spec: list[tuple[str, ...] | None] = []
    for dim in range(grid.shape[-1]):
        part = grid[..., dim]
        strides = {}
        for axis, name in enumerate(place.mesh_names):
            if place.mesh_shape[axis] > 1:
                strides[name] = int(np.take(part, 1, axis).flat[0] - part.flat[0])
        names = sorted((n for n in strides if strides[n]), key=lambda n: -strides[n])
        rebuilt = sum(
            np.indices(place.mesh_shape)[place.mesh_names.index(n)] * strides[n]
            for n in names
        )
        if not np.array_equal(np.broadcast_to(rebuilt, part.shape), part):
            return None
        spec.append(tuple(names) or None)
    return tuple(spec)
