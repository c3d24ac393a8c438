# SPDX-License-Identifier: Apache-2.0
"""What the plots draw: the numbers in the figures."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

import jax_dmi as dmi
from jax_dmi import view
from support import runs
from support.runs import Rec

matplotlib.use("Agg")


def _run(path, *records) -> dmi.Run:
    writer = runs.Writer(path)
    writer.write(*records)
    writer.close()
    return dmi.open_run(path)


@pytest.fixture
def draw():
    """Draws a run; figures are closed behind the test."""

    def drawn(kind, run, select="*"):
        return view.DRAW[kind](run, select=select, step=None, layer=None)

    yield drawn
    plt.close("all")


def test_rms_takes_the_records_of_a_step_and_layer_together(tmp_path, draw):
    pairs = [(0, 0, 3.0), (0, 0, 4.0), (1, 0, 2.0), (0, 1, 5.0), (1, 1, 6.0)]
    run = _run(
        tmp_path / "run",
        *(Rec(np.full(7, v, np.float32), step=s, layer=n) for s, n, v in pairs),
    )
    first, second = draw("rms", run).axes[0].get_lines()
    np.testing.assert_array_equal(first.get_xdata(), [0, 1])
    np.testing.assert_allclose(first.get_ydata(), [np.sqrt(12.5), 2.0])
    np.testing.assert_allclose(second.get_ydata(), [5.0, 6.0])
    assert [first.get_label(), second.get_label()] == ["layer 0", "layer 1"]


def test_rms_of_many_layers_has_a_scale_instead_of_a_legend(tmp_path, draw):
    x = np.ones(3, np.float32)
    run = _run(tmp_path / "run", *(Rec(x, step=0, layer=n) for n in range(20)))
    axis, scale = draw("rms", run).axes
    assert axis.get_legend() is None
    assert scale.get_ylabel() == "layer"


@pytest.mark.parametrize("kind", ["rms", "histogram"])
def test_values_that_are_not_finite_are_told(kind, tmp_path, draw):
    values = np.array([1, np.nan, 2, np.inf], np.float32)
    run = _run(tmp_path / "run", Rec(values, step=0), Rec(values[1:2], "bad", step=0))
    titles = {axis.get_title() for axis in draw(kind, run).axes}
    assert sum("2 values not finite" in title for title in titles) == 1
    assert sum("1 values not finite" in title for title in titles) == 1


def test_a_histogram_counts_every_value(tmp_path, draw):
    values = np.linspace(-1, 1, 501, dtype=np.float32)
    run = _run(tmp_path / "run", Rec(values, step=0), Rec(values, step=1))
    (stairs,) = draw("histogram", run).axes[0].patches
    assert stairs.get_data().values.sum() == 1002


@pytest.mark.parametrize(
    ("low", "limits"), [(-1.0, (-3.0, 3.0)), (1.0, (1.0, 3.0))], ids=["signed", "plain"]
)
def test_images_share_colors_and_zero_is_in_the_middle(low, limits, tmp_path, draw):
    values = np.array([[low] * 9, [3.0] * 9], np.float32).reshape(2, 3, 3)
    run = _run(tmp_path / "run", Rec(values, step=4, layer=1))
    figure = draw("image", run)
    images = [image for axis in figure.axes[:2] for image in axis.get_images()]
    assert [image.get_clim() for image in images] == [limits] * 2
    assert figure.get_suptitle() == "x, step 4, layer 1"


def test_an_image_says_how_many_it_leaves_out(tmp_path, draw):
    run = _run(tmp_path / "run", Rec(np.ones((5, 3, 2, 2), np.float32), step=0))
    assert "12 of 15 images" in draw("image", run).get_suptitle()
