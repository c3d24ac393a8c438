# SPDX-License-Identifier: Apache-2.0
"""The plots of ``jax-dmi plot``, each from a run to a figure."""

from __future__ import annotations

import collections
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import jax_dmi as dmi

_WIDTH, _HEIGHT, _COLUMNS = 5.0, 3.4, 3
_MOST_PANELS = 12
_BINS = 80


def _panels(count: int) -> tuple[Any, list[Any]]:
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(_WIDTH * columns, _HEIGHT * rows),
        layout="constrained",
        squeeze=False,
    )
    for axis in axes.flat[count:]:
        axis.remove()
    for axis in axes.flat[:count]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat[:count])


def _records(run: dmi.Run, select: str, step: int | None, layer: int | None) -> dict:
    found = collections.defaultdict(list)
    for record in run.select(select, step=step, layer=layer):
        found[record.name].append(record)
    if not found:
        raise dmi.RunError(
            f"no record matches {select!r}; there are: {', '.join(run.names())}"
        )
    return dict(list(found.items())[:_MOST_PANELS])


def _floats(record: dmi.Record) -> np.ndarray:
    values = record.numpy()
    return np.abs(values) if np.iscomplexobj(values) else values.astype(np.float32)


def _finite(record: dmi.Record) -> np.ndarray:
    values = _floats(record).reshape(-1)
    return values[np.isfinite(values)]


def _shade(i: int, count: int) -> Any:
    return plt.get_cmap("viridis")(i / max(1, count - 1))


def rms(run: dmi.Run, select: str, step: int | None, layer: int | None) -> Any:
    """Draws the root mean square of each record over steps, a line per layer."""
    found = _records(run, select, step, layer)
    figure, axes = _panels(len(found))
    for axis, (name, records) in zip(axes, found.items()):
        layers = sorted({r.layer for r in records}, key=lambda n: (n is None, n))
        for i, number in enumerate(layers):
            mine = [r for r in records if r.layer == number]
            at = [n if r.step is None else r.step for n, r in enumerate(mine)]
            values = [np.sqrt(np.mean(np.square(_finite(r)))) for r in mine]
            label = None if number is None else f"layer {number}"
            marker = "o" if len(mine) == 1 else ""
            color = _shade(i, len(layers))
            axis.plot(at, values, marker=marker, color=color, label=label)
        axis.set(title=name, xlabel="step", ylabel="root mean square")
        axis.set_yscale("log")
        if 1 < len(layers) <= 12:
            axis.legend(frameon=False, fontsize="small")
    return figure


def histogram(run: dmi.Run, select: str, step: int | None, layer: int | None) -> Any:
    """Draws how the values of each site are distributed."""
    found = _records(run, select, step, layer)
    figure, axes = _panels(len(found))
    for axis, (name, records) in zip(axes, found.items()):
        values = [_finite(r) for r in records]
        low = min((v.min() for v in values if v.size), default=0.0)
        high = max((v.max() for v in values if v.size), default=1.0)
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        counts = sum(np.histogram(v, edges)[0] for v in values)
        axis.stairs(counts, edges, fill=True, color=_shade(1, 4))
        lost = sum(r.numpy().size for r in records) - sum(v.size for v in values)
        note = f", {lost:,} not finite" if lost else ""
        title = f"{name}: {len(records):,} records{note}"
        axis.set(title=title, xlabel="value", ylabel="elements")
        axis.set_yscale("log")
    return figure


def image(run: dmi.Run, select: str, step: int | None, layer: int | None) -> Any:
    """Draws the last two axes of the newest record, as of an attention pattern."""
    found = _records(run, select, step, layer)
    records = [r for rs in found.values() for r in rs if len(r.shape) >= 2]
    if not records:
        raise dmi.RunError(f"no record of {select!r} has two axes to draw.")
    record = records[-1]
    values = _floats(record)
    planes = values.reshape(-1, *values.shape[-2:])[:_MOST_PANELS]
    figure, axes = _panels(len(planes))
    for i, (axis, plane) in enumerate(zip(axes, planes)):
        drawn = axis.imshow(plane, aspect="auto", interpolation="nearest")
        where = np.unravel_index(i, values.shape[:-2]) if values.ndim > 2 else ()
        axis.set(title=f"[{', '.join(map(str, where))}]" if where else "")
        figure.colorbar(drawn, ax=axis)
    labels = f"step {record.step}, layer {record.layer}"
    figure.suptitle(f"{record.name}, {labels}")
    return figure


def losses(run: dmi.Run, select: str, step: int | None, layer: int | None) -> Any:
    """Draws what was recorded and what was lost."""
    del step, layer
    report = run.verify()
    written = collections.Counter(
        {row["name"]: row["records"] for row in run.sites().to_pylist()}
    )
    figure, (axis,) = _panels(1)
    bars = {f"written: {name}": n for name, n in written.most_common(_MOST_PANELS)}
    lost = {f"dropped: {reason}": n for reason, n in report.dropped.items()}
    missing = sum(len(gap) for gaps in report.missing.values() for gap in gaps)
    if missing:
        lost["missing in the files"] = missing
    names = [*bars, *(lost or {"dropped": 0})]
    counts = [*bars.values(), *(lost.values() or [0])]
    colors = [_shade(1, 4)] * len(bars) + ["tab:red"] * (len(names) - len(bars))
    axis.barh(names[::-1], counts[::-1], color=colors[::-1])
    for place, count in enumerate(counts[::-1]):
        axis.text(count, place, f" {count:,}", va="center")
    axis.set(xlabel="records", title="what became of the records")
    axis.margins(x=0.2)
    return figure
