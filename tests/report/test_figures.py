"""Figures, in files of every format and returned to notebooks: every kind, and refusals of what cannot be drawn."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.ImageColor import getrgb

import segcal
from segcal import InputError, Results, create, evaluate
from segcal.data.sample.scenes import simulate
from segcal.evaluation.portraits import NOTHING, Portrait, make_portraits
from segcal.report import colours
from segcal.report.colours import class_colours
from segcal.report.figures import KINDS, draw_figure, write_figure
from segcal.report.figures.cases import coloured
from segcal.report.figures.reliability import Bins
from support.scenes import simulated

HEADS = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}


@pytest.fixture(scope="module")
def found() -> tuple[Results, list[Portrait]]:
    cases = simulated(3, num_classes=3, size=(24, 30), temperatures=(0.5, 4.0), contrast=3.0)
    methods = {"UC": None, "$T_S$": create("ts", num_classes=3).fit(cases)}
    results = evaluate(cases, methods, num_classes=3, patch_size=10, patches=3, patch_sizes=(5, 10), repetitions=10)
    return results, make_portraits(cases, methods, results)


@pytest.fixture(scope="module")
def volume() -> tuple[Results, list[Portrait]]:
    """Volumes with an anisotropic grid."""
    cases = [
        replace(scene.case, spacing=(3.0, 1.0, 1.5)) for scene in simulate(2, num_classes=3, size=(6, 16, 20), seed=1)
    ]
    methods = {"UC": None, "TS": create("ts", num_classes=3).fit(cases)}
    results = evaluate(cases, methods, num_classes=3, patch_size=6, patches=4, repetitions=5)
    return results, make_portraits(cases, methods, results)


NAMES_METHODS = ("reliability", "local", "temperature", "regions", "patch-size")


@pytest.mark.parametrize("suffix", HEADS)
def test_every_format(found: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"figure.{suffix}"
    write_figure("regions", found[0], path)
    assert path.read_bytes().startswith(HEADS[suffix])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    written = path.read_bytes()
    write_figure("regions", found[0], path)
    assert path.read_bytes() == written, "the same figure is the same bytes"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(found: Any, tmp_path: Path, kind: str) -> None:
    results, portraits = found
    if kind in NAMES_METHODS:
        write_figure(kind, results, tmp_path / "figure.svg", portraits=portraits)
        assert "$T_S$" in (tmp_path / "figure.svg").read_text()  # a name, not a formula
    else:
        write_figure(kind, results, tmp_path / "figure.png", portraits=portraits)
        pixels = np.asarray(Image.open(tmp_path / "figure.png").convert("L"))
        assert 0.01 < (pixels < 200).mean() < 0.9  # neither blank nor filled


@pytest.mark.parametrize("kind", ["local", "locations", "temperature", "illustration", "variation"])
def test_figures_of_volumes(tmp_path: Path, kind: str, volume: Any) -> None:
    results, portraits = volume
    write_figure(kind, results, tmp_path / "figure.svg", portraits=portraits)
    assert portraits[0].name in (tmp_path / "figure.svg").read_text()


def test_a_temperature_map_has_the_aspect_of_its_image(volume: Any) -> None:
    results, portraits = volume
    figure = draw_figure("temperature", results, portraits=portraits)
    extents = [axis.images[0].get_extent() for axis in figure.axes if axis.images]
    assert extents == [[0, 20 * 1.5, 16 * 1.0, 0]] * 2


def test_a_case_without_patches_is_refused(found: Any, tmp_path: Path) -> None:
    results, (portrait, *_) = found
    with pytest.raises(InputError, match="no Local patches"):
        write_figure("local", results, tmp_path / "a.pdf", portraits=[replace(portrait, patches=())])
    assert list(tmp_path.iterdir()) == []


def test_bins_of_a_case_have_its_ece(found: Any) -> None:
    results, portraits = found
    frame = results.to_frame()
    for portrait in portraits:
        row = frame[(frame.case == portrait.name) & (frame.method == "UC") & (frame.region == "all")]
        ece = row[row.metric == "ece"]["value"].item()
        assert Bins.of_sums(*np.array(portrait.curves["UC"], float).T).ece == pytest.approx(ece)
    assert np.isnan(Bins.of_sums(*np.zeros((3, 2))).ece)


def test_labels_have_the_colours_of_their_classes() -> None:
    picture = coloured(np.array([[0, 1, 2, NOTHING]], np.uint8), ["#0072B2", "#E69F00"])
    assert picture.tolist() == [[[0, 0x72, 0xB2], [0xE6, 0x9F, 0], [128, 128, 128], [128, 128, 128]]]


def test_no_colour_means_two_things() -> None:
    """Methods, classes, regions and the direction of errors are told apart wherever they are drawn."""
    palettes = [colours.METHODS, (colours.BASELINE,), (colours.OVER, colours.UNDER), colours.REGIONS]
    every = [*palettes, class_colours(8)]
    for k, one in enumerate(every):
        for other in every[:k]:
            gaps = [np.linalg.norm(np.subtract(getrgb(a), getrgb(b))) for a in one for b in other]
            assert min(gaps) > 40
    assert len(set(class_colours(60))) == 60


def test_what_is_asked_for_is_what_is_drawn(found: Any, tmp_path: Path) -> None:
    results, portraits = found
    texts = {}
    for name, options in {
        "plain": {},
        "one": {"methods": ["$T_S$"]},
        "class": {"label": "1"},
        "boundary": {"region": "boundary"},
    }.items():
        write_figure("reliability", results, tmp_path / f"{name}.svg", **options)
        texts[name] = (tmp_path / f"{name}.svg").read_text()
    curves = results.curves()
    for name, region, label in (("plain", "all", ""), ("class", "all", "1"), ("boundary", "boundary", "")):
        own = curves[(curves.method == "UC") & (curves.region == region) & (curves.label == label)]
        ece = (own["hit"] - own["confidence"]).abs().sum() / own["count"].sum()
        assert f"UC   ECE {100 * ece:.2f}\u00a0%" in texts[name]
    assert "UC" not in texts["one"]
    write_figure("temperature", results, tmp_path / "t.svg", portraits=portraits, case=portraits[-1].name)
    assert portraits[-1].name in (tmp_path / "t.svg").read_text()


@pytest.mark.parametrize(
    ("kind", "name", "options", "words"),
    [
        ("pie", "a.pdf", {}, "a figure is one of reliability, .* got 'pie'"),
        ("reliabilty", "a.pdf", {}, r"got 'reliabilty'; did you mean 'reliability'\?"),
        ("reliability", "a.gif", {}, "ends in .pdf"),
        ("reliability", "a.pdf", {"methods": ["LTS"]}, "each method must be one of UC, .*, got 'LTS'"),
        ("reliability", "a.pdf", {"region": "sky"}, "region must be one of all, .*, got 'sky'"),
        ("reliability", "a.pdf", {"label": "sky"}, "class must be one of .*, got 'sky'"),
        ("temperature", "a.pdf", {"portraits": ()}, r"no portraits .* portraits=segcal\.evaluation\.portraits\.make"),
        ("variation", "a.pdf", {"portraits": ()}, "no portraits"),
        ("local", "a.pdf", {"case": "nobody"}, "got 'nobody'"),
        ("temperature", "a.pdf", {"case": "nobody"}, "got 'nobody'"),
        ("temperature", "a.pdf", {"methods": ["UC"]}, "has a temperature"),
        ("regions", "a.pdf", {"metric": "luck"}, "got 'luck'"),
        ("patch-size", "a.pdf", {"metric": "luck"}, "'luck'"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    found: Any, tmp_path: Path, kind: str, name: str, options: dict[str, Any], words: str
) -> None:
    results, portraits = found
    with pytest.raises(InputError, match=words):
        write_figure(kind, results, tmp_path / name, **{"portraits": portraits, **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["reliability", "patch-size"])
def test_many_methods_are_named_inside_the_figure(tmp_path: Path, kind: str) -> None:
    cases = simulated(2, num_classes=3, size=(12, 14))
    methods = dict.fromkeys(("UC", *(f"DIRICHLET{k}" for k in range(8))))
    results = evaluate(cases, methods, num_classes=3, patch_size=6, patches=2, patch_sizes=(4, 6), repetitions=5)
    write_figure(kind, results, tmp_path / "a.png")
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
    edges = (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:])
    assert all((edge == 255).all() for edge in edges)  # nothing is cut off
    assert pixels.shape[1] < 2500


def test_what_was_not_measured_is_told(found: Any, tmp_path: Path) -> None:
    results, _ = found
    with pytest.raises(InputError, match="--patch-sizes"):
        write_figure("patch-size", replace(results, size_frame=None), tmp_path / "a.pdf")


def test_without_matplotlib_it_says_what_to_install(
    found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install segcal\[figures\]"):
        write_figure("regions", found[0], tmp_path / "a.pdf")


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
    assert pytest.importorskip("matplotlib.pyplot").get_fignums() == []


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
