"""The one recommendation: by proper scores and beyond noise, with what became worse and what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import segcal
from segcal import CalibrationWarning, Case
from segcal.evaluation.recommendation import difference, recommend
from segcal.evaluation.results import Results
from segcal.types import InputError

CLASSES = 3


def scene(seed: int, sharpness: float = 2.5) -> Case:
    """Logits of an overconfident network, whose mistakes are random."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, (24, 24))
    logits = 2.0 * np.eye(CLASSES)[labels].transpose(2, 0, 1) + random.normal(size=(CLASSES, 24, 24))
    return Case(f"scene-{seed}", (sharpness * logits).astype(np.float32), labels)


@pytest.fixture(scope="module")
def results() -> Results:
    ts = segcal.create("ts", num_classes=CLASSES).fit([scene(k) for k in range(100, 103)])
    vector = segcal.create("vector", num_classes=CLASSES).fit([scene(k) for k in range(100, 103)])
    methods = {"UC": None, "VECTOR": vector, "TS": ts, "flat": lambda logits: 0.01 * logits}
    return segcal.evaluate([scene(k) for k in range(12)], methods, num_classes=CLASSES, patch_size=8)


def test_the_simplest_of_equals_is_recommended(results: Results) -> None:
    found = recommend(results)
    assert (found.method, found.baseline) == ("TS", "UC")
    assert found.reason.startswith("Use TS (temperature scaling): it lowers the NLL of UC by ")
    assert "; Brier " in found.reason
    assert ", ECE " in found.reason
    assert "VECTOR is within noise of it and no simpler." in found.reason
    assert "1 learned value; every predicted label is kept." in found.costs
    assert str(found).startswith(found.reason)


def test_a_method_that_was_fitted_on_the_cases_is_recommended_with_that_reservation(results: Results) -> None:
    cases = [scene(k) for k in range(4)]
    ts = segcal.create("ts", num_classes=CLASSES).fit(cases[:3])
    with pytest.warns(CalibrationWarning, match="TS was fitted on 3 of these 4 cases"):
        seen = segcal.evaluate(cases, {"UC": None, "TS": ts}, num_classes=CLASSES, patch_size=8)
    assert recommend(seen).reason.endswith("TS was fitted on 3 of these 4 cases: confirm this on other images.")
    assert "was fitted on" not in str(recommend(results))


def test_changed_labels_are_counted_among_the_costs(results: Results) -> None:
    dropped = replace(results, settings={**results.settings, "methods": ["UC", "VECTOR"]})
    found = recommend(replace(dropped, frame=results.frame[results.frame.method.isin(["UC", "VECTOR"])]))
    changed = 100 * results.settings["fits"]["VECTOR"]["changed"]
    assert found.method == "VECTOR"
    assert found.costs.endswith(f"; {changed:.2f}\xa0% of the predicted labels change.")


def test_it_is_the_same_for_saved_results(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path / "results")
    assert recommend(Results.load(tmp_path / "results")) == recommend(results)


def test_nothing_is_recommended_within_noise() -> None:
    cases = [scene(k, 1.0) for k in range(4)]
    same = segcal.evaluate(cases, {"UC": None, "same": lambda z: z * 1.0001}, num_classes=CLASSES, patch_size=8)
    found = recommend(same)
    assert found.method == "UC"
    assert found.reason.startswith("Keep UC: no method lowers its NLL by more than noise")


def test_what_becomes_worse_is_named() -> None:
    """Class 2 is always right; a temperature that suits the other classes makes it underconfident."""

    def case(seed: int) -> Case:
        made = scene(seed, 6.0)
        logits, labels = np.array(made.logits), np.array(made.labels)
        labels[:, :12] = 2
        logits[:, :, :12] = np.array([-6.0, -6.0, 0.0])[:, None, None]
        return Case(made.name, logits, labels)

    ts = segcal.create("ts", num_classes=CLASSES).fit([case(k) for k in range(100, 103)])
    found = recommend(
        segcal.evaluate(
            [case(k) for k in range(12)], {"UC": None, "TS": ts}, num_classes=CLASSES, patch_size=8,
            class_names=("a", "b", "sky"), background=None,
        )
    )  # fmt: skip
    assert found.method == "TS"
    assert any("raises the ECE of pixels predicted as 'sky'" in sentence for sentence in found.worse), found


def test_volumes_that_become_worse_are_named(results: Results) -> None:
    assert results.volume_frame is not None
    frame = results.volume_frame.copy()
    chosen = (frame.method == "TS") & (frame.label == "1")
    frame.loc[chosen, "predicted"] = 1.5 * frame.loc[chosen, "true"]
    (sentence,) = recommend(replace(results, volume_frame=frame)).worse
    assert sentence.startswith("It changes the error of the expected volume of '1' from ")
    assert sentence.endswith(" % to +50.0 %.")


def test_differences_are_paired_by_image(results: Results) -> None:
    gap = difference(results, "TS", "UC")
    means = results.frame.query("region == 'all' and metric == 'nll'").groupby("method").value.mean()
    assert gap.value == pytest.approx(means["TS"] - means["UC"])
    assert gap.low <= gap.value <= gap.high < 0
    assert not gap.is_noise


def test_pairs_of_arrays_are_cases() -> None:
    """As arrays or tensors; one calibrator is compared with the uncalibrated scores."""
    pairs = [(case.logits, case.labels) for case in map(scene, range(3))]
    logits, labels = (torch.tensor(np.stack(part)) for part in zip(*pairs, strict=True))
    ts = segcal.create("ts", num_classes=CLASSES).fit([scene(9)])
    named = [Case(str(k), *pair) for k, pair in enumerate(pairs)]
    expected = segcal.evaluate(named, {"UC": None, "TS": ts}, num_classes=CLASSES, patch_size=8).to_frame()
    for given in (pairs, zip(logits, labels, strict=True)):
        assert segcal.evaluate(given, ts, patch_size=8).to_frame().equals(expected)
    assert segcal.evaluate(pairs, ts, patch_size=8, limits=True).limits_frame is not None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((3, 4, 4)), r"pairs \(logits, labels\), got ndarray"),
        ((np.zeros((2, 3, 4, 4)), np.zeros((2, 4, 4))), r"labels of an image must have shape .* one pair per image"),
    ],
)
def test_anything_else_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        segcal.evaluate([wrong], {"UC": None}, num_classes=3)


def blobs(seed: int) -> Case:
    """Two structures in a large background, on which the network is confident and right."""
    random = np.random.default_rng(seed)
    labels = np.zeros((32, 32), np.uint8)
    labels[4:12, 5:14], labels[18:26, 10:20] = 1, 2
    logits = 3.0 * np.eye(3)[labels].transpose(2, 0, 1) + 2 * random.normal(size=(3, 32, 32))
    logits[0] += 9.0 * (labels == 0)
    return Case(f"blobs-{seed}", logits.astype(np.float32), labels)


def test_an_unnamed_background_is_reported_with_the_scores_without_it() -> None:
    cases = [blobs(k) for k in range(3)]
    plain = segcal.evaluate(cases, {"UC": None}, num_classes=3, patch_size=8)
    named = segcal.evaluate(cases, {"UC": None}, num_classes=3, patch_size=8, background=0)
    about = plain.settings["unnamed_background"]
    pooled = named.pooled().query("region == 'all'").set_index("metric")["value"]
    assert (about["class"], about["name"]) == (0, "0")
    assert about["scores"]["UC"] == pytest.approx({name: pooled[name] for name in about["scores"]["UC"]})
    (note,) = [text for text in plain.settings["warnings"] if "covers" in text]
    covered = f"{100 * about['fraction']:.0f}\xa0%"
    assert note.startswith(f"class '0' covers {covered} of the labelled pixels: UC has an ECE of ")
    assert note.endswith("set background=0 (--background 0)")
    assert "unnamed_background" not in named.settings
    assert set(plain.frame.region) == set(named.frame.region)


def test_surfaces_leave_out_the_background_and_say_so() -> None:
    cases = [blobs(k) for k in range(3)]
    plain = segcal.evaluate(cases, {"UC": None}, num_classes=3, patch_size=8, surfaces=True)
    named = segcal.evaluate(cases, {"UC": None}, num_classes=3, patch_size=8, surfaces=True, background=0)
    assert plain.surfaces().equals(named.surfaces())
    assert set(plain.surfaces()["label"]) == {"1", "2"}
    for results in (plain, named):
        assert results.surface_table().title.endswith("without the background '0'")


def test_another_background_than_that_of_the_fit_is_reported() -> None:
    cases = [blobs(k) for k in range(2)]
    ts = segcal.create("ts", num_classes=3, background=0).fit([blobs(9)])
    found = segcal.evaluate(cases, {"TS": ts}, num_classes=3, patch_size=8).settings["warnings"]
    assert "TS was fitted with background=0 and is measured without a background; use the same for both" in found
    found = segcal.evaluate(cases, {"TS": ts}, num_classes=3, patch_size=8, background=0).settings["warnings"]
    assert not any("was fitted with" in text for text in found)


def test_the_rule_of_the_paper_keeps_every_patch_with_pixels() -> None:
    cases = [blobs(k) for k in range(2)]
    ours, paper = (
        segcal.evaluate(cases, {"UC": None}, num_classes=3, background=0, patch_size=8, patch_rule=rule).patches()
        for rule in ("labelled", "paper")
    )
    few = (paper["pixels"] > 0) & (paper["pixels"] < 0.05 * 64)
    assert few.any()
    assert (ours[few]["pixels"] == 0).all()
    assert ours[~few].equals(paper[~few])


def test_a_method_that_returns_probabilities_is_refused() -> None:
    with pytest.raises(InputError, match="must return calibrated logits, got probabilities for case 'scene-0'"):
        segcal.evaluate([scene(0)], {"mine": lambda logits: logits.softmax(dim=1)}, num_classes=CLASSES)
