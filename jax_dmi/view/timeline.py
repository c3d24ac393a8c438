# SPDX-License-Identifier: Apache-2.0
"""The timeline of a run: transfers against the regions of the program they harm."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
from typing import Any

from matplotlib import patches
import matplotlib.pyplot as plt
import numpy as np

import jax_dmi as dmi

_COLORS = {"window": "tab:green", "batch": "tab:blue", "forced": "tab:red"}
_CRITICAL = "0.85"
# Boundaries of each device that are drawn, unless a step is asked for.
_NEWEST = 64


@dataclasses.dataclass(frozen=True)
class _Lane:
    """One device; spans are int64[n, 2], begin and end in ns.

    Attributes:
      label: Its name.
      passed: int64[b], times of the boundaries.
      critical: Spans in which no window was open.
      transfers: Spans of transfers by kind.
    """

    label: str
    passed: np.ndarray
    critical: np.ndarray
    transfers: dict[str, np.ndarray]

    @property
    def moved(self) -> np.ndarray:
        return np.concatenate(list(self.transfers.values()))

    def overlap(self) -> float | None:
        """The part of the time of transfers that critical regions have."""
        if not self.critical.size or not self.moved.size:
            return None
        # While the program ran: outside of it there is nothing to disturb.
        moved = np.clip(self.moved, self.passed[0], self.passed[-1])
        total = (moved[:, 1] - moved[:, 0]).sum()
        inside = _time_in(self.critical, moved[:, 1]) - _time_in(
            self.critical, moved[:, 0]
        )
        return float(inside.sum() / total) if total else None


def _time_in(spans: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Returns int64[m], the time in sorted spans before each of int64[m] times."""
    begins, ends = spans.T
    before = np.concatenate([[0], np.cumsum(ends - begins)])
    last = np.searchsorted(begins, until, side="right") - 1
    partial = np.minimum(until, ends[last]) - begins[last]
    return np.where(last < 0, 0, before[last] + partial)


def _columns(table: Any, names: str) -> tuple[np.ndarray, ...]:
    return tuple(table.column(name).to_numpy() for name in names.split())


def _spans(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return np.stack([begins, ends], axis=1).astype(np.int64)


def _lanes(run: dmi.Run) -> Iterator[_Lane]:
    moved, passed = run.transfers(), run.boundaries()
    process, device, begin, end, kind = _columns(
        moved, "process device begin_ns end_ns kind"
    )
    at_process, at_device, version, time = _columns(
        passed, "process device version time_ns"
    )
    closed = np.array([x is False for x in passed.column("open").to_pylist()], bool)
    owners = set(zip(process.tolist(), device.tolist()))
    for owner in sorted(owners | set(zip(at_process.tolist(), at_device.tolist()))):
        mine = (process == owner[0]) & (device == owner[1])
        here = np.flatnonzero((at_process == owner[0]) & (at_device == owner[1]))
        # From each boundary to the next one, of the same pattern.
        first, second = here[:-1], here[1:]
        harmed = closed[first] & (version[first] == version[second])
        yield _Lane(
            f"device {owner[1]}",
            time[here],
            _spans(time[first], time[second])[harmed],
            {
                name: _spans(begin[mine & (kind == name)], end[mine & (kind == name)])
                for name in _COLORS
            },
        )


def _span(run: dmi.Run, lanes: list[_Lane], step: int | None) -> tuple[int, int]:
    """Returns what to draw: of a step what records and boundaries span, or the end."""
    if step is not None:
        times = [record.time_ns for record in run.select(step=step)]
        if not times:
            raise dmi.RunError(f"no record of step {step} to draw the time of.")
        return min(times), max(times)
    newest = [lane.passed[-_NEWEST:] for lane in lanes if lane.passed.size]
    if not newest:
        newest = [lane.moved for lane in lanes]
    return min(int(t.min()) for t in newest), max(int(t.max()) for t in newest)


def windows(run: dmi.Run, select: str, step: int | None, layer: int | None) -> Any:
    """Draws when each device moved data, over the regions where that harms."""
    del select, layer
    lanes = list(_lanes(run))
    if not any(lane.moved.size for lane in lanes):
        raise dmi.RunError(
            "the run holds no transfers to draw; they are written when its Monitor"
            " closes."
        )
    start, end = _span(run, lanes, step)
    figure, axis = plt.subplots(
        figsize=(12, 1.5 + 0.6 * len(lanes)), layout="constrained"
    )
    axis.spines[["top", "right"]].set_visible(False)
    labels = []
    for place, lane in enumerate(lanes):
        _bars(axis, place, 0.8, lane.critical - start, _CRITICAL)
        for kind, spans in lane.transfers.items():
            _bars(axis, place, 0.4, spans - start, _COLORS[kind])
        part = lane.overlap()
        labels.append(lane.label if part is None else f"{lane.label}\n{part:.1%}")
    axis.set(xlim=(0, max(end - start, 1) / 1e6), xlabel="ms")
    axis.set_title(
        "transfers, and the part of their time in critical regions", loc="left"
    )
    axis.set_yticks(range(len(lanes)), labels)
    axis.invert_yaxis()
    used = {k for lane in lanes for k, spans in lane.transfers.items() if spans.size}
    drawn = {k: color for k, color in _COLORS.items() if k in used}
    handles = [patches.Rectangle((0, 0), 1, 1, color=color) for color in drawn.values()]
    handles.append(patches.Rectangle((0, 0), 1, 1, color=_CRITICAL))
    axis.legend(
        handles,
        [*drawn, "critical"],
        frameon=False,
        ncols=len(handles),
        loc="lower right",
        bbox_to_anchor=(1, 1),
    )
    return figure


def _bars(axis: Any, place: int, height: float, spans: np.ndarray, color: str) -> None:
    """Draws spans in ns."""
    widths = np.stack([spans[:, 0], spans[:, 1] - spans[:, 0]], axis=1) / 1e6
    axis.broken_barh(widths, (place - height / 2, height), color=color, linewidth=0)
