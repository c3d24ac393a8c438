# SPDX-License-Identifier: Apache-2.0
"""Submissions out of a run: what was recorded, as arguments to compute with again."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jax_dmi import errors
from jax_dmi.replay.definition import Definition

# Step, layer, and which of the records with both: what submissions are matched by.
Key = tuple[int | None, int | None, int]
Steps = int | Collection[int] | None


def collect(
    run: Any, arguments: Mapping[str, str], steps: Steps
) -> tuple[Definition, list[dict[str, np.ndarray]]]:
    """Returns a definition and its submissions; see ``ReplayArena.from_run``."""
    if not isinstance(arguments, Mapping) or not arguments:
        raise errors.DmiTypeError(
            f"arguments={arguments!r} must map names of arguments to names of sites,"
            " as in {'x': 'block/in'}."
        )
    values = {name: _values(run, site, steps) for name, site in arguments.items()}
    _check_alike(arguments, values)
    definition = Definition(
        "recorded", {name: _spec(arguments[name], v) for name, v in values.items()}
    )
    keys = list(next(iter(values.values())))
    submissions = [{name: v[key] for name, v in values.items()} for key in keys]
    return definition, submissions


def _values(run: Any, site: str, steps: Steps) -> dict[Key, np.ndarray]:
    """Returns the whole arrays of a site, by step and layer, in their order."""
    series = run[site]
    found: dict[Key, np.ndarray] = {}
    seen: dict[tuple[Any, ...], int] = {}
    device = None
    for record in series.records():
        if record.replica != 0 or not _wanted(record.step, steps):
            continue
        place = (record.step, record.layer)
        on_device = (*place, record.process, record.device)
        occurrence = seen[on_device] = seen.get(on_device, -1) + 1
        key = (*place, occurrence)
        if record.global_shape is None:
            device = device or (record.process, record.device)
            if device != (record.process, record.device):
                raise errors.DmiValueError(
                    f"arguments: {site!r} was recorded inside shard_map, where nobody"
                    " knows how its shards belong together; record it outside, or"
                    " submit what global_array(spec=...) returns."
                )
        if record.global_shape in (None, record.shape):
            found[key] = record.numpy()
        elif key not in found:
            found[key] = series.global_array(*place, occurrence=occurrence)
    if not found:
        raise errors.DmiValueError(
            f"steps={steps!r}: {site!r} has no record of them, but of"
            f" {_some(sorted({int(s) for s in np.ma.compressed(series.steps)}))}."
        )
    return found


def _wanted(step: int | None, steps: Steps) -> bool:
    if steps is None:
        return True
    if isinstance(steps, int | np.integer):
        return step == steps
    return step in steps


def _check_alike(arguments: Mapping[str, str], values: dict[str, dict]) -> None:
    """Raises unless all sites were recorded at the same steps and layers."""
    first = next(iter(values))
    for name, other in values.items():
        lacking = [key for key in values[first] if key not in other]
        extra = [key for key in other if key not in values[first]]
        for at, missing in ((name, lacking), (first, extra)):
            if missing:
                places = _some([f"step {s}, layer {k}" for s, k, _ in missing])
                raise errors.DmiValueError(
                    f"arguments: {arguments[at]!r} lacks records that the others have:"
                    f" {places}; name sites that were recorded together, or choose"
                    " steps."
                )


def _spec(site: str, values: dict[Key, np.ndarray]) -> jax.ShapeDtypeStruct:
    arrays = iter(values.values())
    first = next(arrays)
    for array in arrays:
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            raise errors.DmiValueError(
                f"arguments: {site!r} was recorded as {first.dtype}{list(first.shape)}"
                f" and as {array.dtype}{list(array.shape)}; choose steps of one shape."
            )
    return jax.ShapeDtypeStruct(first.shape, first.dtype)


def _some(items: list) -> str:
    shown = ", ".join(map(str, items[:5]))
    return shown + (f", and {len(items) - 5} more" if len(items) > 5 else "")
