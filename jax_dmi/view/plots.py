# SPDX-License-Identifier: Apache-2.0
"""The plots of ``jax-dmi plot``, each from a run to a figure."""

from __future__ import annotations

import collections
from typing import Any

from matplotlib.colors import ListedColormap
from matplotlib.colors import Normalize
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter
from matplotlib.ticker import LogLocator
from matplotlib.ticker import MaxNLocator
import numpy as np

import jax_dmi as dmi

_WIDTH, _HEIGHT, _COLUMNS = 5.0, 3.4, 3
_MOST_PANELS = 12
_BINS = 80
_MOST_LEGEND = 12
# Of the values of an image, what is left out of its colors at each end.
_OUTLIERS = 0.005


def _panels(count: int, height: float = _HEIGHT) -> tuple[Any, list[Any]]:
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(_WIDTH * columns, height * rows),
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
        at = {"step": step, "layer": layer}
        only = "".join(f", {k} {n}" for k, n in at.items() if n is not None)
        raise dmi.RunError(
            f"no record matches {select!r}{only}; there are: {', '.join(run.names())}"
        )
    return dict(list(found.items())[:_MOST_PANELS])


def _floats(record: dmi.Record) -> np.ndarray:
    values = record.numpy()
    return np.abs(values) if np.iscomplexobj(values) else values.astype(np.float32)


def _finite(record: dmi.Record) -> np.ndarray:
    values = _floats(record).reshape(-1)
    return values[np.isfinite(values)]


def _shade(i: int, count: int) -> Any:
    # Without the end of the map, which is too bright for a line on white.
    return plt.get_cmap("viridis")(0.92 * i / max(1, count - 1))


def _log_scale(axis: Any) -> None:
    """Takes a logarithmic axis, with plain numbers where they are short."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high / low < 1e3:
        plain = FuncFormatter(lambda value, _: f"{value:.3g}")
        axis.yaxis.set_major_formatter(plain)
        if high / low < 5:
            axis.yaxis.set_minor_formatter(plain)
        else:
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_minor_formatter("")


def _tell_layers(figure: Any, axis: Any, layers: list[int | None]) -> None:
    """Adds a legend, or for many layers a scale of the colors."""
    if 1 < len(layers) <= _MOST_LEGEND:
        axis.legend(frameon=False, fontsize="small")
    elif len(layers) > _MOST_LEGEND:
        colors = [_shade(i, len(layers)) for i in range(len(layers))]
        numbers = [-1 if number is None else number for number in layers]
        shades = plt.cm.ScalarMappable(
            Normalize(numbers[0], numbers[-1]), ListedColormap(colors)
        )
        figure.colorbar(shades, ax=axis, label="layer")


def rms(run: dmi.Run, select: str, step: int | None, layer: int | None) -> Any:
    """Draws the root mean square of each record over steps, a line per layer."""
    found = _records(run, select, step, layer)
    figure, axes = _panels(len(found))
    for axis, (name, records) in zip(axes, found.items()):
        layers = sorted({r.layer for r in records}, key=lambda n: (n is not None, n))
        for i, number in enumerate(layers):
            at, values = _rms_by_step([r for r in records if r.layer == number])
            label = "no layer" if number is None else f"layer {number}"
            marker = "o" if len(at) == 1 else ""
            color = _shade(i, len(layers))
            axis.plot(at, values, marker=marker, color=color, label=label)
        steps = any(r.step is not None for r in records)
        axis.set(title=name + _lost(records), xlabel="step" if steps else "record")
        axis.set_ylabel("root mean square")
        axis.margins(x=0.02)
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        _log_scale(axis)
        _tell_layers(figure, axis, layers)
    return figure


def _rms_by_step(records: list[dmi.Record]) -> tuple[list[int], list[float]]:
    """Returns steps, or numbers of records without one, and the rms of each."""
    sums: dict[int, list[float]] = {}
    for n, record in enumerate(records):
        values = _finite(record).astype(np.float64)
        at = sums.setdefault(n if record.step is None else record.step, [0.0, 0.0])
        at[0] += np.square(values).sum()
        at[1] += values.size
    # What is not finite is not drawn.
    rms = [
        np.sqrt(total / count) if count else np.nan for total, count in sums.values()
    ]
    return list(sums), rms


def _lost(records: list[dmi.Record]) -> str:
    """Returns a note on values that cannot be drawn."""
    lost = sum(r.numpy().size - _finite(r).size for r in records)
    return f", {lost:,} values not finite" if lost else ""


def histogram(run: dmi.Run, select: str, step: int | None, layer: int | None) -> Any:
    """Draws how the values of each site are distributed."""
    found = _records(run, select, step, layer)
    figure, axes = _panels(len(found))
    for axis, (name, records) in zip(axes, found.items()):
        values = [_finite(r) for r in records]
        low = min((v.min() for v in values if v.size), default=0.0)
        high = max((v.max() for v in values if v.size), default=1.0)
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        counts = np.sum([np.histogram(v, edges)[0] for v in values], axis=0)
        axis.stairs(counts, edges, fill=True, color=_shade(1, 4))
        title = f"{name}: {len(records):,} records{_lost(records)}"
        axis.set(title=title, xlabel="value", ylabel="elements")
        axis.ticklabel_format(axis="x", scilimits=(-3, 4))
        axis.locator_params(axis="x", nbins=6)
        if counts.any():
            axis.set_yscale("log")
    return figure


def image(run: dmi.Run, select: str, step: int | None, layer: int | None) -> Any:
    """Draws the last two axes of the newest record, as of an attention pattern."""
    found = _records(run, select, step, layer)
    records = [
        r for rs in found.values() for r in rs if len(r.shape) >= 2 and all(r.shape)
    ]
    if not records:
        raise dmi.RunError(f"no record of {select!r} has two axes to draw.")
    record = max(records, key=lambda r: r.time_ns)
    values = _floats(record)
    planes = values.reshape(-1, *values.shape[-2:])[:_MOST_PANELS]
    height, width = planes.shape[-2:]
    ratio = height / width
    square = 1 / 3 <= ratio <= 3
    figure, axes = _panels(
        len(planes), 0.8 * _WIDTH * ratio + 0.4 if square else _HEIGHT
    )
    colors, extend = _colors(planes)
    aspect = "equal" if square else "auto"
    drawn = []
    for i, (axis, plane) in enumerate(zip(axes, planes)):
        how = {"aspect": aspect, "interpolation": "nearest", **colors}
        drawn.append(axis.imshow(plane, **how))
        where = np.unravel_index(i, values.shape[:-2]) if values.ndim > 2 else ()
        axis.set(title=f"[{', '.join(map(str, where))}]" if where else "")
    figure.colorbar(drawn[0], ax=axes, extend=extend, aspect=30, pad=0.02)
    count = values.size // (height * width)
    shown = f", {len(planes)} of {count} images" if count > len(planes) else ""
    told = (("step", record.step), ("layer", record.layer))
    labels = "".join(f", {key} {n}" for key, n in told if n is not None)
    figure.suptitle(f"{record.name}{labels}{shown}")
    return figure


def _colors(planes: np.ndarray) -> tuple[dict[str, Any], str]:
    """Returns one scale of colors for all images, and which ends it cuts off."""
    values = planes[np.isfinite(planes)]
    if not values.size:
        return {}, "neither"
    low, high = np.quantile(values, (_OUTLIERS, 1 - _OUTLIERS))
    colors = "viridis"
    if low < 0 < high:
        high = max(-low, high)
        low, colors = -high, "RdBu_r"
    cut = (values.min() < low, values.max() > high)
    extend = {(True, False): "min", (False, True): "max", (True, True): "both"}
    return {"cmap": colors, "vmin": low, "vmax": high}, extend.get(cut, "neither")


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
