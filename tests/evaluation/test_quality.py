"""Segmentation quality and limits in `evaluate`: a case worked by hand, the loop it stands for, and what is saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import segcal
from segcal.evaluation.limits import limits
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.functional.surfaces import segmentation_quality
from segcal.report import write_page
from segcal.types import Case, InputError
from support.commands import succeed

ABOUT = {"num_classes": 3, "background": 0, "patches": 0, "repetitions": 5}

ATTRIBUTES = {
    "dice": "dice",
    "surface-dice": "surface_dice",
    "asd": "average",
    "md95": "percentile95",
    "hd95": "hausdorff95",
    "md": "maximum",
}


def case(name: str, seed: int, ignored: bool = False) -> Case:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, size=(2, 3, 2)).repeat(4, 0).repeat(4, 1).repeat(4, 2)
    logits = np.eye(3)[labels].transpose(3, 0, 1, 2) * 2 + random.normal(0, 1, (3, *labels.shape))
    if ignored:
        labels[:2] = 255
    return Case(name, logits.astype(np.float32), labels, spacing=(1.0, 0.5, 2.0))


def hand_case() -> Case:
    """One voxel of class 1 predicted, two true; class 2 is predicted and not true."""
    labels = np.zeros((1, 6, 1), np.int64)
    labels[0, 1:3] = 1
    predicted = np.zeros_like(labels)
    predicted[0, 1], predicted[0, 5] = 1, 2
    return Case("a", 5 * np.eye(3, dtype=np.float32)[predicted].transpose(3, 0, 1, 2), labels, spacing=(1.0, 3.0, 1.0))


def test_a_case_by_hand() -> None:
    results = segcal.evaluate([hand_case()], {"UC": None}, surfaces=True, surface_tolerance=0.0, **ABOUT)
    found = results.surfaces().set_index(["label", "metric"])["value"]
    assert found["1", "dice"] == pytest.approx(2 / 3)
    assert found["1", "surface-dice"] == pytest.approx(2 / 3), "of three surface voxels, two lie on the other surface"
    assert found["1", "asd"] == pytest.approx(1.0), "the third is 3 mm away"
    assert found["1", "md"] == pytest.approx(3.0)
    assert found["2", "dice"] == 0
    assert np.isnan(found["2", "asd"])
    means = results.mean_surfaces().set_index("metric")
    assert means.at["dice", "mean"] == pytest.approx(1 / 3)
    assert means.at["md", "mean"] == pytest.approx(3.0)
    assert means.at["md", "undefined"] == 1


@pytest.mark.parametrize("ignored", [False, True])
def test_figures_are_those_of_the_function(ignored: bool) -> None:
    cases = [case("a", 1, ignored), case("b", 2, ignored)]
    kept = segcal.create("ts", num_classes=3, ignore_index=255).fit(cases)
    results = segcal.evaluate(cases, {"UC": None, "TS": kept}, surfaces=True, ignore_index=255, **ABOUT)
    for one in cases:
        truth = np.asarray(one.labels)
        known = truth != 255
        quality = segmentation_quality(
            np.asarray(one.logits).argmax(0), truth, (1, 2), spacing=one.spacing, inside=known
        )
        rows = results.surfaces().query(f"case == '{one.name}'")
        for entry in quality.labels:
            for method in ("UC", "TS"):
                own = rows[(rows.method == method) & (rows.label == str(entry.label))].set_index("metric")["value"]
                expected = [getattr(entry, name) for name in ATTRIBUTES.values()]
                assert own[list(ATTRIBUTES)].tolist() == expected


def test_a_method_that_moves_labels_has_figures_of_its_own() -> None:
    everywhere_0 = 100 * torch.arange(3).view(1, 3, 1, 1, 1)
    methods = {"UC": None, "moved": lambda logits: logits - everywhere_0, "UC2": None}
    results = segcal.evaluate([case("a", 1)], methods, surfaces=True, **ABOUT)
    dice = results.mean_surfaces().query("metric == 'dice'").set_index("method")["mean"]
    assert dice["moved"] == 0
    assert dice["UC"] == dice["UC2"] > 0.5


def test_limits_are_those_of_diagnose_and_both_are_saved(tmp_path: Path) -> None:
    cases = [case("a", 1), case("b", 2)]
    results = segcal.evaluate(iter(cases), {"UC": None}, surfaces=True, limits=True, **ABOUT)
    assert results.limits_frame is not None
    assert results.limits_frame.equals(limits(cases, Protocol(3, background=0)))
    results.save(tmp_path / "r")
    again = Results.load(tmp_path / "r")
    assert again.surfaces().equals(results.surfaces())
    assert again.limits_frame is not None
    assert again.limits_frame.equals(results.limits_frame)
    assert {"surfaces", "limits"} <= set(results.to_dict())
    plain = segcal.evaluate(cases, {"UC": None}, **ABOUT)
    assert plain.limits_frame is None
    with pytest.raises(InputError, match="surfaces=True"):
        plain.surfaces()
    with pytest.raises(InputError, match="surface_tolerance must be 0 or more"):
        segcal.evaluate(cases, {"UC": None}, surface_tolerance=-1, **ABOUT)


@pytest.mark.parametrize("name", ["t.tex", "t.md"])
def test_written_tables_have_the_segmentation_and_what_limits_calibration(tmp_path: Path, name: str) -> None:
    """Exactly as the terminal shows it, and only where it was measured."""
    results = segcal.evaluate([hand_case()], {"UC": None}, surfaces=True, surface_tolerance=0.0, limits=True, **ABOUT)
    results.save(tmp_path / "results")
    shown = " ".join(succeed("table", tmp_path / "results", "--out", tmp_path / name).split())
    written = " ".join((tmp_path / name).read_text().split())
    assert results.limits_frame is not None
    reached = [f"{value:.4f}" for value in results.limits_frame.query("metric == 'nll'")["value"]]
    words = ("95MD", "1 structure is only in the prediction", "What limits calibration", "reaches an NLL of")
    for text in (shown, written):
        for wanted in ("33.33(0.00)", "1.000(0.000)", "3.000(0.000)", *reached, *words):
            assert wanted in text
    segcal.evaluate([hand_case()], {"UC": None}, **ABOUT).export(tmp_path / name)
    assert "95MD" not in (tmp_path / name).read_text()


def test_figures_without_a_distance_are_shown_as_missing(tmp_path: Path) -> None:
    """Class 2 is predicted and not true, and the only structure: no distance exists."""
    one = hand_case()
    alone = Case("b", one.logits, np.zeros_like(np.asarray(one.labels)))
    results = segcal.evaluate([alone], {"UC": None}, surfaces=True, **ABOUT)
    results.save(tmp_path / "results")
    shown = succeed("table", tmp_path / "results", "--out", tmp_path / "t.md")
    for text in (shown, (tmp_path / "t.md").read_text()):
        assert "nan(nan)" not in text
    assert "| UC | 0.00(0.00) | 0.00(0.00) | - | - | - |" in (tmp_path / "t.md").read_text()


@pytest.mark.parametrize(
    ("spacing", "unit", "tolerance", "said"),
    [((1.0, 3.0, 1.0), "mm", 2.0, "2 mm"), (None, "voxels", 2.0, "2 voxels"), (None, "voxels", 1.0, "1 voxel;")],
)
def test_distances_have_the_unit_of_the_spacing_everywhere(
    tmp_path: Path, spacing: tuple[float, ...] | None, unit: str, tolerance: float, said: str
) -> None:
    """Without a spacing they are not in mm, and the surface Dice is read with its tolerance."""
    one = replace(hand_case(), spacing=spacing)
    results = segcal.evaluate([one], {"UC": None}, surfaces=True, surface_tolerance=tolerance, **ABOUT)
    results.save(tmp_path / "results")
    shown = " ".join(succeed("table", tmp_path / "results", "--out", tmp_path / "t.md").split())
    write_page(Results.load(tmp_path / "results"), tmp_path / "page.html")
    for text in (shown, (tmp_path / "t.md").read_text(), (tmp_path / "page.html").read_text()):
        assert f"95MD({unit})↓" in text or f"95MD({unit})\\u2193" in text
        assert f"surface Dice at a tolerance of {said}" in text
