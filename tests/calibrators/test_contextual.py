"""Contextual temperature scaling: scenes whose temperature follows their context, and what it may and may not learn."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from segcal.calibrators import ContextualTemperatureScaling, TemperatureScaling
from segcal.calibrators.shared.context_sample import draw_sample
from segcal.calibrators.shared.survey import summed_nll
from segcal.cases import CaseStream
from segcal.data.sample.scenes import simulate
from segcal.functional.context import FEATURES, context_features
from segcal.functional.division import NO_FLOOR, Floor
from segcal.functional.log_linear import FeaturePixels, Loss, MeanLoss, loss_sums, newton, read_loss
from segcal.functional.ridge import FoldPath, Strengths, jackknife_intervals, ridge_path
from segcal.kernels.dispatch import plain_only
from segcal.types import Case, InputError

CLASSES = 4
WEIGHTS = {"entropy": 0.3, "boundary in 25": -2.0}
OFFSETS = np.array([0.4, -0.4, 0.0, 0.0])


def heated(count: int, size: tuple[int, ...] = (48, 48), seed: int = 0, **settings: Any) -> list[Case]:
    """Scenes with labels drawn from the softmax of their logits divided by a temperature of known weights."""
    random = np.random.default_rng(seed)
    cases = []
    for scene in simulate(count, num_classes=CLASSES, size=size, variation="global", seed=seed, **settings):
        logits = torch.from_numpy(scene.case.logits)[None]
        features = dict(zip(FEATURES, context_features(logits)[0].numpy(), strict=True))
        exponent = 0.5 + sum(weight * features[name] for name, weight in WEIGHTS.items())
        exponent = exponent + OFFSETS[logits[0].argmax(0).numpy()]
        true = scene.case.logits / np.exp(exponent)
        labels = (true + random.gumbel(size=true.shape)).argmax(0).astype(np.uint8)
        cases.append(replace(scene.case, labels=labels))
    return cases


def pixels_of(count: int = 600, features: int = 2, folds: int = 3, seed: int = 0) -> FeaturePixels:
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(CLASSES, count, generator=generator)).float()
    known = torch.randn(features, count, generator=generator)
    heat = torch.exp(0.3 * known[0] + 0.2)
    labels = torch.multinomial(torch.softmax((logits / heat).T, 1), 1, generator=generator).squeeze(1)
    return FeaturePixels(logits, labels, known, tuple(count * k // folds for k in range(folds + 1)))


def test_what_made_the_scenes_is_found() -> None:
    cases = heated(24)
    cts = ContextualTemperatureScaling(CLASSES, sharpen=True).fit(cases)
    details = cts.fit_report_.details
    raw = dict(zip(FEATURES, (cts.coefficients / cts.feature_scale).tolist(), strict=True))
    logits = torch.stack([torch.as_tensor(case.logits) for case in heated(4, seed=9)])
    found = cts.temperature(logits).log()
    features = context_features(logits)
    true = 0.5 + torch.from_numpy(OFFSETS)[logits.argmax(1, keepdim=True)]
    for name, weight in WEIGHTS.items():
        true = true + weight * features[:, FEATURES.index(name)].unsqueeze(1)
    assert float((found - true).square().mean().sqrt()) < 0.1
    assert float(true.std()) > 0.25
    assert raw["boundary in 25"] < -0.5
    offsets = cts.class_offsets - cts.class_offsets.mean()
    np.testing.assert_allclose(offsets.numpy(), OFFSETS, atol=0.1)
    for interval, value in zip(details["class_offset_intervals"], details["class_offsets"], strict=True):
        assert interval[0] < value < interval[1]
    assert any(words.startswith("pixels predicted as class 0: x1.") for words in details["words"])
    assert any("raises the temperature" in words for words in details["words"])


@pytest.mark.parametrize("dims", [2, 3])
def test_without_features_and_classes_it_is_temperature_scaling(dims: int) -> None:
    cases = heated(3, size={2: (24, 20), 3: (9, 10, 8)}[dims])
    plain = TemperatureScaling(CLASSES).fit(cases)
    ours = ContextualTemperatureScaling(CLASSES, spatial_dims=dims, features=False, classes=False).fit(cases)
    assert float(ours.intercept.exp()) == pytest.approx(plain.fit_report_.details["temperature"], rel=1e-12)
    assert ours.fit_report_.warnings == ()


def test_infinite_ridges_are_temperature_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = heated(6, size=(24, 20))
    plain = TemperatureScaling(CLASSES).fit(cases)
    for name in ("FEATURE_RIDGES", "CLASS_RIDGES"):
        monkeypatch.setattr(f"segcal.calibrators.shared.context_fit.{name}", (np.inf,))
    ours = ContextualTemperatureScaling(CLASSES).fit(cases)
    logits = torch.as_tensor(cases[0].logits)[None]
    torch.testing.assert_close(ours.temperature(logits), plain.temperature(logits), rtol=1e-6, atol=0)
    for name in ("FEATURE_RIDGES", "CLASS_RIDGES"):
        monkeypatch.setattr(f"segcal.calibrators.shared.context_fit.{name}", (1e7,))
    nearly = ContextualTemperatureScaling(CLASSES, sharpen=True).fit(cases)
    torch.testing.assert_close(nearly.temperature(logits), plain.temperature(logits), rtol=1e-6, atol=0)
    assert nearly.fit_report_.details["ridge_features"] == 1e7


@pytest.mark.parametrize("brier", [0.0, 1.0])
@pytest.mark.parametrize("bounds", [(0.05, 100.0), (0.9, 1.5)])
@pytest.mark.parametrize("floor", [NO_FLOOR, Floor(1.0, 0.2)])
def test_gradient_and_curvature(brier: float, bounds: tuple[float, float], floor: Floor) -> None:
    """Gradient and curvature by finite differences; both against plain PyTorch."""
    pixels = pixels_of(500)
    labels = pixels.labels.clone()
    labels[::7] = -1
    point = np.array([0.1, 0.2, -0.15, 0.1, -0.1, 0.3, 0.0])
    data = pixels.logits, labels, pixels.features

    def near(at: np.ndarray) -> Loss:
        return read_loss(loss_sums(*data, at, bounds, floor=floor, brier=brier), at.size)

    sums = loss_sums(*data, point, bounds, floor=floor, brier=brier, curvature=True)
    with plain_only():
        plain = loss_sums(*data, point, bounds, floor=floor, brier=brier, curvature=True)
    np.testing.assert_allclose(sums, plain, rtol=1e-9, atol=1e-9)
    found = read_loss(sums, point.size)
    assert found.pixels == int((labels >= 0).sum())
    assert (found.bounded > 0) == (bounds[0] == 0.9)
    exponent = point[0] + point[1:3] @ pixels.features.double().numpy() + point[3:][pixels.logits.argmax(0)]
    assert found.raised == (int((exponent[labels.numpy() >= 0] < 0).sum()) if floor.softness else 0)
    steps = 1e-5 * np.eye(point.size)
    around = [(near(point + step), near(point - step)) for step in steps]
    slopes = [(after.value - before.value) / 2e-5 for after, before in around]
    np.testing.assert_allclose(found.gradient, slopes, rtol=1e-4, atol=1e-4)
    bends = [(after.gradient - before.gradient) / 2e-5 for after, before in around]
    np.testing.assert_allclose(found.curvature, bends, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.curvature, found.curvature.T)


def test_a_rare_class_is_drawn_more_to_the_common_temperature() -> None:
    random = np.random.default_rng(0)
    predicted = (random.uniform(size=40_000) < 0.02).astype(int)
    logits = np.zeros((2, predicted.size), np.float32)
    logits[predicted, np.arange(predicted.size)] = 3.0
    right = random.uniform(size=predicted.size) < 1 / (1 + np.exp(-3.0 / 2))  # both are twice too sure
    labels = torch.from_numpy(np.where(right, predicted, 1 - predicted))
    pixels = FeaturePixels(torch.from_numpy(logits), labels, torch.empty(0, predicted.size), (0, predicted.size))
    penalty = np.array([np.inf, 0.02, 0.02])  # the common temperature stays at 1, so that the offsets must do it
    point = newton(MeanLoss(lambda: [pixels.values], (0.05, 100.0)), np.zeros(3), penalty, tolerance=1e-12).point
    assert 0 < point[2] < point[1] / 2


def test_a_fold_may_have_no_part_in_the_choice_for_it() -> None:
    among = (Strengths(np.inf, np.inf), Strengths(1.0, np.inf), Strengths(1.0, 0.1))
    losses = np.array([[3.0, 3.0, 3.0], [2.0, 2.0, 9.0], [2.5, 2.5, 0.0]])
    totals = np.stack([np.ones((3, 3)), losses, losses], axis=2)
    path = FoldPath(among, totals, ((np.zeros(1),) * 3,) * 3)
    assert path.best(cautious=False) == 2
    assert path.best(cautious=False, without=2) == 1
    some = path.part(among[:2])
    assert some.best(cautious=False) == 0
    assert some.best(cautious=False, without=2) == 1


def test_groups_decide_how_much_is_learned() -> None:
    """Offsets that hold within each video but not between them: without the groups they look real."""
    random, cases = np.random.default_rng(0), []
    signs = random.choice([-1, 1], size=(4, CLASSES))
    for k, case in enumerate(heated(20, size=(16, 16))):
        logits = np.asarray(case.logits)
        true = logits / np.exp(0.6 + 0.6 * signs[k // 5][logits.argmax(0)])
        labels = (true + random.gumbel(size=true.shape)).argmax(0).astype(np.uint8)
        cases.append(replace(case, labels=labels, group=f"video-{k // 5}"))
    alone = [replace(case, group=None) for case in cases]
    grouped, apart = (
        ContextualTemperatureScaling(CLASSES, features=False).fit(chosen).fit_report_.details
        for chosen in (cases, alone)
    )
    strengths = [np.inf if found["ridge_classes"] is None else found["ridge_classes"] for found in (grouped, apart)]
    assert strengths[0] > strengths[1]


def test_cross_validation_takes_the_least_loss_and_of_equals_the_strongest() -> None:
    among = [Strengths(ridge, np.inf) for ridge in (np.inf, 0.1, 1e-3)]
    choice = ridge_path(pixels_of(3000), np.zeros(7), among, (0.05, 100.0)).choice(cautious=False)
    assert [row.strength for row in choice.tried] == among
    assert choice.strength == min(choice.tried, key=lambda row: row.loss).strength != among[0]
    assert len(choice.refits) == 3
    equal = [Strengths(1e9, np.inf), Strengths(1e8, np.inf)]
    assert ridge_path(pixels_of(300), np.zeros(7), equal, (0.05, 100.0)).choice(cautious=False).strength is equal[0]
    other = ridge_path(pixels_of(300), np.zeros(7), equal[::-1], (0.05, 100.0)).choice(cautious=False)
    assert other.strength is equal[1]


def test_held_out_nll_is_that_of_refits() -> None:
    pixels = pixels_of(900)
    strengths = Strengths(0.01, 0.1)
    choice = ridge_path(pixels, np.zeros(7), [strengths], (0.05, 100.0)).choice(cautious=False)
    total = 0.0
    for fold in range(3):
        loss = MeanLoss(lambda fold=fold: [pixels.part(k, k + 1).values for k in range(3) if k != fold], (0.05, 100.0))
        point = newton(loss, np.zeros(7), strengths.penalty(2, CLASSES), tolerance=1e-12).point
        np.testing.assert_allclose(choice.refits[fold], point, atol=1e-4)
        held = pixels.part(fold, fold + 1)
        exponent = point[0] + point[1:3] @ held.features.double().numpy() + point[3:][held.logits.argmax(0)]
        scaled = held.logits.double() / torch.from_numpy(np.exp(exponent))
        total += float(torch.nn.functional.cross_entropy(scaled.T, held.labels, reduction="sum"))
    assert choice.tried[0].nll == pytest.approx(total / 900, rel=1e-5)
    spread = np.sqrt(2 / 3 * ((np.stack(choice.refits) - np.mean(choice.refits, axis=0)) ** 2).sum(0))
    spans = jackknife_intervals(np.zeros(7), choice.refits)
    np.testing.assert_allclose(spans[:, 1], 4.302652729911275 * spread, rtol=1e-9)  # Student's t, 2 degrees


@pytest.mark.usefixtures("few_strengths")
def test_it_is_deterministic_on_one_and_two_threads() -> None:
    cases, threads, found = heated(4, size=(24, 24)), torch.get_num_threads(), []
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            found.append(ContextualTemperatureScaling(CLASSES).fit(cases))
    finally:
        torch.set_num_threads(threads)
    for one in found[1:]:
        assert all(torch.equal(value, found[0].state_dict()[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("dims", [2, 3])
def test_plain_pytorch_fits_the_same(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device without kernels computes, on the CPU."""
    cases = heated(3, size={2: (20, 18), 3: (12, 10, 11)}[dims])
    logits = torch.stack([torch.as_tensor(case.logits) for case in cases])
    for name in ("FEATURE_RIDGES", "CLASS_RIDGES"):
        monkeypatch.setattr(f"segcal.calibrators.shared.context_fit.{name}", (0.1, 0.01))
    compiled = ContextualTemperatureScaling(CLASSES, spatial_dims=dims).fit(cases)
    expected = compiled(logits)
    with plain_only():
        plain = ContextualTemperatureScaling(CLASSES, spatial_dims=dims).fit(cases)
        torch.testing.assert_close(plain(logits), expected, rtol=1e-3, atol=1e-2)
    assert plain.fit_report_.details["ridge_features"] == compiled.fit_report_.details["ridge_features"]


def test_one_group_has_one_temperature_and_a_warning() -> None:
    cases = [replace(case, group="only") for case in heated(3, size=(16, 16))]
    report = ContextualTemperatureScaling(CLASSES).fit(cases).fit_report_
    assert any("one image or group" in warning for warning in report.warnings)
    assert report.details["coefficients"] == [0.0] * len(FEATURES)
    assert report.details["class_offset_intervals"] == [[0.0, 0.0]] * CLASSES
    assert report.details["cv_nll"] == []


@pytest.mark.parametrize("features", [True, False])
def test_an_image_of_which_nothing_is_drawn_is_no_fold(features: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.calibrators.shared.context_sample._SAMPLE", 128)
    large, small = heated(2)
    labels = np.full((48, 48), 255)
    labels[20, 20] = 0
    cts = ContextualTemperatureScaling(CLASSES, features=features, ignore_index=255)
    report = cts.fit([large, replace(small, labels=labels)]).fit_report_
    assert (report.details["groups"], report.details["folds"]) == (2, 1)
    assert any("nearly all, belong to one image or group" in warning for warning in report.warnings)
    assert report.details["coefficients"] == [0.0] * (len(FEATURES) if features else 0)


@pytest.mark.usefixtures("few_strengths")
def test_the_mean_temperature_is_that_of_the_pixels() -> None:
    cases = heated(8)
    for sharpen in (True, False):
        cts = ContextualTemperatureScaling(CLASSES, sharpen=sharpen).fit(cases)
        logits = torch.stack([torch.as_tensor(case.logits) for case in cases])
        mean = cts.temperature(logits).double().log().mean().exp()
        assert cts.fit_report_.details["temperature"] == pytest.approx(float(mean), rel=1e-5)
        assert cts.fit_report_.details["words"][0] == f"geometric mean of the temperatures: {mean:.3g}"


@pytest.mark.usefixtures("few_strengths")
def test_a_class_that_is_never_predicted_is_told_so() -> None:
    cases = [replace(case, logits=np.insert(np.asarray(case.logits), 2, -50, axis=0)) for case in heated(8)]
    cases = [replace(case, labels=np.asarray(case.labels) + (np.asarray(case.labels) >= 2)) for case in cases]
    details = ContextualTemperatureScaling(CLASSES + 1).fit(cases).fit_report_.details
    assert [share == 0 for share in details["class_shares"]] == [False, False, True, False, False]
    assert sum(details["class_shares"]) == pytest.approx(1)
    assert "pixels predicted as class 2: none were seen, so nothing was learned" in details["words"]
    assert sum("none were seen" in words for words in details["words"]) == 1


@pytest.mark.usefixtures("few_strengths")
def test_narrow_bounds_are_put_around_what_was_found() -> None:
    cases = two_of_a_kind(12, seed=0)
    plain, narrow = (ContextualTemperatureScaling(2, bounds=bounds).fit(cases) for bounds in ((0.05, 100), (1, 100)))
    assert plain.fit_report_.details["floor"] == 1
    assert torch.equal(plain.class_offsets, narrow.class_offsets)
    assert narrow.fit_report_.converged
    # of wide bounds it follows from the derivatives before the last step
    assert narrow.fit_report_.nll_after == pytest.approx(plain.fit_report_.nll_after, abs=1e-9)
    free = ContextualTemperatureScaling(2, bounds=(1, 2), sharpen=True).fit(cases)
    measured = summed_nll(free, free.stream(cases))
    assert free.fit_report_.nll_after == pytest.approx(measured[0] / measured[1], rel=1e-6)
    assert any("are cut off at 1 or 2" in warning for warning in free.fit_report_.warnings)
    low = ContextualTemperatureScaling(2, bounds=(0.05, 0.5)).fit(cases)
    logits = torch.from_numpy(np.stack([case.logits for case in cases]))
    assert low.temperature(logits).max() <= 0.5, "no floor is above the bounds"


def two_of_a_kind(count: int, seed: int) -> list[Case]:
    """Class 0 is far too confident, class 1 far underconfident: their true temperatures are 3 and 1/3."""
    random, cases = np.random.default_rng(seed), []
    for k in range(count):
        shown = random.integers(0, 2, (24, 24))
        true = random.gamma(2, 0.5, shown.shape)
        right = random.random(shown.shape) < 1 / (1 + np.exp(-true))
        margin = true * np.where(shown == 0, 3.0, 1 / 3)
        logits = np.stack([np.where(shown == 0, margin, 0.0), np.where(shown == 1, margin, 0.0)]).astype(np.float32)
        cases.append(Case(str(k), logits, np.where(right, shown, 1 - shown)))
    return cases


def test_no_pixel_becomes_surer_than_the_network_made_it() -> None:
    cases = two_of_a_kind(12, seed=0)
    held, free = (ContextualTemperatureScaling(2, features=False, sharpen=s).fit(cases) for s in (False, True))
    logits = torch.from_numpy(np.stack([case.logits for case in two_of_a_kind(3, seed=1)]))
    sure = logits.argmax(1, keepdim=True) == 0
    for cts, under in ((held, 1.0), (free, 1 / 3)):
        temperature = cts.temperature(logits)
        assert temperature[sure].median() == pytest.approx(3, rel=0.15)
        assert temperature[~sure].median() == pytest.approx(under, rel=0.15)
    assert 1 < held.temperature(logits).min() < 1.01
    assert held.fit_report_.details["floor"] == 1
    assert free.fit_report_.details["floor"] == free.fit_report_.details["raised_share"] == 0
    assert held.fit_report_.details["raised_share"] == pytest.approx(0.5, abs=0.05)
    assert (held.predict_proba(logits).amax(1) <= torch.softmax(logits, 1).amax(1) + 1e-6).all()
    assert held.fit_report_.details["words"][-1].startswith("temperatures below 1 are set to 1, at 5")
    for cts in (held, free):
        measured = summed_nll(cts, cts.stream(cases))
        assert cts.fit_report_.nll_after == pytest.approx(measured[0] / measured[1], rel=1e-6), "as it is applied"


@pytest.mark.usefixtures("few_strengths")
def test_the_floor_is_the_one_temperature_where_that_sharpens_too() -> None:
    cases = [replace(case, logits=case.logits / 8) for case in heated(8)]
    one = TemperatureScaling(CLASSES).fit(cases).fit_report_.details["temperature"]
    cts = ContextualTemperatureScaling(CLASSES).fit(cases)
    assert one < 0.5
    assert cts.fit_report_.details["floor"] == pytest.approx(one, rel=1e-3)
    logits = torch.stack([torch.as_tensor(case.logits) for case in cases])
    assert cts.temperature(logits).min() == pytest.approx(one, rel=1e-3)
    alone = ContextualTemperatureScaling(CLASSES, features=False, classes=False).fit(cases)
    assert torch.equal(alone.temperature(logits), TemperatureScaling(CLASSES).fit(cases).temperature(logits))


def test_the_number_of_axes_is_checked() -> None:
    cases = heated(2, size=(9, 10, 8))
    with pytest.raises(InputError, match="set spatial_dims=3"):
        ContextualTemperatureScaling(CLASSES).fit(cases)
    fitted = ContextualTemperatureScaling(CLASSES).fit(heated(2, size=(16, 16)))
    with pytest.raises(InputError, match="2 axes in S"):
        fitted.temperature(torch.zeros(1, CLASSES, 4, 4, 4))


# --------------------------------------------------------------------------------------------------------------------
# pairs of classes


def confused(count: int, seed: int = 0) -> list[Case]:
    """Scenes in which class 0, where it is predicted, is truly class 1 far more often than the scores say."""
    random, cases = np.random.default_rng(seed), []
    for case in heated(count, seed=seed):
        logits = np.asarray(case.logits, np.float64)
        wrong = (logits.argmax(0) == 0) & (random.random(logits.shape[1:]) < 0.35)
        cases.append(replace(case, labels=np.where(wrong, 1, np.asarray(case.labels))))
    return cases


@pytest.mark.usefixtures("few_strengths")
def test_pairs_learn_what_is_confused_and_lower_the_nll_of_other_scenes() -> None:
    cases, others = confused(12), confused(6, seed=5)
    plain, paired = (ContextualTemperatureScaling(CLASSES, pairs=pairs).fit(cases) for pairs in (False, True))
    details = paired.fit_report_.details
    assert details["ridge_pairs"] is not None
    assert paired.pair_offsets[0, 1] < min(-0.3, float(paired.pair_offsets[0, 2:].min()))
    assert float(paired.pair_offsets.diagonal().abs().max()) == 0
    assert any(words.startswith("where class 0 is predicted, class 1 is more likely") for words in details["words"])
    before, after = (summed_nll(cts, cts.stream(others))[0] for cts in (plain, paired))
    assert after < 0.98 * before
    nll, count = summed_nll(paired, paired.stream(cases))
    assert paired.fit_report_.nll_after == pytest.approx(nll / count, rel=1e-5), "as it is applied"
    assert paired.learned == plain.learned + CLASSES * (CLASSES - 1)
    logits = torch.stack([torch.as_tensor(case.logits) for case in others])
    assert torch.equal(paired.temperature(logits), plain.temperature(logits)), "pairs come after the temperatures"
    sure = torch.softmax(logits / min(1.0, float(paired.floor)), dim=1).amax(dim=1)
    assert (paired.predict_proba(logits).amax(dim=1) <= sure + 1e-6).all()


@pytest.mark.usefixtures("few_strengths")
def test_labels_survive_offsets_that_leave_next_to_no_margin() -> None:
    """A margin of 1 becomes one of 1e-3 to 1e-26, which the rounding of a logarithm exceeds."""
    paired = ContextualTemperatureScaling(CLASSES, pairs=True).fit(heated(3, size=(24, 20)))
    logits = torch.randn(8, CLASSES, 48, 48, generator=torch.Generator().manual_seed(0))
    logits = logits * torch.tensor([0.01, 1.0, 10.0, 100.0]).repeat(2).view(-1, 1, 1, 1)
    for offset, dtype in product((-8.0, -20.0, -60.0), (torch.float32, torch.float16, torch.bfloat16)):
        paired.pair_offsets.fill_(offset).fill_diagonal_(0.0)
        z = logits.to(dtype)
        for found in (paired(z), paired.predict_proba(z)):
            assert torch.equal(found.argmax(dim=1), z.argmax(dim=1)), (offset, dtype)


def test_pairs_that_hold_nowhere_else_are_not_learned() -> None:
    cases = [replace(case, group="only") for case in heated(6, size=(24, 20))]
    paired = ContextualTemperatureScaling(CLASSES, pairs=True).fit(cases)
    assert paired.fit_report_.details["ridge_pairs"] is None
    assert float(paired.pair_offsets.abs().max()) == 0
    logits, plain = torch.as_tensor(cases[0].logits)[None], ContextualTemperatureScaling(CLASSES).fit(cases)
    torch.testing.assert_close(paired.predict_proba(logits), plain.predict_proba(logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"features": False}, {"sharpen": True}, {"loss": "nll+brier"}])
def test_few_passes_reach_a_slope_of_zero(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """From a sample of half of the pixels, three passes at most bring every slope below 1e-6."""
    cases, many = heated(8, size=(48, 48)), len(FEATURES) if settings.get("features", True) else 0
    sample = draw_sample(CaseStream(cases, CLASSES), spatial_dims=2, features=many > 0)
    monkeypatch.setattr("segcal.calibrators.shared.context_sample._SAMPLE", 9216)
    cts = ContextualTemperatureScaling(CLASSES, **settings).fit(cases)
    report = cts.fit_report_
    assert 1 < report.steps <= 3
    point = np.concatenate([[float(cts.intercept)], cts.coefficients.numpy(), cts.class_offsets.numpy()])
    floor = Floor(float(cts.floor), float(cts.softness))
    loss = MeanLoss(lambda: [sample.data.values], (0.05, 100.0), floor=floor, brier=float("loss" in settings))
    found = loss.at(point)
    assert found.pixels == report.pixels
    strengths = [report.details[name] for name in ("ridge_features", "ridge_classes")]
    penalty = Strengths(*(np.inf if each is None else each for each in strengths)).penalty(many, CLASSES)
    free = np.isfinite(penalty)
    slope = found.gradient[free] / found.pixels + penalty[free] * point[free]
    np.testing.assert_allclose(slope, 0, atol=1e-6)
