"""The evaluation against slow loops over pixels, and the promises of the protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

import segcal
from segcal import CalibrationSuite, evaluate
from segcal.evaluation.results import Results
from segcal.functional.catalogue import METRICS
from segcal.functional.fingerprint import fingerprint
from segcal.functional.geometry import boundary, foreground
from segcal.regions import REGIONS
from segcal.statistics.bootstrap import expanded_shares
from segcal.text import CalibrationWarning
from segcal.types import Case, InputError
from support import references
from support.slow_evaluation import (
    HIGHER,
    IGNORED,
    METHODS,
    PROTOCOL,
    SIZES,
    assert_readings,
    fixed_temperature,
    make_cases,
    methods,
    patch_mask,
    slow,
    slow_regions,
    value_of,
)

MASKED = {name for name, region in REGIONS.items() if region.mask is not None}


@pytest.fixture(scope="module", params=[2, 3], ids=["2d", "3d"])
def dims(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def results(dims: int) -> Results:
    return evaluate(make_cases(dims), methods(), **PROTOCOL)


# --------------------------------------------------------------------------------------------------------------------
# values


def test_frame_is_as_designed(results: Results, dims: int) -> None:
    frame = results.to_frame()
    assert list(frame.columns) == ["case", "method", "region", "metric", "value", "pixels"]
    assert list(frame.region.unique()) == list(REGIONS)
    assert set(frame.metric) == set(METRICS) >= {"ece", "mce", "sce", "ace", "nll", "brier", "accuracy", "miou"}
    assert list(frame.method.unique()) == list(results.methods) == ["UC", "TS"]
    assert {name: results.settings[name] for name in PROTOCOL} == {**PROTOCOL, "ignore_index": [IGNORED]}
    assert list(frame.case.unique()) == [case.name for case in make_cases(dims)]
    assert len(frame) == 3 * 2 * len(REGIONS) * len(METRICS)
    assert not frame.duplicated(["case", "method", "region", "metric"]).any()
    assert list(results.patches().columns) == ["case", "method", "patch", "origin", "metric", "value", "pixels"]
    patches = results.patches()
    assert len(patches) == 3 * 2 * 4 * len(METRICS)
    by_method = [rows.origin.tolist() for _, rows in patches.groupby("method")]
    assert by_method[0] == by_method[1]
    assert list(results.pooled().columns) == ["method", "region", "metric", "value", "low", "high", "images", "pixels"]


def test_frames_are_copies(results: Results) -> None:
    for read in (results.to_frame, results.patches, results.pooled):
        mine = read()
        mine.loc[:, "value"] = -1.0
        assert not (read().value == -1.0).any()


@pytest.mark.parametrize("method", METHODS)
def test_regions_against_the_slow_reference(results: Results, dims: int, method: str) -> None:
    for case in make_cases(dims):
        for region, mask in slow_regions(case).items():
            expected = slow(case, METHODS[method], mask)
            assert expected["pixels"] > 0
            assert_readings(results.to_frame(), expected, case=case.name, method=method, region=region)


@pytest.mark.parametrize("method", METHODS)
def test_patches_against_the_slow_reference(results: Results, dims: int, method: str) -> None:
    patches = results.patches()
    for case in make_cases(dims):
        inside = slow_regions(case)["all"]
        chosen = patches[(patches.case == case.name) & (patches.method == method)]
        for patch, rows in chosen.groupby("patch"):
            (origin,) = rows.origin.unique()
            held, whole = inside & patch_mask(case, origin), patch_mask(case, origin)
            few = held.sum() < 0.05 * whole.sum()  # which is measured as if it were empty
            expected = slow(case, METHODS[method], held & ~held if few else held)
            assert_readings(rows, expected, patch=patch)


@pytest.mark.parametrize("metric", METRICS)
def test_local_is_the_mean_and_the_worst_of_the_patches(results: Results, dims: int, metric: str) -> None:
    patches = results.patches()
    assert (patches.pixels == 0).any() == (dims == 2), "an empty patch counts in neither"
    for (case, method), rows in patches[patches.metric == metric].groupby(["case", "method"]):
        held = rows[rows.pixels > 0]
        worst = held.value.min() if metric in HIGHER else held.value.max()
        mean, pixels = value_of(results.to_frame(), case=case, method=method, metric=metric, region="local-avg")
        assert mean == pytest.approx(held.value.mean(), rel=1e-12)
        assert pixels == held.pixels.sum()
        most, size = value_of(results.to_frame(), case=case, method=method, metric=metric, region="local-max")
        assert most == worst
        assert size in set(held.pixels[held.value == worst])


def test_patches_depend_on_the_name_and_the_seed_alone(results: Results, dims: int) -> None:
    def places(cases: Sequence[Case], **changes: Any) -> dict[str, list[str]]:
        found = evaluate(cases, {"X": None}, **{**PROTOCOL, **changes}).patches()
        return {case: rows.origin.tolist() for case, rows in found[found.metric == "ece"].groupby("case")}

    cases = make_cases(dims)
    usual = places(cases)
    assert usual == places(cases[::-1])
    assert usual[cases[1].name] == places(cases[1:2])[cases[1].name]
    assert usual != places(cases, seed=1)
    assert len({str(origins) for origins in usual.values()}) == len(cases)


def test_further_sizes_of_patches_are_as_if_measured_alone() -> None:
    sizes = [3, 5, 9]
    both = segcal.evaluate(make_cases(), methods(), **PROTOCOL, patch_sizes=sizes)
    assert both.settings["patch_sizes"] == sizes
    study = both.patch_sizes()
    pd.testing.assert_frame_equal(pd.DataFrame(both.to_dict()["sizes"]), study)
    assert list(study) == ["case", "method", "size", "region", "metric", "value", "pixels"]
    assert study["size"].unique().tolist() == sizes  # in the order asked for, although the second is the usual one
    for size in sizes:
        alone = segcal.evaluate(make_cases(), methods(), **{**PROTOCOL, "patch_size": size}).to_frame()
        alone = alone[alone.region.str.startswith("local")].reset_index(drop=True)
        own = study[study["size"] == size].drop(columns="size").reset_index(drop=True)
        order = ["case", "method", "region", "metric"]
        assert_frame_equal(
            own.sort_values(order, ignore_index=True),
            alone.sort_values(order, ignore_index=True)[list(own)],
        )
    without = segcal.evaluate(make_cases(), methods(), **PROTOCOL)
    assert_frame_equal(both.to_frame(), without.to_frame())
    with pytest.raises(InputError, match="--patch-sizes"):
        without.patch_sizes()


def test_no_patches_no_local_rows(dims: int) -> None:
    found = evaluate(make_cases(dims), {"UC": None}, **{**PROTOCOL, "patches": 0})
    assert set(found.to_frame().region) == MASKED >= {"all", "boundary"}
    assert found.patches().empty
    assert {region for _, _, region in found.table().cells} == MASKED


@pytest.mark.parametrize("form", ["tables", "equations", "marginal"])
@pytest.mark.parametrize("bins", [1, 4])
def test_forms_and_bins(form: str, bins: int) -> None:
    case = make_cases(count=1)[0]
    found = evaluate([case], methods(), **{**PROTOCOL, "form": form, "bins": bins, "background": None})
    known = np.asarray(case.labels) != IGNORED
    for method, temperature in METHODS.items():
        expected = slow(case, temperature, known, form=form, bins=bins)
        assert_readings(found.to_frame(), expected, method=method, region="all")


def test_edges_of_the_whole_image_for_ace(dims: int) -> None:
    """Regions are counted in bins of all labelled pixels of the image, patches in those of all of the patch."""
    case = make_cases(dims, count=1)[0]
    found = evaluate([case], {"UC": None}, **PROTOCOL, ace_edges="image")
    usual = evaluate([case], {"UC": None}, **PROTOCOL)
    logits, labels = np.asarray(case.logits, np.float64), np.asarray(case.labels)

    def ace(mask: np.ndarray, within: np.ndarray) -> float:
        _, _, everywhere = references.confidences(logits[:, within & (labels != IGNORED)])
        _, predicted, confidence = references.confidences(logits[:, mask])
        edges = references.equal_mass_edges(everywhere, 10)
        cells = references.fill(confidence, predicted == labels[mask], predicted, edges)
        return references.weighted_gaps(cells, int(mask.sum()))

    masks = slow_regions(case)
    for region, mask in masks.items():
        value, _ = value_of(found.to_frame(), region=region, metric="ace")
        assert value == pytest.approx(ace(mask, np.ones_like(mask)))
        assert value != value_of(usual.to_frame(), region=region, metric="ace")[0]
    patches = [frame[(frame.metric == "ace") & (frame.pixels > 0)] for frame in (found.patches(), usual.patches())]
    for row in patches[0].itertuples():
        whole = patch_mask(case, row.origin)
        assert row.value == pytest.approx(ace(masks["all"] & whole, whole))
    assert (patches[0].value != patches[1].value).any()


@pytest.mark.parametrize(("width", "ball"), [(1, False), (3, False), (2, True)])
def test_width_and_shape_of_the_boundary(dims: int, width: int, ball: bool) -> None:
    case = make_cases(dims, count=1)[0]
    found = evaluate([case], {"UC": None}, **PROTOCOL, boundary_width=width, boundary_ball=ball)
    labels = np.asarray(case.labels).astype(np.int64)
    near = references.boundary(labels, width=width, ball=ball) & (labels != IGNORED)
    assert_readings(found.to_frame(), slow(case, 1.0, near), region="boundary")


# --------------------------------------------------------------------------------------------------------------------
# pooled


@pytest.mark.parametrize("form", ["tables", "marginal"])
def test_pooled_is_what_the_suite_pools(dims: int, form: str) -> None:
    cases = make_cases(dims)
    found = evaluate(cases, methods(), **PROTOCOL, form=form).pooled()
    for method, calibrator in methods().items():
        suite = CalibrationSuite(3, IGNORED, regions=("all", "boundary"), form=form)
        for case in cases:
            logits, labels = torch.as_tensor(case.logits)[None], torch.as_tensor(case.labels)[None].long()
            masks = {"all": foreground(labels, IGNORED, background=0), "boundary": boundary(labels, IGNORED)}
            suite.update(logits if calibrator is None else calibrator(logits), labels, masks)
        for region, expected in ((name, suite.compute()[name]) for name in suite.regions):
            for metric in METRICS:
                rows = found[(found.method == method) & (found.region == region) & (found.metric == metric)]
                assert rows.value.item() == pytest.approx(float(expected[metric]), rel=1e-12)
                assert rows.pixels.item() == int(expected["pixels"])
                assert rows.images.item() == len(cases)


def test_intervals_are_of_a_bootstrap_over_images(results: Results, dims: int) -> None:
    """Drawn again by hand for NLL, a ratio of sums over images."""
    frame, pooled = results.to_frame(), results.pooled()
    rows = frame[(frame.method == "UC") & (frame.region == "all") & (frame.metric == "nll")]
    weights = np.random.default_rng(0).multinomial(3, [1 / 3] * 3, size=50)
    drawn = weights @ (rows.value * rows.pixels).to_numpy() / (weights @ rows.pixels.to_numpy())
    (row,) = pooled[(pooled.method == "UC") & (pooled.region == "all") & (pooled.metric == "nll")].itertuples()
    assert (row.low, row.high) == pytest.approx(tuple(np.quantile(drawn, expanded_shares(0.95, 3))), rel=1e-9)
    unknown = pooled.metric.isin(["ace", "ece-smooth"])
    assert pooled[unknown].low.isna().all()
    assert pooled[~unknown].low.notna().all()


def test_one_image_has_no_interval() -> None:
    pooled = evaluate(make_cases(count=1), {"UC": None}, **PROTOCOL).pooled()
    assert pooled.low.isna().all()
    assert pooled.value.notna().all()


@pytest.mark.parametrize("form", ["tables", "marginal"])
def test_curves_against_a_loop_over_pixels(dims: int, form: str) -> None:
    cases = make_cases(dims)
    settings = {**PROTOCOL, "bins": 4, "form": form, "class_names": ["sky", "road", "car"]}
    curves = evaluate(cases, methods(), regions=("all", "boundary"), **settings).curves()
    assert " ".join(curves) == "method region label bin low_edge high_edge count hit confidence low high"
    assert len(curves) == 2 * 2 * (1 + 3) * 4
    expected: dict[tuple[str, str, str, int], list[float]] = {}
    for method, temperature in METHODS.items():
        for case in cases:
            for region, mask in slow_regions(case).items():
                logits = np.asarray(case.logits)[:, mask] / np.float32(temperature)
                _, predicted, confidence = references.confidences(logits)
                for c, p, y in zip(predicted, confidence, np.asarray(case.labels)[mask], strict=True):
                    for label in ("", settings["class_names"][c]):
                        sums = expected.setdefault((method, region, label, math.ceil(4 * p) - 1), [0, 0, 0.0])
                        sums[0] += 1
                        sums[1] += int(c == y)
                        sums[2] += float(p)
    for row in curves.itertuples():
        sums = expected.get((row.method, row.region, row.label, row.bin), [0, 0, 0.0])
        assert [row.count, row.hit] == sums[:2]
        assert row.confidence == pytest.approx(sums[2], abs=1e-9)
        assert (row.low_edge, row.high_edge) == (row.bin / 4, (row.bin + 1) / 4)
        if row.count:
            assert 0 <= row.low <= row.hit / row.count <= row.high <= 1
        else:
            assert np.isnan(row.low)


def test_intervals_of_curves_drawn_by_hand(results: Results, dims: int) -> None:
    """Of the last bin of all pixels: right pixels over pixels, each a sum over the images drawn."""
    hits, counts = [], []
    for case in make_cases(dims):
        mask = slow_regions(case)["all"]
        _, predicted, confidence = references.confidences(np.asarray(case.logits)[:, mask])
        last = confidence > 0.9
        hits.append((predicted == np.asarray(case.labels)[mask])[last].sum())
        counts.append(last.sum())
    weights = np.random.default_rng(0).multinomial(3, [1 / 3] * 3, size=50)
    drawn = weights @ np.array(hits) / (weights @ np.array(counts))
    curves = results.curves()
    (row,) = curves[
        (curves.method == "UC") & (curves.region == "all") & (curves.label == "") & (curves.bin == 9)
    ].itertuples()
    assert (row.low, row.high) == pytest.approx(tuple(np.quantile(drawn, expanded_shares(0.95, 3))), rel=1e-12)


def test_groups_are_drawn_whole() -> None:
    """Two groups that are one image twice give the intervals of two images that are each of them twice."""
    first, second = make_cases(count=2)
    grouped = [replace(case, name=f"{case.name}{k}", group=case.name) for case in (first, second) for k in range(2)]
    settings = {**PROTOCOL, "patches": 0, "regions": ["all", "boundary"]}
    found, single = evaluate(grouped, {"UC": None}, **settings), evaluate([first, second], {"UC": None}, **settings)
    assert found.cases().group.tolist() == [first.name] * 2 + [second.name] * 2
    assert single.cases().to_dict("list") == {"case": [first.name, second.name], "group": ["", ""]}
    for mean in ("nll", "brier", "accuracy", "ece", "miou"):
        rows, alone = (
            frame[frame.metric == mean][["value", "low", "high"]] for frame in (found.pooled(), single.pooled())
        )
        np.testing.assert_allclose(rows, alone, rtol=1e-12)
    ungrouped = evaluate([replace(case, group=None) for case in grouped], {"UC": None}, **settings).pooled()
    wide, narrow = ((frame.high - frame.low)[frame.metric == "nll"] for frame in (found.pooled(), ungrouped))
    assert (wide > narrow).all()


# --------------------------------------------------------------------------------------------------------------------
# how cases are read


@pytest.mark.parametrize("slices", [1, 4])
def test_slabs_equal_the_whole(results: Results, dims: int, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.cases.stream.SLAB", slices * 3 * int(np.prod(SIZES[dims][1:])))
    by_slabs = evaluate(make_cases(dims), methods(), **PROTOCOL)
    assert_frame_equal(by_slabs.to_frame(), results.to_frame(), rtol=1e-12)
    assert_frame_equal(by_slabs.patches(), results.patches(), rtol=1e-12)
    assert_frame_equal(by_slabs.pooled(), results.pooled(), rtol=1e-12)


def test_marginal_slabs_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(make_cases(), methods(), **PROTOCOL, form="marginal")
    monkeypatch.setattr("segcal.cases.stream.SLAB", 100)
    assert_frame_equal(evaluate(make_cases(), methods(), **PROTOCOL, form="marginal").to_frame(), whole.to_frame())


# --------------------------------------------------------------------------------------------------------------------
# regions without pixels, and regions of one's own


@pytest.mark.parametrize(("labelled", "counts"), [(4, False), (5, True)])
def test_a_patch_counts_if_a_twentieth_of_it_is_labelled(labelled: int, counts: bool) -> None:
    logits = np.random.default_rng(0).normal(size=(3, 10, 10)).astype(np.float32)
    labels = np.full((10, 10), IGNORED, np.uint8)
    labels[0, :labelled] = 1
    settings = {**PROTOCOL, "patch_size": 10, "patches": 1, "background": None}
    found = evaluate([Case("a", logits, labels)], {"UC": None}, **settings)
    assert set(found.patches().pixels) == {labelled if counts else 0}
    local = found.to_frame()[found.to_frame().region == "local-max"]
    assert local.value.isna().all() == (not counts)
    assert found.skipped()["patches"] == int(not counts)


def test_empty_regions_are_left_out_and_counted() -> None:
    usual = make_cases(count=2)
    plain = replace(usual[0], name="plain", labels=np.zeros(SIZES[2], np.uint8))
    blank = replace(usual[0], name="blank", labels=np.full(SIZES[2], IGNORED, np.uint8))
    chosen = ("all", "boundary", "local-avg", "local-max")
    found = evaluate([*usual, plain, blank], methods(), regions=chosen, **PROTOCOL)
    rows = found.to_frame()[found.to_frame().case.isin(["plain", "blank"])]
    assert rows.value.isna().all()
    assert (rows.pixels == 0).all()
    own_patches = found.patches()[found.patches().case.isin(["plain", "blank"])]
    assert own_patches.value.isna().all()
    patches = found.patches()
    empty = patches[(patches.method == "UC") & (patches.metric == "ece") & (patches.pixels == 0)]
    assert found.skipped() == {"all": 2, "boundary": 2, "local-avg": 2, "local-max": 2, "patches": len(empty)}
    assert_frame_equal(
        found.pooled().drop(columns=["low", "high", "images"]),
        evaluate(usual, methods(), regions=chosen, **PROTOCOL).pooled().drop(columns=["low", "high", "images"]),
    )
    alone = evaluate(usual, methods(), regions=chosen, **PROTOCOL)
    assert found.table().cells == alone.table().cells


def left_half(case: Case, labels: torch.Tensor) -> torch.Tensor:
    assert labels.shape == (1, *case.labels.shape)
    mask = torch.zeros_like(labels, dtype=torch.bool)
    mask[:, : labels.shape[1] // 2] = True
    return mask


def test_regions_of_a_user(dims: int) -> None:
    cases = make_cases(dims)
    found = evaluate(cases, methods(), regions={"left": left_half}, **PROTOCOL)
    assert found.regions == (*REGIONS, "left")
    assert ("ece", "left") in found.table().columns(["ece"])
    assert set(found.to_frame().region) == {*REGIONS, "left"}
    assert "left" in set(found.pooled().region)
    for case in cases:
        mask = np.asarray(case.labels) != IGNORED
        mask[len(mask) // 2 :] = False
        assert_readings(found.to_frame(), slow(case, 2.5, mask), case=case.name, method="TS", region="left")


@pytest.mark.parametrize("chosen", [(), ("boundary",), ("local-max",), ("all", "local-avg", "boundary")])
def test_regions_are_chosen_by_name(results: Results, dims: int, chosen: tuple[str, ...]) -> None:
    """The figures are those of measuring every region; All is always measured."""
    found = evaluate(make_cases(dims), methods(), regions=chosen, **PROTOCOL)
    assert set(found.regions) == {"all", *chosen}
    frame = results.to_frame()
    expected = frame[frame.region.isin(found.regions)].reset_index(drop=True)
    assert_frame_equal(found.to_frame(), expected)
    assert found.patches().empty == (not any("local" in name for name in chosen))
    assert {region for _, _, region in found.table().cells} == {"all", *chosen}


# --------------------------------------------------------------------------------------------------------------------
# what is told and what is refused


def test_measuring_on_fitted_cases_is_warned_of() -> None:
    cases = make_cases()
    calibrator = segcal.create("ts", 3, ignore_index=IGNORED).fit(cases[:2])
    message = "mine was fitted on 2 of these 3 cases: its scores are optimistic; evaluate on other images"
    with pytest.warns(CalibrationWarning, match=message) as caught:
        found = evaluate(cases, {"UC": None, "mine": calibrator}, **PROTOCOL)
    assert (len(caught), caught[0].filename) == (1, __file__)
    assert found.settings["warnings"][0] == message
    assert f"Warning: {message}." in " ".join(str(found.table()).split())
    assert not any(
        "fitted on" in text for text in evaluate(cases[2:], {"mine": calibrator}, **PROTOCOL).settings["warnings"]
    )


def test_a_copy_is_recognised_by_its_content_and_a_number_is_not_a_copy() -> None:
    """Renamed copies, in another precision or type, are recognised; other cases with the same names are not."""
    cases = make_cases()
    calibrator = segcal.create("ts", 3, ignore_index=IGNORED).fit(cases[:2])
    renamed = replace(cases[0], name="copy", logits=np.asarray(cases[0].logits, np.float64))
    with pytest.warns(CalibrationWarning, match="TS was fitted on this case: its"):
        evaluate([renamed], {"TS": calibrator}, **PROTOCOL)
    numbered = replace(cases[2], name=cases[0].name)
    assert not any(
        "fitted on" in text for text in evaluate([numbered], {"TS": calibrator}, **PROTOCOL).settings["warnings"]
    )


@pytest.mark.parametrize("method", ["lts", "auto", "vector"])
def test_every_fit_notes_the_content_of_its_cases(method: str, tmp_path: Path) -> None:
    cases = make_cases()
    options = {"epochs": 1} if method == "lts" else {}
    settings = {"candidates": ("ts", "ets")} if method == "auto" else {}
    calibrator = segcal.create(method, 3, ignore_index=IGNORED, **settings).fit(
        cases[:2], validation=cases[2:], **options
    )
    expected = tuple(fingerprint(case.logits, case.labels) for case in cases[:2])
    assert calibrator.fit_report_.names == tuple(case.name for case in cases[:2])
    assert calibrator.fit_report_.fingerprints == expected
    calibrator.save(tmp_path / "saved")
    assert segcal.load(tmp_path / "saved").fit_report_ == calibrator.fit_report_


@pytest.mark.parametrize(
    ("images", "groups", "told"),
    [
        (9, [None], ["95 % intervals from 9 images are too short; measure 10 or more"]),
        (10, [None], []),
        (12, ["a", "a", None], ["95 % intervals from 5 groups are too short; measure 10 or more"]),
    ],
)
def test_intervals_of_few_images_are_told(images: int, groups: list[str | None], told: list[str]) -> None:
    """An image without a group counts as one."""
    (case, *_) = make_cases()
    cases = [replace(case, name=f"image{k}", group=groups[k % len(groups)]) for k in range(images)]
    assert evaluate(cases, {"UC": None}, **PROTOCOL).settings["warnings"] == told


def test_probabilities_given_as_logits_are_warned_of_once() -> None:
    cases = [replace(case, logits=torch.as_tensor(case.logits).softmax(0)) for case in make_cases()]
    with pytest.warns(CalibrationWarning, match="look like probabilities") as caught:
        calibrator = segcal.create("ts", 3, ignore_index=IGNORED).fit(cases[:2])
    assert len(caught) == 1
    assert [text for text in calibrator.fit_report_.warnings if "look like" in text] == [str(caught[0].message)]
    with pytest.warns(CalibrationWarning, match="look like probabilities") as caught:
        found = evaluate(cases[2:], {"UC": None, "TS": calibrator}, **PROTOCOL)
    assert (len(caught), caught[0].filename) == (1, __file__)
    assert str(caught[0].message) in found.settings["warnings"]


def test_a_used_iterator_is_named() -> None:
    cases = iter(make_cases())
    list(cases)
    with pytest.raises(InputError, match="an iterator that yields none; an iterator can be read only once"):
        segcal.create("ts", 3).fit(cases)
    for patch_size in (None, 8):
        with pytest.raises(InputError, match="an iterator that yields none; an iterator can be read only once"):
            evaluate(cases, {"UC": None}, **{**PROTOCOL, "patch_size": patch_size})


# --------------------------------------------------------------------------------------------------------------------
# any function as a method


def test_a_function_is_measured_as_the_calibrator_that_does_the_same(dims: int) -> None:
    cases = make_cases(dims)
    compared = {"TS": fixed_temperature(2.5), "half": lambda logits: logits / 2.5, "module": torch.nn.Identity()}
    frame = evaluate(cases, {"UC": None, **compared}, **PROTOCOL).to_frame()
    values = {name: rows["value"].to_numpy() for name, rows in frame.groupby("method")}
    np.testing.assert_allclose(values["half"], values["TS"], atol=1e-6)
    np.testing.assert_array_equal(values["module"], values["UC"])


def test_a_function_sees_the_whole_case(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where calibrators would be given slabs."""
    monkeypatch.setattr("segcal.cases.stream.SLAB", 1)
    seen: list[tuple[int, ...]] = []

    def method(logits: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(logits.shape))
        assert not torch.is_grad_enabled()
        return logits

    evaluate(make_cases(dims, 1), {"mine": method}, **PROTOCOL)
    assert seen == [(1, 3, *SIZES[dims])]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda logits: logits[:, :2], r"must return calibrated logits of shape \(1, 3, .* got \(1, 2, "),
        (lambda logits: logits.numpy(), "got ndarray for case"),
        (lambda logits: logits / 0, "logits must be finite"),
        ("lts/", "a method must be a fitted calibrator, a function of logits or None, got str for 'mine'; load"),
    ],
)
def test_functions_that_return_something_else_are_refused(method: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(make_cases(count=1), {"mine": method}, **PROTOCOL)


def test_the_baseline_is_the_scores_as_they_are() -> None:
    ts = fixed_temperature(2.0)
    for compared, expected in (({"TS": ts, "raw": None}, "raw"), ({"UC": None, "TS": ts}, "UC"), ({"TS": ts}, "TS")):
        assert segcal.evaluate(make_cases(count=1), compared, **PROTOCOL).baseline == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cases": []}, "at least one case is needed"),
        ({"calibrators": {}}, "at least one method is needed"),
        ({"bins": 0}, "bins must be at least 1"),
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"form": "table"}, "form must be one of tables, equations, marginal, got 'table'"),
        ({"ace_edges": "patch"}, "ace_edges must be one of region, image, got 'patch'"),
        ({"ace_edges": "image", "form": "marginal"}, "ace_edges='image' are edges of top confidences"),
        ({"patch_size": 0}, "patch_size must be at least 1"),
        ({"interval": "normal"}, "interval must be one of percentile, bca, got 'normal'"),
        ({"class_names": ["a", "b"]}, "class_names must be 3 different names"),
        ({"class_names": ["a", "b", "a"]}, "class_names must be 3 different names"),
        ({"class_names": ["a", "b", ""]}, "class_names must be 3 different names"),
        ({"regions": {"all": lambda case, labels: labels > 0}}, "a region cannot be called 'all', which segcal"),
        ({"regions": {"own": lambda case, labels: labels}}, "region 'own' must return a Bool mask of shape"),
        ({"regions": {"own": lambda case, labels: labels[0] > 0}}, "region 'own' must return a Bool mask of shape"),
        ({"regions": ["all", "edge"]}, "names among all, boundary, .*local-max, or functions .* got 'edge'"),
        ({"regions": "edge"}, "got 'edge'"),
        ({"calibrators": {"TS": segcal.create("ts", 4)}}, "calibrator 'TS' was built for num_classes=4"),
        ({"calibrators": {"TS": segcal.create("ts", 3)}}, "not been fitted"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    arguments = {"cases": make_cases(count=1), "calibrators": {"UC": None}, **PROTOCOL, **changes}
    with pytest.raises(InputError, match=message):
        evaluate(**arguments)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda case: replace(case, name="scene-000"), "case names must be unique, got 'scene-000' twice"),
        (lambda case: replace(case, labels=None), "case 'scene-001' has none"),
        (lambda case: replace(case, labels=np.asarray(case.labels) + 2), "labels must be in 0..2 .* 'scene-001'"),
    ],
)
def test_bad_cases_are_refused_by_name(spoil: Any, message: str) -> None:
    first, second = make_cases(count=2)
    with pytest.raises(InputError, match=message):
        evaluate([first, spoil(second)], {"UC": None}, **PROTOCOL)


def test_the_patch_size_follows_small_images_and_is_reported() -> None:
    """A patch of 72 would be the whole image, and Local would equal All."""
    settings = {name: value for name, value in PROTOCOL.items() if name != "patch_size"}
    found = evaluate((case for case in make_cases()), {"X": None}, **settings)
    assert found.settings["patch_size"] == 4  # 4 x 4 of 15 x 12 is 9 %, 5 x 5 is 14 %
    assert any("side of 4 pixels" in warning for warning in found.settings["warnings"])
    given = evaluate(make_cases(), {"X": None}, **settings, patch_size=4)
    assert_frame_equal(found.to_frame(), given.to_frame())
    assert not any("side of" in warning for warning in given.settings["warnings"])
