"""Figures are drawn in every format, from every kind, and refuse what they cannot draw."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segcal import InputError, Results, create, evaluate
from segcal.data.datasets.simulate import simulate
from segcal.evaluation.portraits import Portrait, portray
from segcal.report.figures import KINDS, write_figure

HEADS = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}


@pytest.fixture(scope="module")
def found() -> tuple[Results, list[Portrait]]:
    cases = [scene.case for scene in simulate(3, num_classes=3, size=(24, 30), temperatures=(0.5, 4.0), contrast=3.0)]
    methods = {"UC": None, "$T_S$": create("ts", num_classes=3).fit(cases)}
    results = evaluate(cases, methods, num_classes=3, patch_size=10, patches=3, patch_sizes=(5, 10), repetitions=10)
    return results, portray(cases, methods, results)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", HEADS)
def test_every_kind_in_every_format(found: Any, tmp_path: Path, kind: str, suffix: str) -> None:
    results, portraits = found
    path = tmp_path / f"figure.{suffix}"
    write_figure(kind, results, path, portraits=portraits)
    assert path.read_bytes().startswith(HEADS[suffix])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    if suffix == "png":
        pixels = np.asarray(Image.open(path).convert("L"))
        assert 0.01 < (pixels < 200).mean() < 0.9  # neither blank nor filled
    if suffix == "svg":
        assert "$T_S$" in path.read_text()  # a name, not a formula


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
        assert f"UC   ECE {100 * ece:.2f} %" in texts[name]
    assert "UC" not in texts["one"]
    write_figure("temperature", results, tmp_path / "t.svg", portraits=portraits, case=portraits[-1].name)
    assert portraits[-1].name in (tmp_path / "t.svg").read_text()


@pytest.mark.parametrize(
    ("kind", "name", "options", "words"),
    [
        ("pie", "a.pdf", {}, "one of reliability"),
        ("reliability", "a.gif", {}, "ends in .pdf"),
        ("reliability", "a.pdf", {"methods": ["LTS"]}, "among UC"),
        ("reliability", "a.pdf", {"region": "sky"}, "region 'sky'"),
        ("reliability", "a.pdf", {"label": "sky"}, "class 'sky'"),
        ("temperature", "a.pdf", {"portraits": ()}, "no portraits"),
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


@pytest.mark.parametrize("kind", ["reliability", "regions", "patch-size"])
def test_many_methods_are_named_inside_the_figure(tmp_path: Path, kind: str) -> None:
    cases = [scene.case for scene in simulate(2, num_classes=3, size=(12, 14))]
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
