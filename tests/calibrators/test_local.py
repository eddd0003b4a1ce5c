"""LTS and IBTS: exact to the paper's equation, and able to find what simulated scenes hide."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from segcal import Case, InputError, create, evaluate
from segcal.calibrators.local import UNCHECKED_SHARE, LocalTemperatureScaling, clipping
from segcal.calibrators.shared import local_training
from segcal.calibrators.shared.tree import TemperatureTree
from segcal.cases import stream as stream_module
from segcal.data.sample.scenes import Scene, simulate
from support.fits import mean_nll
from support.nine_convolutions import NineConvolutions
from support.slow_evaluation import IGNORED, make_cases, slow, slow_regions

SIZES = {2: (11, 14), 3: (6, 7, 9)}


def cases_of(scenes: list[Scene]) -> list[Case]:
    return [scene.case for scene in scenes]


def tensors(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(case.logits)[None], torch.as_tensor(case.image)[None]


def random_tree(dims: int, channels: int, **options: object) -> TemperatureTree:
    torch.manual_seed(0)
    tree = TemperatureTree(4, dims, channels, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in tree.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape))
    return tree.double()


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("channels", [0, 1, 3])
@pytest.mark.parametrize("positivity", ["relu", "softplus", "exp"])
@pytest.mark.parametrize("root_offset", [0.0, 1.0])
def test_the_fused_tree_is_the_papers(dims: int, channels: int, positivity: str, root_offset: float) -> None:
    tree = random_tree(dims, channels, positivity=positivity, root_offset=root_offset)
    printed = NineConvolutions(4, dims, channels, positivity, root_offset).double()
    printed.take_weights(tree.of_logits, tree.of_image)
    x = torch.randn(2, 4, *SIZES[dims], dtype=torch.float64)
    y = torch.randn(2, channels, *SIZES[dims], dtype=torch.float64) if channels else None
    ours, theirs = tree(x, y), printed(x, y)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
    weight = torch.randn(ours.shape, dtype=torch.float64)
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    for k, name in enumerate(["v1", "v2", "v3", "v4", "c5", "c6", "c7", "c8"][: tree.of_logits.weight.shape[0]]):
        assert torch.allclose(tree.of_logits.weight.grad[k], printed.convs[name].weight.grad[0], atol=1e-6)
        assert torch.allclose(tree.of_logits.bias.grad[k], printed.convs[name].bias.grad[0], atol=1e-6)
    if tree.of_image is not None:
        assert torch.allclose(tree.of_image.weight.grad, printed.convs["v5"].weight.grad, atol=1e-6)


@pytest.mark.parametrize("dims", [2, 3])
def test_ibts_is_the_mean_of_the_tree(dims: int) -> None:
    """The pooling of the appendix: one temperature per image, the mean of the tree's over its own pixels."""
    options = {"spatial_dims": dims, "image_channels": 1, "preset": "paper", "bounds": (1e-30, 1e30)}
    lts, ibts = (create(method, 4, **options) for method in ("lts", "ibts"))
    lts.tree.load_state_dict(random_tree(dims, 1).float().state_dict())
    lts.fitted.fill_(True)
    ibts.load_state_dict(lts.state_dict())
    logits, image = torch.randn(2, 4, *SIZES[dims]), torch.randn(2, 1, *SIZES[dims])
    local, whole = lts.temperature(logits, image), ibts.temperature(logits, image)
    expected = local.flatten(1).mean(dim=1)
    torch.testing.assert_close(whole, expected.view(-1, *[1] * (dims + 1)).expand_as(local))
    assert expected[0] != expected[1]


def test_the_order_of_the_classes_is_kept() -> None:
    lts = create("lts", 4, preset="paper")
    lts.tree.load_state_dict(random_tree(2, 0).float().state_dict())
    lts.fitted.fill_(True)
    logits = torch.randn(2, 4, 11, 14, dtype=torch.float64)
    assert lts.temperature(logits).unique().numel() > 100
    assert torch.equal(lts.predict_proba(logits).argsort(1), logits.argsort(1))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("method", ["lts", "ibts"])
def test_the_loss_is_over_all(method: str, dims: int) -> None:
    """The first loss, at T = 1, is the NLL of the uncalibrated scores within labels, with Boundary, and no further."""
    cases, losses = make_cases(dims), list[float]()
    nlls, pixels = zip(
        *((slow(case, 1.0, slow_regions(case)["all"])["nll"], slow_regions(case)["all"].sum()) for case in cases),
        strict=True,
    )
    everywhere = [slow(case, 1.0, np.asarray(case.labels) != IGNORED)["nll"] for case in cases]
    calibrator = create(method, 3, spatial_dims=dims, background=0, ignore_index=IGNORED, preset="paper", init="zeros")
    calibrator.fit(cases, epochs=1, batch_size=len(cases), watch=lambda epoch: losses.append(epoch.loss))
    expected = np.average(nlls, weights=pixels)
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[0] != pytest.approx(np.mean(everywhere), rel=1e-2)
    assert calibrator.fit_report_.pixels == sum(pixels)


@pytest.mark.parametrize(("channels", "expected"), [(3, 8 * (21 * 25 + 1) + 76), (0, 7 * (21 * 25 + 1))])
def test_parameter_count(channels: int, expected: int) -> None:
    assert sum(p.numel() for p in create("lts", 21, image_channels=channels).parameters()) == expected


@pytest.mark.parametrize("positivity", ["relu", "softplus", "exp"])
@pytest.mark.parametrize(("offset", "start"), [(0.0, 1.0), (1.0, 2.0)])
def test_temperature_starts_at_one(positivity: str, offset: float, start: float) -> None:
    tree = TemperatureTree(3, 2, 1, positivity=positivity, root_offset=offset, init="zeros")  # type: ignore[arg-type]
    tree.reset(torch.Generator())
    expected = {"relu": start, "softplus": np.log1p((np.e - 1) * np.exp(offset)), "exp": np.exp(offset)}[positivity]
    found = tree(torch.randn(1, 3, 9, 9), torch.randn(1, 1, 9, 9))
    assert torch.allclose(found, torch.full_like(found, float(expected)), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (4, 30), (5, 5)])
def test_images_too_small_to_reflect(shape: tuple[int, int]) -> None:
    tree = random_tree(2, 0).float()
    assert tree(torch.randn(1, 4, *shape)).shape == (1, 1, *shape)


LOCAL = {
    2: (
        {"size": (80, 80), "num_classes": 5, "temperatures": (0.5, 4.0), "contrast": 3.0},
        {"learning_rate": 4e-3, "epochs": 40},
        {"positivity": "relu", "sharpen": True},
        {"scenes": 24, "patch": 40, "rank": 0.9, "worst": 0.5},
    ),
    3: (
        {"size": (20, 28, 28), "num_classes": 3, "temperatures": (0.4, 6.0), "contrast": 2.0},
        {"learning_rate": 6e-3, "epochs": 30},
        {"positivity": "softplus", "sharpen": True},
        {"scenes": 24, "patch": 14, "rank": 0.8, "worst": 0.6},
    ),
}


@pytest.mark.parametrize("dims", [2, 3])
def test_lts_finds_a_smooth_field_and_corrects_the_worst_patch(dims: int) -> None:
    """One test for all that follows from one fit, which takes its time."""
    scene, training, tree, counts = LOCAL[dims]
    classes, fit = int(scene["num_classes"]), int(counts["scenes"])
    scenes, held_out = simulate(fit + 4, seed=1, **scene), simulate(6, seed=2, **scene)
    train, validation = cases_of(scenes[:fit]), cases_of(scenes[fit:])
    ts = create("ts", classes).fit(train)
    lts = create("lts", classes, spatial_dims=dims, image_channels=1, **tree)
    lts.fit(train, validation=validation, flips=True, **training)

    with torch.no_grad():
        found = [lts.temperature(*tensors(hidden.case)).numpy().ravel() for hidden in held_out]
    truth = np.concatenate([hidden.temperature.ravel() for hidden in held_out])
    assert spearmanr(truth, np.concatenate(found)).statistic > counts["rank"]

    options = {"num_classes": classes, "patch_size": counts["patch"], "repetitions": 10}
    frame = evaluate(cases_of(held_out), {"TS": ts, "LTS": lts}, **options).to_frame()
    worst = frame[(frame.region == "local-max") & (frame.metric == "ece")].groupby("method").value.mean()
    assert worst["LTS"] <= counts["worst"] * worst["TS"]


def test_ibts_finds_one_temperature_per_image_and_ts_cannot() -> None:
    options = {"size": (32, 32), "variation": "image", "temperatures": (0.5, 3.0), "contrast": 3.0}
    scenes, held_out = simulate(64, seed=3, **options), simulate(10, seed=4, **options)
    train, validation = cases_of(scenes[:60]), cases_of(scenes[60:])
    ibts = create("ibts", 5, image_channels=1, sharpen=True)
    ibts.fit(train, validation=validation, learning_rate=5e-4, epochs=80, flips=True)
    ts = create("ts", 5).fit(train)

    def relative_errors(calibrator: torch.nn.Module) -> np.ndarray:
        errors = []
        for scene in held_out:
            with torch.no_grad():
                found = calibrator.temperature(*tensors(scene.case))
            assert found.unique().numel() == 1
            truth = scene.temperature.flat[0]
            errors.append(abs(float(found.flatten()[0]) - truth) / truth)
        return np.array(errors)

    assert relative_errors(ibts).mean() < 0.1
    assert relative_errors(ts).mean() > 0.3


@pytest.mark.parametrize(("init", "equal"), [("zeros", True), ("normal", False)])
def test_sibling_leaves(init: str, equal: bool) -> None:
    scenes = cases_of(simulate(4, size=(24, 24)))
    lts = create("lts", 5, image_channels=1, init=init).fit(scenes, epochs=3, learning_rate=1e-2)
    weight = lts.tree.of_logits.weight.detach()
    assert weight.abs().max() > 1e-3, "training moved nothing"
    assert torch.equal(weight[0], weight[1]) is equal
    assert torch.equal(weight[2], weight[3]) is equal


@pytest.mark.parametrize(("positivity", "dies"), [("relu", True), ("softplus", False)])
def test_a_dead_relu_is_reported(positivity: str, dies: bool) -> None:
    scenes = cases_of(simulate(4, size=(24, 24)))
    # T starts at 1 + offset: far below 0 the ReLU gives no gradient, and nothing is ever learned
    options = {"image_channels": 1, "positivity": positivity, "root_offset": -1.5}
    safe = create("lts", 5, sharpen=True, **options).fit(scenes, epochs=60, learning_rate=1e-2)
    assert (safe.fit_report_.details["share"] == 0) is dies
    report = create("lts", 5, preset="paper", **options).fit(scenes, epochs=60, learning_rate=1e-2).fit_report_
    assert any("ReLU" in warning and "softplus" in warning for warning in report.warnings) is dies
    assert (report.details["dead_share"] == 1.0) is dies
    assert (report.nll_after < report.nll_before) is not dies


@pytest.mark.parametrize("dims", [2, 3])
def test_slabs_give_the_same_bits_as_the_whole(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = {2: (43, 17), 3: (27, 8, 9)}[dims]
    scenes = cases_of(simulate(2, size=size))
    lts = create("lts", 5, spatial_dims=dims, image_channels=1).fit(scenes, epochs=3, learning_rate=1e-2)
    with torch.no_grad():
        whole = lts(*tensors(scenes[0]))
    for rows, cut in ((13, 8), (17, 16)):  # slabs are cut at multiples of 8, where tiles are
        monkeypatch.setattr(stream_module, "SLAB", rows * 5 * int(np.prod(size[1:])))
        parts = [slab.logits() for slab in lts.calibrate_case(scenes[0])]
        assert len(parts) == -(-size[0] // cut)
        assert torch.equal(torch.cat(parts, dim=2), whole)


def test_fitting_does_not_disturb_the_callers_random_numbers() -> None:
    lts, cases = create("lts", 5), cases_of(simulate(2, size=(16, 16)))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    lts.fit(cases, epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_an_image_that_is_missing_is_named() -> None:
    scene = simulate(1, size=(16, 16))[0].case
    blind = Case("no-picture", scene.logits, scene.labels)
    with pytest.raises(InputError, match="images need 1 channels, got none of case 'no-picture'"):
        create("lts", 5, image_channels=1).fit([blind], epochs=1)
    fitted = create("lts", 5, image_channels=1).fit([scene], epochs=1)
    with pytest.raises(InputError, match="needs an image of shape"):
        fitted(tensors(scene)[0])


@pytest.mark.parametrize("condition", ["class", "confidence"])
def test_a_condition_is_learned_and_is_the_equation(condition: str) -> None:
    """Labels are drawn from softmax(z / T_g), with one temperature for each group."""
    rng = np.random.default_rng(0)
    cases = []
    for k in range(12):
        logits = rng.normal(scale=4, size=(3, 24, 24))
        probs = np.exp(logits) / np.exp(logits).sum(0)
        group = logits.argmax(0) if condition == "class" else (probs.max(0) > 0.9).astype(int)
        heat = np.array([1.0, 2.0, 4.0])[group]
        true = np.exp(logits / heat) / np.exp(logits / heat).sum(0)
        labels = (rng.random((1, 24, 24)) > true.cumsum(0)).sum(0).clip(max=2)
        cases.append(Case(f"c{k}", logits.astype(np.float32), labels))
    settings = {"validation": cases[9:], "epochs": 60, "learning_rate": 1e-2}
    plain = create("lts", 3).fit(cases[:9], **settings)
    lts = create("lts", 3, condition=condition).fit(cases[:9], **settings)
    assert lts.fit_report_.nll_after < plain.fit_report_.nll_after - 0.01
    logits = torch.as_tensor(cases[0].logits)[None]
    with torch.no_grad():
        probs = torch.softmax(logits, 1).amax(1, keepdim=True)
        group = logits.argmax(1, keepdim=True) if condition == "class" else (torch.ceil(probs * 10) - 1).long()
        inputs = (torch.log_softmax(logits * lts.input_scale.float(), 1) - lts.input_mean.view(1, 3, 1, 1)) / (
            lts.input_deviation.view(1, 3, 1, 1)
        )
        tree = lts.tree.positive(lts.tree.root(inputs)) * torch.exp(lts.tree.of_group)[group]
        expected = (lts.base_temperature.float() * tree).clamp(max(0.05, float(lts.floor)), 100.0)
        torch.testing.assert_close(lts.temperature(logits), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(lts(logits).argmax(1), logits.argmax(1))


def small_scenes(count: int = 4, size: tuple[int, ...] = (24, 20)) -> list[Case]:
    return cases_of(simulate(count, size=size, num_classes=3, contrast=2.0, seed=5))


def changed(case: Case, factor: float, shift: float) -> Case:
    return replace(case, logits=(factor * np.asarray(case.logits, np.float64) + shift).astype(np.float32))


@pytest.mark.parametrize("method", ["lts", "ibts"])
@pytest.mark.parametrize(("factor", "shift"), [(1.0, -64.0), (8.0, 16.0)])
def test_a_shift_or_scale_of_the_logits_changes_no_probability(method: str, factor: float, shift: float) -> None:
    cases = small_scenes()
    others = [changed(case, factor, shift) for case in cases]
    settings = {"epochs": 4, "learning_rate": 1e-3, "batch_size": 2}
    options = {"image_channels": 1, "bounds": (1e-3, 1e3), "sharpen": True}  # the floor of 1 is about confidence
    one = create(method, 3, **options).fit(cases[:3], validation=cases[3:], **settings)
    other = create(method, 3, **options).fit(others[:3], validation=others[3:], **settings)
    assert one.fit_report_.details["share"] == other.fit_report_.details["share"] > 0
    logits, image = tensors(cases[3])
    moved, _ = tensors(others[3])
    torch.testing.assert_close(
        other.temperature(moved, image), factor * one.temperature(logits, image), rtol=1e-3, atol=0
    )
    found, expected = (c.predict_proba(z, image) for c, z in ((other, moved), (one, logits)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", ["lts", "ibts"])
def test_no_temperature_is_below_the_floor_unless_sharpening_is_allowed(method: str) -> None:
    cases = small_scenes(2)
    logits, _ = tensors(cases[0])
    assert create(method, 3).sharpen is False
    for sharpen in (False, True):
        calibrator = create(method, 3, sharpen=sharpen).fit(cases, epochs=1)
        one = calibrator.fit_report_.details["ts_temperature"]
        floor = 0.0 if sharpen else min(1.0, one)
        assert float(calibrator.floor) == floor
        calibrator.tree.shrink(0)
        calibrator.tree.of_logits.bias.data[:4] = -0.9  # the tree is 0.1 everywhere
        found = calibrator.temperature(logits)
        torch.testing.assert_close(found, torch.full_like(found, max(0.1 * one, floor, 0.05)), rtol=1e-5, atol=0)
        parts = torch.cat([slab.temperature for slab in calibrator.calibrate_case(cases[0])], dim=2)
        torch.testing.assert_close(parts, found)


@pytest.mark.parametrize("method", ["ibts", "lts"])
@pytest.mark.parametrize("sharpen", [False, True])
def test_the_report_has_the_range_of_temperatures_that_are_applied(method: str, sharpen: bool) -> None:
    cases = small_scenes()
    settings = {"epochs": 15, "learning_rate": 3e-3, "device": "cpu"}
    found = create(method, 3, sharpen=sharpen).fit(cases, validation=cases, **settings)
    assert isinstance(found, LocalTemperatureScaling)
    maps = torch.cat([found.temperature(tensors(case)[0]).flatten() for case in cases])
    details = found.fit_report_.details
    assert details["temperature_low"] == pytest.approx(float(maps.min()), rel=1e-4)
    assert details["temperature_high"] == pytest.approx(float(maps.max()), rel=1e-4)
    assert maps.min() < maps.max()


def test_the_warning_names_the_bounds_that_are_applied() -> None:
    (line,) = clipping(1.9e-8, 5.79, (0.05, 100.0), 0.8)
    assert line == "temperatures from 1.9e-08 to 5.79 were found, and are clipped to 0.8 and 100"
    (line,) = clipping(1.9e-8, 5.79, (0.05, 4.0), 0.0)
    assert line.endswith("clipped to 0.05 and 4")
    assert not [*clipping(0.5, 5.79, (0.05, 100.0), 0.8)]


def test_the_preset_of_the_paper_is_what_the_paper_does() -> None:
    """Raw logits, nine convolutions, from T = 1 and without a floor: trained here by a loop of its own."""
    cases = small_scenes(3)
    lts = create("lts", 3, image_channels=1, preset="paper")
    assert (lts.inputs, lts.sharpen) == ("logits", True)
    asked = [create("lts", 3, spatial_dims=dims, preset="paper")._settings(None, {}) for dims in (2, 3)]
    assert [(own.epochs, own.learning_rate, own.milestones, own.gamma, own.optimiser) for own in asked] == [
        (100, 1e-5, (50,), 0.1, "adam"),
        (100, 1e-4, (50,), 0.1, "adam"),
    ]
    lts.fit(cases, epochs=4, learning_rate=3e-3, device="cpu")
    start = create("lts", 3, image_channels=1, preset="paper").tree
    start.reset(torch.Generator().manual_seed(0))
    model = NineConvolutions(3, 2, 1)
    model.take_weights(start.of_logits, start.of_image)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    logits, image = (torch.cat(parts) for parts in zip(*map(tensors, cases), strict=True))
    labels = torch.stack([torch.as_tensor(np.array(case.labels)) for case in cases]).long()
    for _ in range(4):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits / model(logits, image).clamp(0.05, 100.0), labels).backward()
        optimiser.step()
    for k, name in enumerate(["v1", "v2", "v3", "v4", "c5", "c6", "c7", "c8"]):
        torch.testing.assert_close(
            lts.tree.of_logits.weight[k], model.convs[name].weight[0].detach(), rtol=0, atol=1e-4
        )
    torch.testing.assert_close(lts.tree.of_image.weight, model.convs["v5"].weight.detach(), rtol=0, atol=1e-4)
    torch.testing.assert_close(
        lts.temperature(logits, image), model(logits, image).detach().clamp(0.05, 100.0), rtol=1e-3, atol=1e-3
    )


def test_the_report_says_what_happened() -> None:
    cases = small_scenes(5)
    lts = create("lts", 3).fit(cases[:3], validation=cases[3:], epochs=1, learning_rate=1e-6)
    assert not lts.fit_report_.converged
    assert any("still falling when the epochs ended" in warning for warning in lts.fit_report_.warnings)
    # labels of the validation images are those of another network: whatever is learned is worse than nothing
    flipped = [replace(case, labels=np.asarray(case.logits).argmax(0)) for case in cases[3:]]
    wrong = [replace(case, labels=np.asarray(case.logits).argmin(0)) for case in cases[:3]]
    lts = create("lts", 3).fit(wrong, validation=flipped, epochs=3, learning_rate=1e-2)
    assert any("worse than uncalibrated on the validation images" in warning for warning in lts.fit_report_.warnings)
    details = lts.fit_report_.details
    assert details["validation_nll"] <= details["validation_nll_ts"]
    assert details["validation_nll"] > details["validation_nll_before"]


def test_nothing_learned_leaves_temperature_scaling_to_the_bit() -> None:
    cases = small_scenes(3)
    for positivity, offset in (("relu", 0.0), ("relu", 1.0), ("softplus", 0.0), ("exp", -0.5)):
        lts = create("lts", 3, image_channels=1, positivity=positivity, root_offset=offset)
        lts.fit(cases, epochs=2, learning_rate=1e3)  # far too large
        assert lts.fit_report_.details["share"] == 0
        assert lts.fit_report_.details["best_epoch"] == 0
        ts = create("ts", 3).fit(cases)
        logits, image = tensors(cases[0])
        torch.testing.assert_close(lts.temperature(logits, image), ts.temperature(logits), rtol=2e-7, atol=0)


def test_volumes_are_trained_on_in_crops_and_never_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, (40, 24, 20)).astype(np.uint8)
    scores = random.normal(size=(3, 40, 24, 20)).astype(np.float16)
    scores += 2 * (labels == np.arange(3)[:, None, None, None])
    np.save(tmp_path / "v.npy", scores)
    volume = Case("v", np.load(tmp_path / "v.npy", mmap_mode="r"), labels)
    monkeypatch.setattr(local_training, "LARGEST_SAMPLE", scores.size - 1)
    monkeypatch.setattr(local_training, "_CROP", 3 * 16**3)
    monkeypatch.setattr(stream_module, "SLAB", 1)
    read: list[int] = []

    def counting(original: Any) -> Any:
        def call(values: Any) -> torch.Tensor:
            if values.dtype == np.float16:
                read.append(values.size)
            return original(values)

        return call

    monkeypatch.setattr(stream_module, "to_tensor", counting(stream_module.to_tensor))
    for method in ("lts", "ibts"):
        # a GPU would hold all of it
        settings: dict[str, Any] = {"epochs": 2, "learning_rate": 1e-2, "device": "cpu", "cache_bytes": 0}
        fitted = create(method, 3, spatial_dims=3).fit([volume], validation=[volume], **settings)
        assert fitted.fit_report_.details["crop"] == 16
        assert 3 * 16**3 in read, "crops"
        assert max(read) == scores.size // 40 * 24, "slabs of 8 slices with 8 on either side"
        found = fitted(torch.as_tensor(scores)[None].float())
        nll = float(torch.nn.functional.cross_entropy(found, torch.as_tensor(labels).long()[None]))
        assert fitted.fit_report_.details["validation_nll"] == pytest.approx(nll, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("condition", [None, "class"])
def test_a_shrunk_tree_keeps_a_share_of_the_distance_from_one(share: float, condition: Any) -> None:
    tree = TemperatureTree(3, 2, 1, root_offset=0.7, condition=condition)
    logits, image = torch.randn(1, 3, 9, 8), torch.randn(1, 1, 9, 8)
    with torch.no_grad():
        for parameter in tree.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
        before, factor = tree.root(logits, image), tree.conditioned(torch.ones(1, 1, 9, 8), logits)
        tree.shrink(share)
        torch.testing.assert_close(tree.root(logits, image), 1 + share * (before - 1))
        torch.testing.assert_close(tree.conditioned(torch.ones(1, 1, 9, 8), logits), factor**share)


def test_validation_images_decide_how_far_to_go_from_ts() -> None:
    """Each share is tried by hand, from what was learned: the report's is the best of them on the validation images."""
    cases = small_scenes(6)
    found = create("lts", 3, positivity="exp").fit(cases[:2], validation=cases[2:], epochs=30, learning_rate=0.03)
    share = found.fit_report_.details["share"]
    assert share > 0
    found.tree.shrink(1 / share)
    learned = copy.deepcopy(found.tree.state_dict())
    losses = {}
    for tried in (0.25, 0.5, 0.75, 1.0):
        found.tree.load_state_dict(learned)
        found.tree.shrink(tried)
        losses[tried] = mean_nll(found, cases[2:])
    assert min(losses, key=losses.__getitem__) == share
    assert losses[share] == pytest.approx(found.fit_report_.details["validation_nll"], rel=1e-5)


def test_without_validation_images_a_part_of_the_way_is_kept() -> None:
    cases = small_scenes(3)
    one = create("lts", 3, positivity="exp").fit(cases, epochs=5, learning_rate=1e-2)
    paper = create("lts", 3, positivity="exp", preset="paper").fit(cases, epochs=5, learning_rate=1e-2)
    assert one.fit_report_.details["share"] == UNCHECKED_SHARE
    assert paper.fit_report_.details["share"] == 1.0
