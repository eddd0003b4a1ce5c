"""Figures that are returned: their content, their titles, and nothing left open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import segcal
from segcal.report.figures import draw_figure
from segcal.types import InputError
from support.slow_evaluation import PROTOCOL, make_cases, methods

pyplot = pytest.importorskip("matplotlib.pyplot")


def arrays() -> tuple[torch.Tensor, torch.Tensor]:
    logits = 2 * torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    return logits, (logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) * 4).argmax(1)


def titles(figure: Any) -> list[str]:
    return [axis.get_title().replace("\xa0", " ") for axis in figure.axes if axis.get_title()]


def bars(axis: Any) -> list[tuple[float, float]]:
    """Left edge and height of the bars of accuracy."""
    return [(round(bar.get_x(), 6), bar.get_height()) for bar in axis.containers[0]]


def test_a_diagram_shows_the_curve() -> None:
    logits, labels = arrays()
    figure = segcal.reliability_diagram(logits, labels, bins=5)
    curve = segcal.reliability_curve(logits, labels, bins=5)
    held = np.flatnonzero(curve.pixels)
    assert bars(figure.axes[0]) == [(round(k / 5, 6), pytest.approx(curve.accuracy[k])) for k in held]
    assert titles(figure) == [f"ECE {100 * segcal.ece(logits, labels, bins=5):.2f} %"]
    assert pyplot.get_fignums() == []


def test_a_diagram_of_sigmoid_channels_holds_the_pixels_of_all() -> None:
    logits, labels = arrays()
    masks = torch.stack([labels == k for k in range(3)], dim=1).long()
    figure = segcal.reliability_diagram(logits, masks, bins=5, activation="sigmoid")
    curve = segcal.reliability_curve(logits, masks, bins=5, activation="sigmoid")
    assert int(curve.pixels.sum()) == masks.numel()
    held = np.flatnonzero(curve.pixels)
    assert bars(figure.axes[0]) == [(round(k / 5, 6), pytest.approx(curve.accuracy[k])) for k in held]


def test_several_are_side_by_side(tmp_path: Any) -> None:
    logits, labels = arrays()
    figure = segcal.reliability_diagram({"before": logits, "after": logits / 2}, labels)
    assert [title.split()[0] for title in titles(figure)] == ["before", "after"]
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_a_suite_draws_each_region() -> None:
    logits, labels = arrays()
    suite = segcal.CalibrationSuite(num_classes=3, regions=("left", "right"), bins=5)
    left = torch.arange(20).expand(2, 20, 20) < 10
    suite.update(logits, labels, {"left": left, "right": ~left})
    figure = suite.plot()
    assert [title.split()[0] for title in titles(figure)] == ["left", "right"]
    expected = 100 * segcal.ece(logits, labels, bins=5, mask=left)
    assert titles(figure)[0].endswith(f"ECE {expected:.2f} %")
    with pytest.raises(InputError, match="call it without arguments"):
        suite.plot(val=suite.compute())


def test_figures_of_results_are_returned() -> None:
    results = segcal.evaluate(make_cases(), methods(), **PROTOCOL)
    assert [title.split()[0] for title in titles(draw_figure("reliability", results))] == ["UC", "TS"]
    assert [title.split()[0] for title in titles(draw_figure("reliability", results, methods=["TS"]))] == ["TS"]
    assert draw_figure("regions", results, metric="nll").axes[0].get_ylabel() == "NLL"
    assert pyplot.get_fignums() == []
    with pytest.raises(InputError, match=r"a figure is one of reliability, .* got 'pie'"):
        draw_figure("pie", results)
    with pytest.raises(InputError, match=r"no portraits .* portraits=segcal\.evaluation\.portraits\.make_portraits\("):
        draw_figure("temperature", results)
    with pytest.raises(InputError, match=r"got 'reliabilty'; did you mean 'reliability'\?"):
        draw_figure("reliabilty", results)
    with pytest.raises(InputError, match="each method must be one of UC, TS, got 'LTS'"):
        draw_figure("reliability", results, methods=["LTS"])
