"""What fits say of themselves reaches the page, also after a way through a folder."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segcal import Results, create, evaluate
from segcal.report import page_content
from segcal.report.sections.fits import choices, influences
from segcal.report.view import View
from support.scenes import simulated

DETAILS: dict[str, Any] = {
    "features": ["entropy", "margin", "border share"],
    "coefficients": [0.2, -0.3, 0.0],
    "coefficient_intervals": [[0.1, 0.3], [-0.5, -0.1], [-0.1, 0.1]],
    "class_offsets": [0.0, 0.5],
    "class_offset_intervals": [[-0.1, 0.1], [0.4, 0.6]],
    "words": ["More entropy raises the temperature."],
}
SCORES = {
    "ts": {"nll": 0.51234567, "error": 0.02, "difference": 0.0, "difference_error": 0.0},
    "lts": {"nll": None, "error": None, "difference": None, "difference_error": None},
}
CHOICE = {
    "chosen": "cts",
    "why": "it is better",
    "groups": 5,
    "scores": {name: {**score, "seconds": 1.5, "numbers": 3, "note": None} for name, score in SCORES.items()},
    "chosen_details": DETAILS,
}


def results_of(**details: Any) -> Results:
    """Measured with TS under these names, whose reports say what they never found."""
    cases = simulated(2, num_classes=2, size=(16, 16))
    fitted = {name: create("ts", 2).fit(cases) for name in details}
    for name, own in details.items():
        fitted[name].fit_report_ = replace(fitted[name].fit_report_, details=own)
    options: dict[str, Any] = {"repetitions": 5, "patch_size": 8, "class_names": ("sky", "tree")}
    return evaluate(cases, {"UC": None, **fitted}, num_classes=2, **options)


def test_factors_are_exponentials_and_the_largest_comes_first() -> None:
    (found,) = influences(View(results_of(CTS=DETAILS)))
    assert (found["method"], found["words"]) == ("CTS", DETAILS["words"])
    assert [row["name"] for row in found["features"]] == ["entropy", "border share", "margin"]
    first = found["features"][0]
    assert [first[key] for key in ("value", "low", "high")] == pytest.approx(
        [math.exp(0.2), math.exp(0.1), math.exp(0.3)], rel=1e-4
    )
    assert [(row["name"], row["value"]) for row in found["classes"]] == [("tree", 1.6487), ("sky", 1.0)]


def test_what_was_not_learned_is_not_shown() -> None:
    classwise = {**DETAILS, "features": [], "coefficients": [], "coefficient_intervals": []}
    plain = {**DETAILS, "class_offsets": [0.0, 0.0], "coefficient_intervals": None, "words": ["class 1, class 2: more"]}
    results = results_of(CLASSES=classwise, FEATURES=plain, TS={"temperature": 2.0})
    one, other = influences(View(results))
    assert (one["features"], len(one["classes"])) == ([], 2)
    assert (len(other["features"]), other["classes"]) == (3, [])
    assert {row["low"] for row in other["features"]} == {None}
    assert other["words"] == ["'tree', class 2: more"]
    assert choices(View(results)) is None


def test_a_class_that_was_never_seen_has_no_factor() -> None:
    (found,) = influences(View(results_of(CTS={**DETAILS, "class_shares": [0.0, 1.0]})))
    assert [row["name"] for row in found["classes"]] == ["tree"]


def test_the_choice_and_what_it_took_are_shown_from_a_folder_too(tmp_path: Path) -> None:
    results = results_of(AUTO=CHOICE)
    results.save(tmp_path / "results")
    for found in (results, Results.load(tmp_path / "results")):
        content = page_content(found)["sections"]
        (choice,) = content["choice"]
        assert (choice["method"], choice["chosen"], choice["why"]) == ("AUTO", "cts", "it is better")
        assert [(row["name"], row["nll"], row["numbers"]) for row in choice["rows"]] == [
            ("ts", 0.51235, 3),
            ("lts", None, 3),
        ]
        assert [part["method"] for part in content["influence"]] == ["AUTO"]


def test_results_without_reports_have_nothing_to_explain() -> None:
    results = results_of(TS={"temperature": 2.0})
    older = replace(results, settings={k: v for k, v in results.settings.items() if k != "fits"})
    for found in (results, older):
        assert not {"choice", "influence"} & set(page_content(found)["sections"])
