"""Portraits: the right cases, the right pixels, values that come back, curves that agree with the results."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from segcal import Case, InputError, create, evaluate
from segcal.calibrators import Calibrator, Learned
from segcal.evaluation.portraits import (
    LEVELS,
    NOTHING,
    Layer,
    PixelRegion,
    Portrait,
    choose_cases,
    load_portraits,
    local_gap,
    local_optimum,
    make,
    make_portraits,
    save_portraits,
)
from segcal.evaluation.portraits.model import Thinning
from segcal.evaluation.results import Results
from segcal.files.guards import list_files
from support.fits import pool_of_passes
from support.scenes import several_passes, simulated, softmax

VOID = 9
Pooled = tuple[list[Case], dict[str, Any], Results]


def scenes(count: int = 6, size: tuple[int, ...] = (30, 26)) -> list[Case]:
    return simulated(count, num_classes=3, size=size, temperatures=(0.5, 4.0), contrast=3.0)


def measured(cases: list[Case], methods: dict[str, Any] | None = None, **options: Any) -> tuple[Results, Any]:
    methods = methods or {"UC": None, "TS": create("ts", num_classes=3, ignore_index=VOID).fit(cases)}
    options = {"patch_size": 10, "patches": 5, "repetitions": 5, "ignore_index": VOID, **options}
    return evaluate(cases, methods, num_classes=3, **options), methods


def one(portrait: Portrait, kind: str, method: str = "") -> Layer:
    (layer,) = [layer for layer in portrait.layers if (layer.kind, layer.method) == (kind, method)]
    return layer


def test_worst_typical_and_best_are_chosen() -> None:
    results, _ = measured(scenes(7))
    frame = results.to_frame()
    rows = frame[(frame.method == "UC") & (frame.metric == "ece") & (frame.region == "local-max")]
    ranked = rows.sort_values("value", ascending=False)["case"].tolist()
    whys = ("worst", "second worst", "third worst", "typical", "best")
    assert choose_cases(results) == dict(zip([*ranked[:3], ranked[3], ranked[-1]], whys, strict=True))
    assert choose_cases(results, [ranked[4]]) == {ranked[4]: "named"}
    with pytest.raises(InputError, match="got 'nobody'"):
        choose_cases(results, ["nobody"])


def test_few_cases_are_not_chosen_twice_and_none_without_values() -> None:
    results, _ = measured(scenes(2), patches=0)  # no patches: by ECE in All
    assert sorted(choose_cases(results)) == ["scene-000", "scene-001"]
    assert choose_cases(replace(results, frame=results.frame.assign(value=np.nan))) == {}


def test_the_maps_are_those_of_the_pixels() -> None:
    case = scenes(1, (20, 24))[0]
    labels = np.asarray(case.labels).copy()
    labels[:4] = VOID
    case = replace(case, labels=labels)
    results, methods = measured([case])
    (portrait,) = make_portraits([case], methods, results)
    probs = softmax(np.asarray(case.logits, dtype=np.float64))
    step = (1 - 1 / 3) / LEVELS
    np.testing.assert_allclose(one(portrait, "confidence", "UC").numbers(), probs.max(axis=0), atol=step / 2 + 1e-9)
    heat = methods["TS"].fit_report_.details["temperature"]
    np.testing.assert_allclose(one(portrait, "temperature", "TS").numbers(), heat, rtol=0.02)
    scaled = softmax(np.asarray(case.logits, dtype=np.float64) / heat).max(axis=0)
    np.testing.assert_allclose(one(portrait, "confidence", "TS").numbers(), scaled, atol=step / 2 + 1e-5)
    truth, predicted = one(portrait, "truth").values, one(portrait, "prediction").values
    assert (truth[:4] == NOTHING).all()
    classes = np.array(portrait.classes)
    assert (classes[truth[4:]] == labels[4:]).all()
    assert (classes[predicted] == probs.argmax(axis=0)).all()
    assert np.isnan(one(portrait, "gap", "UC").numbers()[:4]).all()
    assert [layer.method for layer in portrait.layers if layer.kind == "temperature"] == ["TS"]


def test_the_gap_is_that_of_a_slow_window(rng: np.random.Generator) -> None:
    confidence, hit, inside = rng.random((7, 9)), rng.random((7, 9)) < 0.6, rng.random((7, 9)) < 0.7
    found = local_gap(confidence, hit, inside, 5)
    for i, j in np.ndindex(7, 9):
        window = (slice(max(0, i - 2), i + 3), slice(max(0, j - 2), j + 3))
        kept = inside[window]
        expected = (confidence[window][kept] - hit[window][kept]).mean() if inside[i, j] else np.nan
        assert found[i, j] == pytest.approx(expected, nan_ok=True)


def test_the_best_temperature_nearby_is_that_of_a_slow_search(rng: np.random.Generator) -> None:
    logits = torch.from_numpy(rng.normal(scale=2.0, size=(1, 3, 6, 7)))
    labels = torch.from_numpy(rng.integers(-1, 3, (6, 7)))
    found = local_optimum([(slice(0, 4), logits[:, :, :4]), (slice(4, 6), logits[:, :, 4:])], labels)
    assert np.isnan(found[labels.numpy() < 0]).all()
    grid = np.geomspace(0.125, 8, 601)
    nll = np.stack([-torch.log_softmax(logits[0] / t, dim=0).numpy() for t in grid])
    own = np.take_along_axis(nll, np.maximum(labels.numpy(), 0)[None, None], axis=1)[:, 0] * (labels.numpy() >= 0)
    for i, j in np.argwhere(labels.numpy() >= 0):
        sums = own[:, max(0, i - 2) : i + 3, max(0, j - 2) : j + 3].sum(axis=(1, 2))
        best = grid[np.argmin(sums)]
        assert found[i, j] == pytest.approx(best, rel=0.06), (i, j)  # between two of the 13 steps


def test_a_window_without_errors_asks_for_the_lowest_temperature() -> None:
    logits = torch.tensor([[40.0, -40.0], [-40.0, 40.0]]).reshape(1, 2, 1, 2).repeat(1, 1, 40, 20)
    right = torch.tensor([0, 1]).repeat(40, 20)
    for labels, bound in ((right, 0.125), (1 - right, 8.0)):
        np.testing.assert_allclose(local_optimum([(slice(0, 40), logits)], labels), bound)


def test_logits_near_the_largest_number_give_a_temperature_within_the_bounds() -> None:
    """And no warning, which is an error here."""
    logits = torch.full((1, 2, 9, 9), 3e38)
    logits[:, 1] = 0
    found = local_optimum([(slice(0, 9), logits)], torch.ones(9, 9, dtype=torch.int64))
    assert ((found >= make.BOUNDS[0]) & (found <= make.BOUNDS[1])).all()


@pytest.mark.parametrize(("shape", "strides"), [((11, 6, 7), (3, 2, 1)), ((9, 12), (2, 3)), ((2, 9), (1, 1))])
def test_slabs_and_thinning_do_not_change_the_best_temperature(
    shape: tuple[int, ...], strides: tuple[int, ...], rng: np.random.Generator
) -> None:
    logits = torch.from_numpy(rng.normal(scale=3.0, size=(1, 4, *shape)).astype(np.float16))
    labels = torch.from_numpy(rng.integers(-1, 4, shape))
    whole = local_optimum([(slice(0, shape[0]), logits)], labels)
    slabs = [(slice(k, min(k + 5, shape[0])), logits[:, :, k : k + 5]) for k in range(0, shape[0], 5)]
    np.testing.assert_array_equal(local_optimum(slabs, labels), whole)
    thinned = Thinning(strides)
    np.testing.assert_array_equal(local_optimum(slabs, labels, thinned), thinned(whole))


@pytest.fixture(scope="module")
def pooled() -> Pooled:
    """Cases with passes, methods of which two use them, and their results."""
    cases, pool = several_passes(8), pool_of_passes()
    methods = {"UC": None, "TS": create("ts", 3).fit(cases), "POOL": pool, "AGAIN": pool}
    return cases[:2], methods, measured(cases[:2], methods)[0]


def test_disagreement_is_the_mutual_information_of_label_and_pass(pooled: Pooled) -> None:
    cases, methods, results = pooled
    for case, portrait in zip(cases, make_portraits(cases, methods, results, [c.name for c in cases]), strict=True):
        (layer,) = [layer for layer in portrait.layers if layer.kind == "disagreement"]  # shared by both pools
        probs = [softmax(np.asarray(scores, dtype=np.float64)) for scores in (case.logits, *case.each_pass)]
        expected = np.zeros(np.asarray(case.labels).shape)
        for i, j in np.ndindex(*expected.shape):
            for label in range(3):
                mean = sum(p[label, i, j] for p in probs) / len(probs)
                expected[i, j] += sum(p[label, i, j] * np.log(p[label, i, j] / mean) for p in probs) / len(probs)
        assert (layer.method, layer.low) == ("", 0.0)
        assert layer.high == pytest.approx(expected.max(), rel=1e-4)
        assert layer.high <= np.log(3)
        np.testing.assert_allclose(layer.numbers(), expected, atol=layer.high / LEVELS / 2 + 1e-5)


def test_passes_in_slabs_disagree_as_the_whole_does(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    cases, methods, results = pooled
    whole, _ = make_portraits(cases, methods, results)
    monkeypatch.setattr("segcal.cases.stream.SLAB", 5 * 3 * 18)
    parts, _ = make_portraits(cases, methods, results)
    np.testing.assert_array_equal(one(whole, "disagreement").values, one(parts, "disagreement").values)


@pytest.mark.usefixtures("few_strengths")
def test_only_methods_that_use_passes_have_a_map_of_disagreement(pooled: Pooled) -> None:
    cases, methods, _ = pooled
    without = {name: methods[name] for name in ("UC", "TS")}
    alone = create("pool", 3).fit([replace(case, passes=None) for case in several_passes(6)])
    for chosen in (without, {**without, "POOL": alone}):
        results, _ = measured(cases, chosen)
        assert all(portrait.layer("disagreement") is None for portrait in make_portraits(cases, chosen, results))


def test_regions_and_bin_accuracies_are_those_of_the_case() -> None:
    case = scenes(1, (20, 24))[0]
    labels = np.zeros((20, 24), np.int64)
    labels[8:14, 8:16] = 1
    labels[0] = VOID
    results, methods = measured([replace(case, labels=labels)], background=0)
    (portrait,) = make_portraits([replace(case, labels=labels)], methods, results)
    region = one(portrait, "region").values
    assert (region[0] == NOTHING).all()
    assert region[10, 11] == PixelRegion.ALL  # three steps from the edge of the object
    assert region[8, 11] == region[6, 11] == PixelRegion.BOUNDARY
    assert region[5, 2] == PixelRegion.OUTSIDE
    accuracy, curve = one(portrait, "accuracy", "UC").numbers(), portrait.curves["UC"]
    assert (np.isnan(accuracy) == ((region == NOTHING) | (region == PixelRegion.OUTSIDE))).all()
    probs = softmax(np.asarray(case.logits, dtype=np.float64)).max(axis=0)
    place = int(np.ceil(probs[10, 11] * 10)) - 1
    assert accuracy[10, 11] == pytest.approx(max(1 / 3, curve[place][1] / curve[place][0]), abs=0.004)
    assert len(portrait.boxes) == 5
    assert all(stop[0] - start[0] == 10 for start, stop in portrait.boxes)


def test_the_curves_agree_with_the_results() -> None:
    cases = scenes(3)
    results, methods = measured(cases)
    frame, patches = results.to_frame(), results.patches()
    for portrait in make_portraits(cases, methods, results):
        for method in methods:
            count, hit, confidence = np.array(portrait.curves[method]).T
            ece = np.abs(hit - confidence).sum() / count.sum()
            row = frame[(frame.case == portrait.name) & (frame.method == method) & (frame.region == "all")]
            assert ece == pytest.approx(row[row.metric == "ece"]["value"].item())
            own = patches[(patches.case == portrait.name) & (patches.method == method) & (patches.metric == "ece")]
            for patch in portrait.patches:
                row = own[own.patch == patch.number]
                count, hit, confidence = np.array(patch.curves[method]).T
                ece = np.abs(hit - confidence).sum() / count.sum()
                assert ece == pytest.approx(row["value"].item())
                assert " ".join(map(str, patch.start)) == row["origin"].item()
        assert len(portrait.patches) == 3
    uc = patches[(patches.case == portrait.name) & (patches.method == "UC") & (patches.metric == "ece")]
    ranked = uc.sort_values("value", ascending=False)["patch"].tolist()
    assert [patch.number for patch in portrait.patches] == [ranked[0], ranked[2], ranked[4]]


def test_large_images_and_volumes_are_thinned() -> None:
    case = scenes(1, (7, 500, 12))[0]
    results, methods = measured([case], {"UC": None}, patch_size=5)
    (portrait,) = make_portraits([case], methods, results)
    assert portrait.kept == (tuple(range(7)), tuple(range(500)), tuple(range(12)))  # few voxels: all of them
    assert one(portrait, "image").values.shape == (7, 500, 12)
    assert Thinning.of((181, 217, 181)).strides == (3, 3, 3)
    wide = replace(
        case, **{name: np.repeat(getattr(case, name), 10, axis=-1) for name in ("logits", "labels", "image")}
    )
    (portrait,) = make_portraits([wide], methods, results)
    assert [len(kept) for kept in portrait.kept] == [7, 250, 120]
    truth = np.array(portrait.classes)[one(portrait, "truth").values]
    assert (truth == np.asarray(wide.labels)[:, ::2]).all()


@given(shape=st.lists(st.integers(1, 2000), min_size=2, max_size=3))
def test_thinning_bounds_the_size_and_keeps_what_fits(shape: list[int]) -> None:
    thinned = Thinning.of(shape)
    lengths = [len(kept) for kept in thinned.kept(shape)]
    assert max(lengths) <= 480 if len(shape) == 2 else np.prod(lengths) <= 360_000
    if max(shape) <= 70:
        assert lengths == shape


def test_images_in_colour_and_without() -> None:
    plain = scenes(1)[0]
    rgb = np.random.default_rng(0).integers(0, 256, (3, 30, 26), dtype=np.uint8)
    standardised = (rgb / 255 - 0.5) / 0.2
    for image, shape in ((rgb, (30, 26, 3)), (standardised, (30, 26, 3)), (rgb[:2], (30, 26)), (None, None)):
        case = replace(plain, image=image)
        results, methods = measured([case], {"UC": None})
        (portrait,) = make_portraits([case], methods, results)
        found = [layer.values for layer in portrait.layers if layer.kind == "image"]
        assert [values.shape for values in found] == ([] if shape is None else [shape])
        if image is rgb:
            assert (found[0] == np.moveaxis(rgb, 0, -1)).all()
        if image is standardised:
            assert np.abs(found[0].astype(int) - np.moveaxis(rgb, 0, -1)).max() <= 2


class Shuffle(Calibrator):
    """Changes every label."""

    method, preserves_labels = "shuffle", False

    def _learn(self, stream: Any, *, validation: Any, settings: Any) -> Learned:
        return Learned(1, 1.0, 1.0)

    def _map(self, logits: Float[Tensor, "B L *S"], image: Tensor | None = None) -> Float[Tensor, "B L *S"]:
        return torch.roll(logits, 1, dims=1)


def test_slabs_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = scenes(1, (9, 12, 10))
    lts = create("lts", num_classes=3, spatial_dims=3, image_channels=1)
    lts.fit(cases, epochs=2, learning_rate=1e-2, seed=0)
    results, methods = measured(cases, {"UC": None, "LTS": lts}, patch_size=4)
    (whole,) = make_portraits(cases, methods, results)
    monkeypatch.setattr("segcal.cases.stream.SLAB", 2 * 3 * 12 * 10)
    (parts,) = make_portraits(cases, methods, results)
    for layer, same in zip(whole.layers, parts.layers, strict=True):
        assert np.abs(layer.values.astype(int) - same.values).max() <= 1, (layer.kind, layer.method)
    assert len({*one(whole, "temperature", "LTS").values.ravel().tolist()}) > 2


def test_methods_that_change_labels_have_their_own_prediction() -> None:
    cases = scenes(1)
    results, methods = measured(cases, {"UC": None, "odd": Shuffle(3).fit(cases)})
    (portrait,) = make_portraits(cases, methods, results)
    usual, own = one(portrait, "prediction"), one(portrait, "prediction", "odd")
    classes = np.array(portrait.classes)
    assert (classes[own.values] == (classes[usual.values] + 1) % 3).all()


def test_the_way_to_disk_and_back(tmp_path: Path) -> None:
    cases = [replace(case, orientation="SAR") for case in scenes(3, (4, 12, 10))]
    results, methods = measured(cases, patch_size=4)
    portraits = make_portraits(cases, methods, results)
    results.save(tmp_path / "results")
    assert load_portraits(tmp_path / "results") == []
    save_portraits(portraits, tmp_path / "results")
    found = load_portraits(tmp_path / "results")
    assert len(found) == 3
    for one_way, back in zip(portraits, found, strict=True):
        assert replace(one_way, layers=()) == replace(back, layers=())
        for layer, same in zip(one_way.layers, back.layers, strict=True):
            assert (layer.values == same.values).all()
            assert (layer.kind, layer.method, layer.low, layer.high) == (same.kind, same.method, same.low, same.high)
    assert Results.load(tmp_path / "results").methods == ("UC", "TS")


def make_up(marker: Path, content: Any) -> None:
    """Write a marker with right checksums, as whoever makes portraits up may do."""
    marker.write_text(json.dumps(content))
    if isinstance(content, dict):
        list_files(marker.parent)


def test_broken_portraits_are_refused(tmp_path: Path) -> None:
    cases = scenes(1)
    results, methods = measured(cases)
    save_portraits(make_portraits(cases, methods, results), tmp_path)
    marker = tmp_path / "portraits" / "segcal.json"
    content = json.loads(marker.read_text())
    picture = tmp_path / "portraits" / "000.npz"
    whole = picture.read_bytes()
    for path, text in ((picture, whole + b"\0"), (marker, json.dumps({**content, "more": 1}).encode())):
        before = path.read_bytes()
        path.write_bytes(text)
        with pytest.raises(InputError, match=f"must be as they were saved, got another checksum of '{path.name}'"):
            load_portraits(tmp_path)
        path.write_bytes(before)
    marker.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(InputError, match="another version of segcal"):
        load_portraits(tmp_path)
    for broken in ([], {"format": 2}, {**content, "portraits": [{"layers": []}]}):
        make_up(marker, broken)
        with pytest.raises(InputError, match="cannot be read"):
            load_portraits(tmp_path)
    for broken in (b"", b"PK", whole[: len(whole) // 2]):
        picture.write_bytes(broken)
        make_up(marker, content)
        with pytest.raises(InputError, match=r"cannot be read|must be a readable \.npz file"):
            load_portraits(tmp_path)
    shutil.rmtree(tmp_path / "portraits")
    save_portraits(make_portraits(cases, methods, results), tmp_path)
    content = json.loads(marker.read_text())
    for name, wrong in (("classes", ["0"]), ("kept", [[0.5]] * 2), ("shape", [30, -26])):
        entries = [{**content["portraits"][0], name: wrong}]
        make_up(marker, {**content, "portraits": entries})
        with pytest.raises(InputError, match=r"cannot be read .*whole numbers"):
            load_portraits(tmp_path)
    for wrong in ("SAX", "SAS", ["S"], "S"):
        entries = [{**content["portraits"][0], "orientation": wrong}]
        make_up(marker, {**content, "portraits": entries})
        with pytest.raises(InputError, match="three directions"):
            load_portraits(tmp_path)
    with np.load(tmp_path / "portraits" / "000.npz") as archive:
        layers = dict(archive)
    for wrong in (layers["layer0"][0], layers["layer0"].astype(np.uint64)):
        np.savez_compressed(tmp_path / "portraits" / "000.npz", **{**layers, "layer0": wrong})
        make_up(marker, content)
        with pytest.raises(InputError, match="must have bytes of shape"):
            load_portraits(tmp_path)
