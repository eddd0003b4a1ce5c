"""The floor: what a perfectly calibrated network scores on the same pixels, and what it expects of volumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal

from segcal import evaluate
from segcal.data.sample.scenes import simulate
from segcal.evaluation.measure import LEAST_SHARE
from segcal.evaluation.results import Results
from segcal.functional.draws import draw_labels, generator_of
from segcal.types import Case
from support import references
from support.slow_evaluation import (
    IGNORED,
    METHODS,
    PROTOCOL,
    SIZES,
    assert_readings,
    make_cases,
    methods,
    patch_mask,
    slow,
    slow_regions,
)

SETTINGS: dict[str, Any] = {**PROTOCOL, "floor": True}


@pytest.fixture(scope="module")
def results() -> Results:
    return evaluate(make_cases(), methods(), **SETTINGS)


def redrawn(case: Case, temperature: float) -> Case:
    logits = torch.from_numpy(np.asarray(case.logits) / np.float32(temperature))
    labels = np.asarray(case.labels).astype(np.int64)
    drawn = draw_labels(logits, torch.from_numpy(labels), generator_of(0, case.name)).numpy()
    return replace(case, labels=np.where(labels == IGNORED, IGNORED, drawn))


@pytest.mark.parametrize("method", METHODS)
def test_floor_against_the_slow_reference(results: Results, method: str) -> None:
    """Labels are redrawn from the method's probabilities; regions and patches stay those of the true labels."""
    patches = results.redrawn.patches()
    for case in make_cases():
        other = redrawn(case, METHODS[method])
        assert (np.asarray(other.labels) != np.asarray(case.labels)).any()
        for region, mask in slow_regions(case).items():
            chosen = {"case": case.name, "method": method, "region": region}
            assert_readings(results.floor(), slow(other, METHODS[method], mask), **chosen)
        for patch, rows in patches[(patches.case == case.name) & (patches.method == method)].groupby("patch"):
            patch_of = patch_mask(case, rows.origin.iloc[0])
            inside = slow_regions(case)["all"] & patch_of
            if inside.sum() < LEAST_SHARE * patch_of.sum():
                inside = np.zeros_like(inside)  # too few labelled pixels to count
            assert_readings(rows, slow(other, METHODS[method], inside), patch=patch)


def test_floor_has_the_rows_of_the_frame(results: Results) -> None:
    keys = ["case", "method", "region", "metric", "pixels"]
    named = results.to_frame().region != "local-max"  # another patch may be the worst
    assert_frame_equal(results.floor()[named][keys], results.to_frame()[named][keys])


def test_measuring_the_floor_changes_nothing_else(results: Results) -> None:
    usual = evaluate(make_cases(), methods(), **PROTOCOL)
    for read in (Results.to_frame, Results.patches, Results.pooled, Results.curves, Results.volumes):
        assert_frame_equal(read(results), read(usual))
    assert usual.redrawn is None


def test_floor_depends_on_name_and_seed_alone(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["case", "method", "region", "metric"]
    by_case = results.floor().sort_values(keys, ignore_index=True)
    monkeypatch.setattr("segcal.cases.stream.SLAB", 2 * 3 * SIZES[2][1])
    again = evaluate(make_cases()[::-1], methods(), **SETTINGS).floor()
    assert_frame_equal(again.sort_values(keys, ignore_index=True), by_case, rtol=1e-12)
    other = evaluate(make_cases(), methods(), **{**SETTINGS, "seed": 1}).floor()
    assert not np.array_equal(other.value, results.floor().value)


def calibrated(count: int = 8) -> list[Case]:
    """Scenes whose logits are those that their labels were drawn from."""
    scenes = simulate(count, num_classes=4, size=(48, 48), contrast=2.0, seed=3)
    return [replace(scene.case, logits=scene.true_logits) for scene in scenes]


def test_a_calibrated_network_stands_on_its_floor() -> None:
    found = evaluate(calibrated(), {"UC": None}, num_classes=4, patch_size=16, floor=True)
    table = found.summary().set_index(["region", "metric"])
    for region in ("all", "local-avg", "local-max"):
        for metric in ("ece", "sce", "ace"):
            row = table.loc[(region, metric)]
            assert row["floor"] > 0.005  # chance alone is seen
            assert row["mean"] == pytest.approx(row["floor"], rel=0.2)
    pooled = found.pooled().set_index(["region", "metric"]).value["all"]
    assert abs(pooled["ece-debiased"]) < pooled["ece"] / 2
    assert pooled["ece-smooth"] < 0.02


def test_a_wrong_network_stands_above_its_floor() -> None:
    cases = [replace(case, logits=4 * np.asarray(case.logits)) for case in calibrated()]
    table = evaluate(cases, {"UC": None}, num_classes=4, patch_size=16, floor=True).summary()
    rows = table[(table.metric == "ece") & (table.region != "boundary")]
    assert (rows["low"] > 5 * rows["floor"]).all()


def test_volumes_are_sums_over_all_labelled_pixels(results: Results) -> None:
    volumes = results.volumes().set_index(["case", "method", "label"])
    assert len(volumes) == 3 * 2 * 3
    for case in make_cases():
        labels = np.asarray(case.labels)
        known = labels != IGNORED
        for method, temperature in METHODS.items():
            probs = references.softmax((np.asarray(case.logits) / np.float32(temperature))[:, known].astype(float))
            for c in range(3):
                row = volumes.loc[(case.name, method, str(c))]
                assert row["predicted"] == pytest.approx(probs[c].sum(), rel=1e-9)
                assert row["true"] == (labels == c).sum()


def test_volume_bias_pools_cases(results: Results) -> None:
    bias, volumes = results.volume_bias(), results.volumes()
    assert list(bias) == ["method", "label", "predicted", "true", "bias", "low", "high"]
    for row in bias.itertuples():
        own = volumes[(volumes.method == row.method) & (volumes.label == row.label)]
        assert row.bias == pytest.approx(own.predicted.sum() / own.true.sum() - 1)
        assert row.low <= row.bias <= row.high
    found = evaluate(calibrated(), {"UC": None}, num_classes=4).volume_bias()
    assert (found.bias.abs() < 0.02).all()


def test_bins_are_those_of_the_pooled_ece(results: Results) -> None:
    found = results.sensitivity()
    assert found.bins.tolist()[:96] == list(range(5, 101))
    pooled = results.pooled()
    for row in found[found.bins == 10].itertuples():
        own = (pooled.method == row.method) & (pooled.region == row.region) & (pooled.metric == "ece")
        assert row.ece == pytest.approx(pooled[own].value.item(), abs=0.01)


def test_smooth_and_debiased_do_not_depend_on_the_form() -> None:
    further = ["ece-smooth", "ece-debiased", "nll-calibration", "brier-resolution"]
    by_form = [
        evaluate(make_cases(), methods(), **{**PROTOCOL, "form": form}) for form in ("tables", "marginal", "equations")
    ]
    first = by_form[0].pooled()
    for found in by_form[1:]:
        rows = found.pooled()
        for name in further:
            np.testing.assert_allclose(rows[rows.metric == name].value, first[first.metric == name].value, rtol=1e-12)
        assert_frame_equal(found.sensitivity(), by_form[0].sensitivity())


def test_the_table_shows_floors(results: Results) -> None:
    table = results.table(reference="TS", floor=True)
    patches = results.redrawn.patches()
    own = patches[(patches.method == "TS") & (patches.metric == "ece")].value.dropna()
    assert table.floors[("TS", "ece", "local-avg")].mean == pytest.approx(own.mean())
    assert str(table).count("  floor  ") == 10  # below both methods, in a block for each metric and the quality
    assert not results.table(reference="TS").floors
