"""Thresholds, risk against coverage and volumes against loops over every pixel, and their guarantees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import segcal
from segcal.evaluation.decisions import Decisions, decide, decision_tables, new_volumes
from segcal.evaluation.decisions.decide import STEPS, thresholds
from segcal.functional.probability import probabilities
from segcal.tables.numbers import percent, threshold_number
from segcal.text import CalibrationWarning
from segcal.types import Case, InputError
from support.scenes import simulated

CLASSES = 3


def drawn_cases(seed: int, count: int, groups: bool = False, size: tuple[int, ...] = (12, 10)) -> list[Case]:
    """Images whose labels follow the softmax of their logits, harder in some than in others; label 9 is ignored."""
    random = np.random.default_rng(seed)
    cases = []
    for k in range(count):
        logits = random.normal(size=(CLASSES, *size)) * random.uniform(0.5, 4)
        probs = probabilities(torch.from_numpy(logits)[None])[0].numpy()
        labels = (random.random(size) > np.cumsum(probs, axis=0)[:-1]).sum(axis=0)
        labels[random.random(size) < 0.05] = 9
        group = f"g{k // 3}" if groups else None
        cases.append(Case(f"{seed}-{k:03d}", logits.astype(np.float32), labels, spacing=(2.0, 3.0), group=group))
    return cases


def learned(cases: list[Case], **options: float) -> Decisions:
    return decide(cases, {"UC": None}, num_classes=CLASSES, ignore_index=9, **options)


def probs_of(case: Case) -> np.ndarray:
    return probabilities(torch.as_tensor(case.logits)[None].double())[0].numpy()


def slow_threshold(cases: list[Case], label: int, risk: float) -> float:
    """The largest of the thresholds for which the bound holds, from the sorted probabilities of each image."""
    groups: dict[str, list[np.ndarray]] = {}
    for case in cases:
        own = probs_of(case)[label][np.asarray(case.labels) == label]
        if own.size:
            groups.setdefault(case.group or case.name, []).append(own)
    missed = [
        np.mean([np.searchsorted(np.sort(own), thresholds(), "left") / own.size for own in members], axis=0)
        for members in groups.values()
    ]
    within = [k for k in range(STEPS) if (sum(loss[k] for loss in missed) + 1) / (len(missed) + 1) <= risk]
    return float(thresholds()[max(within, default=0)])


@pytest.mark.parametrize("groups", [False, True])
def test_thresholds_are_those_of_a_loop_over_pixels(groups: bool) -> None:
    cases = drawn_cases(1, 24, groups)
    found = learned(cases, risk=0.2).thresholds.set_index("label")
    for label in range(CLASSES):
        row = found.loc[str(label)]
        assert row.threshold == slow_threshold(cases, label, 0.2) > 0
        own = [(probs_of(case)[label], np.asarray(case.labels)) for case in cases]
        kept = sum(int(((p >= row.threshold) & (y != 9)).sum()) for p, y in own)
        hits = sum(int(((p >= row.threshold) & (y == label)).sum()) for p, y in own)
        true = sum(int((y == label).sum()) for _, y in own)
        assert row.precision == pytest.approx(hits / kept)
        assert row["size"] == pytest.approx(kept / true)
        assert (row.images, row.groups, row.needed) == (24, 8 if groups else 24, 4)
        if not groups:
            missed = np.mean([(p[y == label] < row.threshold).mean() for p, y in own])
            assert row.missed == pytest.approx(missed)
            argmax = [(probs_of(c).argmax(0)[np.asarray(c.labels) == label] != label).mean() for c in cases]
            assert row.by_label == pytest.approx(np.mean(argmax))


def test_thresholds_tried() -> None:
    tried = thresholds()
    assert len(tried) == STEPS
    assert tried[0] == 0
    assert (np.diff(tried) >= 0).all()
    assert (np.diff(tried)[tried[1:] < 1 - 1e-14] > 0).all()  # closer to 1, float64 has too few numbers
    assert tried[-1] == 1
    half = tried[(tried > 0) & (tried <= 0.5)]
    np.testing.assert_array_equal(half, half.astype(np.float32))
    middle = tried[(tried > 1e-6) & (tried < 0.5)]
    assert (np.diff(middle) / middle[:-1]).max() <= 1 / 64


def test_keep_reaches_thresholds_that_rounding_falls_short_of() -> None:
    """Shares of eight votes lie on thresholds, and a softmax in float32 of their logarithms may be just below."""
    shifts = 3 * torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    logits = torch.tensor([0.625, 0.125, 0.25]).log().unsqueeze(1) + shifts
    logits = logits[:, logits.double().softmax(0)[2] >= 0.25][:, :2000].reshape(CLASSES, 20, 10, 10).transpose(0, 1)
    cases = [Case(f"{k}", scores, np.full((10, 10), 2)) for k, scores in enumerate(logits)]
    rules = decide(cases, {"UC": None}, num_classes=CLASSES, risk=0.1)
    assert float(rules.threshold("UC")[2]) == 0.25
    single = logits.softmax(1)
    assert (single[:, 2] < 0.25).any(), "or nothing is tested"
    for probs in (logits.double().softmax(1), single, single.half(), single.bfloat16()):
        assert rules.keep(probs, "UC")[:, 2].all()


def test_keep_gives_the_pixels_above_the_threshold() -> None:
    cases = drawn_cases(2, 30)
    rules = learned(cases, risk=0.1)
    probs = torch.from_numpy(probs_of(cases[0])).float()[None]
    kept = rules.keep(probs, "UC")
    limits = rules.threshold("UC")
    assert rules.threshold("uc").equal(limits)
    for label in range(CLASSES):
        assert torch.equal(kept[0, label], probs[0, label] >= limits[label].float())
    with pytest.raises(InputError, match=r"must have shape \(B, 3, \*S\)"):
        rules.keep(probs[:, :2], "UC")
    with pytest.raises(InputError, match="must be one of UC, got 'LTS'"):
        rules.threshold("LTS")


def test_the_guarantee_holds_on_new_images() -> None:
    """Over many data sets of 19 images, the share missed in the 20th stays below the risk, and is near it."""
    missed = []
    for seed in range(30):
        cases = drawn_cases(100 + seed, 20, size=(8, 8))
        limits = learned(cases[:-1], risk=0.2).threshold("UC").numpy()
        probs, labels = probs_of(cases[-1]), np.asarray(cases[-1].labels)
        missed += [(probs[c][labels == c] < limits[c]).mean() for c in range(CLASSES) if (labels == c).any()]
    error = np.std(missed) / np.sqrt(len(missed))
    assert np.mean(missed) <= 0.2 + 2 * error
    assert np.mean(missed) > 0.1


def test_left_out_risk_is_refitting_without_each_image() -> None:
    cases = drawn_cases(3, 12)
    row = learned(cases, risk=0.25).thresholds.set_index("label").loc["1"]
    missed = []
    for k, case in enumerate(cases):
        limit = slow_threshold(cases[:k] + cases[k + 1 :], 1, 0.25)
        missed.append((probs_of(case)[1][np.asarray(case.labels) == 1] < limit).mean())
    assert row.left_out == pytest.approx(np.mean(missed))


def test_too_few_images_keep_everything() -> None:
    rules = learned(drawn_cases(4, 5), risk=0.1)
    assert (rules.thresholds["threshold"] == 0).all()
    assert (rules.thresholds["needed"] == 9).all()
    assert np.isinf(rules.intervals["radius"]).all()
    assert (rules.volumes["low"] == 0).all()
    assert rules.to_dict()["intervals"][0]["radius"] is None


def test_tables_say_how_many_images_or_groups_are_needed() -> None:
    for groups, units in ((False, "images"), (True, "groups")):
        thresholds, risks, volumes = decision_tables(learned(drawn_cases(4, 5, groups), risk=0.1))
        assert [row[:3] for row in thresholds.rows] == [("UC", str(k), f"0 (needs 9 {units})") for k in range(CLASSES)]
        assert {row[4] for row in volumes.rows} == {f"needs 9 {units}"}
        assert f"the threshold of all other {units}" in thresholds.note
        assert [row[:2] for row in risks.rows] == [("UC", "pixels"), ("UC", "images")]
    found = learned(drawn_cases(2, 30), risk=0.1)
    thresholds, risks, _ = decision_tables(found)
    row, curve = found.thresholds.iloc[0], found.curves.query("unit == 'pixels' and coverage == 0.5")
    assert thresholds.rows[0][2:4] == (threshold_number(row["threshold"]), percent(row["missed"], 1))
    assert risks.rows[0][2] == percent(curve["risk"].item(), 1)


def test_a_class_that_is_nowhere() -> None:
    case = drawn_cases(5, 1)[0]
    rules = learned([Case("a", case.logits, np.zeros((12, 10), int))])
    row = rules.thresholds.set_index("label").loc["2"]
    assert (row.threshold, row.images) == (0, 0)
    assert np.isnan(row.missed)


def test_volumes_are_sums_of_probabilities_with_conformal_intervals() -> None:
    cases = drawn_cases(6, 15)
    rules = learned(cases, level=0.8)
    assert rules.intervals["left_out"].between(0.6, 1).all()
    errors, scales = [], []
    for case in cases:
        labelled = np.asarray(case.labels) != 9
        own = probs_of(case)[1][labelled]
        rows = rules.volumes[(rules.volumes["case"] == case.name) & (rules.volumes["label"] == "1")]
        assert float(rows["expected"].iloc[0]) == pytest.approx(6 * own.sum())
        assert float(rows["true"].iloc[0]) == 6 * (np.asarray(case.labels) == 1).sum()
        errors.append(abs(own.sum() - (np.asarray(case.labels) == 1).sum()))
        scales.append(np.minimum(own, 1 - own).sum() + 1)
    scores = np.array(errors) / np.array(scales)
    radius = float(rules.intervals.set_index("label").loc["1", "radius"])
    assert radius == pytest.approx(np.sort(scores)[12])  # ceil(16 * 0.8) = 13
    first = rules.volumes[(rules.volumes["case"] == cases[0].name) & (rules.volumes["label"] == "1")].iloc[0]
    others = np.sort(scores[1:])[11]  # ceil(15 * 0.8) = 12
    assert first["high"] - first["expected"] == pytest.approx(6 * others * scales[0])


def test_volumes_of_new_images_are_covered() -> None:
    cases = drawn_cases(7, 40)
    rules = learned(cases, level=0.9)
    new = drawn_cases(8, 60)
    found = new_volumes([Case(c.name, c.logits, None, spacing=c.spacing) for c in new], {"UC": None}, rules)
    assert list(found.columns) == ["case", "method", "label", "expected", "low", "high", "unit"]
    assert set(found["unit"]) == {rules.volume_unit} == {"mm^2"}
    inside = []
    for row in found.itertuples():
        case = next(c for c in new if c.name == row.case)
        whole = np.asarray(case.labels) != 9
        true = 6 * (np.asarray(case.labels) == int(row.label)).sum() / whole.mean()  # the ignored 5 % are like the rest
        inside.append(row.low <= true <= row.high)
    assert 0.8 <= np.mean(inside) <= 1
    with pytest.raises(InputError, match="were learned for UC, got 'TS'"):
        new_volumes(new, {"TS": None}, rules)


def test_risk_against_coverage_is_that_of_sorted_pixels() -> None:
    cases = simulated(4, num_classes=CLASSES, size=(20, 18))
    rules = decide(cases, {"UC": None}, num_classes=CLASSES)
    confidence = np.concatenate([probs_of(case).max(axis=0).ravel() for case in cases])
    wrong = np.concatenate([(probs_of(c).argmax(axis=0) != np.asarray(c.labels)).ravel() for c in cases])
    ordered = wrong[np.argsort(-confidence, kind="stable")]
    exact = (np.cumsum(ordered) / np.arange(1, len(ordered) + 1)).mean()
    pixels = rules.selective[rules.selective["unit"] == "pixels"].iloc[0]
    assert pixels["low"] <= exact <= pixels["high"]
    assert pixels["risk"] == pytest.approx(wrong.mean())
    assert pixels["count"] == len(wrong)
    curve = rules.curves[rules.curves["unit"] == "pixels"]
    half = curve[curve["coverage"] == 0.5].iloc[0]
    assert half["risk"] == pytest.approx(ordered[: len(ordered) // 2].mean(), abs=2e-3)
    images = rules.selective[rules.selective["unit"] == "images"].iloc[0]
    errors = wrong.reshape(4, -1).mean(axis=1)
    order = np.argsort(-confidence.reshape(4, -1).mean(axis=1))
    assert images["aurc"] == pytest.approx((np.cumsum(errors[order]) / np.arange(1, 5)).mean())


def test_methods_are_compared_and_leaks_reported() -> None:
    cases = simulated(6, num_classes=CLASSES, size=(16, 16))
    scaling = segcal.create("ts", CLASSES).fit(cases[:3])
    renamed = [replace(case, name=f"copy of {case.name}") for case in cases]
    with pytest.warns(CalibrationWarning, match="TS was fitted on 3 of these 6 cases: its guarantees") as caught:
        rules = decide(renamed, {"UC": None, "TS": scaling}, num_classes=CLASSES)
    assert rules.methods == ("UC", "TS")
    assert rules.settings["warnings"] == [str(caught[0].message)]
    other = [replace(case, name=cases[k].name) for k, case in enumerate(cases[3:])]
    assert decide(other, {"TS": scaling}, num_classes=CLASSES).settings["warnings"] == []
    areas = rules.selective.set_index(["unit", "method"])["risk"]
    assert areas["pixels", "UC"] == areas["pixels", "TS"]  # temperatures keep every label


def masked_cases(seed: int, count: int, channels: int) -> list[Case]:
    """Images of overlapping channels whose masks follow the sigmoid of their logits; label 9 is ignored."""
    random = np.random.default_rng(seed)
    cases = []
    for k in range(count):
        logits = random.normal(size=(channels, 9, 8)) * random.uniform(1, 3)
        masks = (logits + random.logistic(size=logits.shape) > 0).astype(int)
        masks[:, random.random(masks.shape[1:]) < 0.05] = 9
        cases.append(Case(f"{seed}-{k:03d}", logits.astype(np.float32), masks, spacing=(2.0, 3.0)))
    return cases


@pytest.mark.parametrize("channels", [1, 3])
def test_rules_of_sigmoid_channels_are_those_of_a_loop_over_pixels(channels: int) -> None:
    cases = masked_cases(10, 16, channels)
    names = ["whole", "core", "enhancing"][:channels]
    rules = decide(
        cases, {"UC": None}, num_classes=channels, activation="sigmoid", ignore_index=9, class_names=names, risk=0.2
    )
    assert rules.class_names == rules.channels == tuple(names)
    limits = rules.threshold("UC")
    assert rules.threshold("uc").equal(limits)
    for k, name in enumerate(names):
        probs = [1 / (1 + np.exp(-np.asarray(case.logits[k], np.float64))) for case in cases]
        masks = [np.asarray(case.labels[k]) for case in cases]
        both = list(zip(probs, masks, strict=True))
        missed = [np.searchsorted(np.sort(p[m == 1]), thresholds()) / (m == 1).sum() for p, m in both]
        safe = (np.sum(missed, axis=0) + 1) / (len(cases) + 1) <= 0.2
        assert limits[k] == thresholds()[safe.nonzero()[0].max()]
        areas = rules.selective.set_index(["channel", "unit"]).loc[(name, "pixels")]
        assert areas["count"] == sum(int((m != 9).sum()) for m in masks)
        wrong = sum(int(((p > 0.5) != (m == 1))[m != 9].sum()) for p, m in both)
        assert areas["risk"] == pytest.approx(wrong / areas["count"])
        volume = rules.volumes.set_index(["case", "label"]).loc[(cases[0].name, name)]
        assert volume["expected"] == pytest.approx(6 * probs[0][masks[0] != 9].sum())
        assert volume["true"] == 6 * (masks[0] == 1).sum()
    shown = torch.as_tensor(cases[0].logits)[None].sigmoid()
    assert torch.equal(rules.keep(shown, "UC"), shown >= limits.float().view(1, -1, 1, 1))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("risk", [None], "'risk' must be a number between 0 and 1, got "),
        ("level", 90, "'level' must be a number between 0 and 1, got 90"),
        ("groups", [1], r"'groups\[0\]' must be a text or null, got 1"),
        ("warnings", "none", "'warnings' must be a list, got 'none'"),
    ],
)
def test_settings_of_wrong_types_are_refused(tmp_path: Path, name: str, value: object, expected: str) -> None:
    """Even with right checksums."""
    rules = learned(drawn_cases(9, 4))
    replace(rules, settings={**rules.settings, name: value}).save(tmp_path / "rules")
    with pytest.raises(InputError, match=expected):
        Decisions.load(tmp_path / "rules")


@pytest.mark.parametrize("channels", [1, 2])
def test_calibrators_of_sigmoid_heads_decide_and_leak_by_content(channels: int, tmp_path: Path) -> None:
    cases = masked_cases(11, 12, channels)
    options = {"num_classes": channels, "activation": "sigmoid", "ignore_index": 9}
    scaling = segcal.create("ts", **options).fit([replace(case, name=f"x{k}") for k, case in enumerate(cases[:2])])
    assert all(scaling.fit_report_.fingerprints)
    with pytest.warns(CalibrationWarning, match="TS was fitted on 2 of these 12 cases: its guarantees"):
        decide(cases, {"TS": scaling}, **options)
    rules = decide(cases[2:], {"UC": None, "TS": scaling}, **options)
    risk = rules.selective.set_index(["channel", "unit", "method"])["risk"]
    for name in rules.channels:
        assert risk[name, "pixels", "UC"] == risk[name, "pixels", "TS"]  # temperatures keep every label
    rules.save(tmp_path / "rules")
    again = Decisions.load(tmp_path / "rules")
    assert again.settings == rules.settings
    new = [replace(case, labels=None) for case in cases[:2]]
    found = new_volumes(new, {"TS": scaling}, again)
    assert found["label"].tolist() == [*rules.class_names] * 2
    probs = scaling.predict_proba(torch.as_tensor(new[1].logits)[None])[0]
    assert found["expected"].tolist()[channels:] == pytest.approx(6 * probs.double().sum(dim=(1, 2)).numpy(), rel=1e-5)
    with pytest.raises(InputError, match="was built for num_classes=3"):
        new_volumes(new, {"UC": segcal.create("ts", 3)}, again)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("selective.csv", "channel", "chan"),
        ("thresholds.csv", "UC", "XX"),
        ("thresholds.csv", "0.1", "0.2"),
        ("segcal.json", '"risk": 0.1', '"risk": 0.4'),
    ],
)
def test_changed_rules_are_refused(tmp_path: Path, file: str, old: str, new: str) -> None:
    learned(drawn_cases(9, 4)).save(tmp_path / "rules")
    path = tmp_path / "rules" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(
        InputError, match=r"must be (as they were saved|a table that segcal wrote), .*; run 'segcal decide' again"
    ):
        Decisions.load(tmp_path / "rules")


@pytest.mark.parametrize("table", ["thresholds", "intervals", "volumes"])
def test_rules_without_a_class_are_refused(tmp_path: Path, table: str) -> None:
    """Also if every checksum is right."""
    rules = learned(drawn_cases(9, 4))
    rows = getattr(rules, table)
    replace(rules, **{table: rows[rows["label"] != rules.class_names[0]]}).save(tmp_path / "rules")
    with pytest.raises(InputError, match="must have a rule for each class, got others; run 'segcal decide' again"):
        Decisions.load(tmp_path / "rules")


def test_rules_without_curves_are_not_shown() -> None:
    rules = learned(drawn_cases(9, 4))
    with pytest.raises(InputError, match="must have every coverage, got fewer"):
        decision_tables(replace(rules, curves=rules.curves.iloc[:0]))


def test_saved_and_loaded(tmp_path: Path) -> None:
    rules = learned(drawn_cases(9, 12))
    rules.save(tmp_path / "rules")
    again = Decisions.load(tmp_path / "rules")
    for name in ("thresholds", "curves", "selective", "intervals", "volumes"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(rules, name), check_dtype=False)
    assert again.settings == rules.settings
    segcal.create("ts", CLASSES, ignore_index=9).fit(drawn_cases(9, 1)).save(tmp_path / "ts")
    with pytest.raises(InputError, match="holds no decisions"):
        Decisions.load(tmp_path / "ts")
    marker = tmp_path / "rules" / "segcal.json"
    marker.write_text(marker.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(InputError, match="saved by another version of segcal; run 'segcal decide' again"):
        Decisions.load(tmp_path / "rules")


def test_volumes_name_their_unit() -> None:
    plain = [replace(case, spacing=None) for case in drawn_cases(9, 4)]
    assert learned(plain).volume_unit == "pixels"
    assert learned([*drawn_cases(9, 1), *plain[1:]]).volume_unit == "mm^2 or pixels"
    deep = [replace(case, logits=np.stack([case.logits] * 2, 1), labels=np.stack([case.labels] * 2)) for case in plain]
    assert learned(deep).volume_unit == "voxels"
    assert learned([replace(case, spacing=(1.0, 2.0, 3.0)) for case in deep]).volume_unit == "mm^3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"risk": 1.0}, "risk must lie between 0 and 1, got 1.0"),
        ({"level": 0.0}, "level must lie between 0 and 1, got 0.0"),
        ({"num_classes": 1}, r"logits must have shape \(1, \*S\) with num_classes=1, got \(3, 12, 10\)"),
        ({"activation": "sigmoid"}, r"labels of a sigmoid head must have shape \(3, 12, 10\)"),
        ({"class_names": ["a"]}, "class_names must be 3 different names"),
    ],
)
def test_settings_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decide(drawn_cases(0, 1), {"UC": None}, **{"num_classes": CLASSES, **options})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one case"):
        decide([], {"UC": None}, num_classes=CLASSES)
