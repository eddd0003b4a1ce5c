"""LTS and IBTS: exact to the paper's equation, and able to find what simulated scenes hide."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from segcal import Case, InputError, create, evaluate
from segcal import cases as cases_module
from segcal.calibrators.shared.tree import TemperatureTree
from segcal.data.datasets.simulate import Scene, simulate
from support.nine_convolutions import NineConvolutions

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
        {"size": (96, 96), "num_classes": 5, "temperatures": (0.5, 4.0), "contrast": 3.0},
        {"learning_rate": 3e-3, "epochs": 60},
        {"positivity": "relu", "sharpen": True},
        {"scenes": 30, "patch": 48},
    ),
    3: (
        {"size": (20, 28, 28), "num_classes": 3, "temperatures": (0.4, 6.0), "contrast": 2.0},
        {"learning_rate": 1e-3, "epochs": 130},
        {"positivity": "softplus", "sharpen": True},
        {"scenes": 48, "patch": 14},
    ),
}


@pytest.mark.parametrize("dims", [2, 3])
def test_lts_finds_a_smooth_field_and_mends_the_worst_patch(dims: int) -> None:
    """One test for all that follows from one fit, which takes its time."""
    scene, training, tree, counts = LOCAL[dims]
    classes, fit = int(scene["num_classes"]), counts["scenes"]
    scenes, held_out = simulate(fit + 4, seed=1, **scene), simulate(6, seed=2, **scene)
    train, validation = cases_of(scenes[:fit]), cases_of(scenes[fit:])
    ts = create("ts", classes).fit(train)
    lts = create("lts", classes, spatial_dims=dims, image_channels=1, **tree)
    lts.fit(train, validation=validation, flips=True, **training)

    with torch.no_grad():
        found = [lts.temperature(*tensors(hidden.case)).numpy().ravel() for hidden in held_out]
    truth = np.concatenate([hidden.temperature.ravel() for hidden in held_out])
    assert spearmanr(truth, np.concatenate(found)).statistic > 0.9

    options = {"num_classes": classes, "patch_size": counts["patch"], "repetitions": 10}
    frame = evaluate(cases_of(held_out), {"TS": ts, "LTS": lts}, **options).to_frame()
    worst = frame[(frame.region == "local-max") & (frame.metric == "ece")].groupby("method").value.mean()
    assert worst["LTS"] <= 0.5 * worst["TS"]

    for hidden in held_out:
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            logits, image = (values.to(dtype) for values in tensors(hidden.case))
            with torch.no_grad():
                calibrated, probs = lts(logits, image), lts.predict_proba(logits, image)
            assert torch.equal(calibrated.argmax(1), logits.argmax(1))
            assert torch.equal(probs.argmax(1), logits.argmax(1))


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


def test_lts_loses_little_where_one_temperature_is_enough() -> None:
    options = {"size": (64, 64), "variation": "global", "temperatures": (0.5, 2.0), "contrast": 3.0}
    scenes, held_out = simulate(24, seed=7, **options), simulate(8, seed=8, **options)
    train, validation = cases_of(scenes[:20]), cases_of(scenes[20:])
    lts = create("lts", 5, image_channels=1).fit(train, validation=validation, learning_rate=1e-3, epochs=30)
    ts = create("ts", 5).fit(train)
    results = evaluate(cases_of(held_out), {"TS": ts, "LTS": lts}, num_classes=5, patches=0, repetitions=10)
    pooled = results.pooled().query("region == 'all' and metric == 'nll'").set_index("method").value
    assert pooled["LTS"] <= 1.05 * pooled["TS"]


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
    lts = create("lts", 5, image_channels=1, positivity=positivity, root_offset=-1.5)
    lts.fit(scenes, epochs=60, learning_rate=1e-2)
    report = lts.fit_report_
    assert any("ReLU" in warning and "softplus" in warning for warning in report.warnings) is dies
    assert (report.details["dead_share"] == 1.0) is dies
    assert (report.nll_after < report.nll_before) is not dies


@pytest.mark.parametrize("method", ["lts", "ibts"])
@pytest.mark.parametrize("dims", [2, 3])
def test_slabs_give_what_the_whole_gives(method: str, dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = {2: (43, 17), 3: (27, 8, 9)}[dims]
    scenes = cases_of(simulate(3, size=size))
    calibrator = create(method, 5, spatial_dims=dims, image_channels=1)
    calibrator.fit(scenes, epochs=3, learning_rate=1e-2)
    case = scenes[0]
    with torch.no_grad():
        whole = calibrator(*tensors(case))
    for rows, cut in ((1, 8), (13, 8), (17, 16)):  # slabs are cut at multiples of 8, where tiles are
        monkeypatch.setattr(cases_module, "_SLAB", rows * 5 * int(np.prod(size[1:])))
        parts = [logits for _, logits in calibrator.calibrate_case(case)]
        assert len(parts) == -(-size[0] // cut)
        if method == "lts":
            assert torch.equal(torch.cat(parts, dim=2), whole)
        else:
            assert torch.allclose(torch.cat(parts, dim=2), whole, atol=2e-5)
        heats = torch.cat([heat for _, heat in calibrator.temperature_case(case)], dim=2)
        assert heats.shape == (1, 1, *size)


def test_fitting_does_not_disturb_the_callers_random_numbers() -> None:
    lts, cases = create("lts", 5), cases_of(simulate(2, size=(16, 16)))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    lts.fit(cases, epochs=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positivity": "abs"}, "positivity must be one of relu, softplus, exp, got abs"),
        ({"spatial_dims": 4}, "spatial_dims must be one of 2, 3, got 4"),
        ({"init": "ones"}, "init must be one of normal, zeros"),
        ({"preset": "quick"}, "preset must be one of default, paper"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        create("lts", 5, **settings)


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
    plain = create("lts", 3).fit(cases, epochs=80, learning_rate=1e-2)
    lts = create("lts", 3, condition=condition).fit(cases, epochs=80, learning_rate=1e-2)
    assert lts.fit_report_.nll_after < plain.fit_report_.nll_after - 0.01
    logits = torch.as_tensor(cases[0].logits)[None]
    with torch.no_grad():
        probs = torch.softmax(logits, 1).amax(1, keepdim=True)
        group = logits.argmax(1, keepdim=True) if condition == "class" else (torch.ceil(probs * 10) - 1).long()
        expected = lts.tree.positive(lts.tree.root(logits)) * torch.exp(lts.tree.of_group)[group]
        found = lts.temperature(logits)
        torch.testing.assert_close(found, expected.clamp(0.05, 100.0))
        assert torch.equal(lts(logits).argmax(1), logits.argmax(1))


def test_a_condition_is_for_local_temperatures() -> None:
    with pytest.raises(InputError, match="one temperature for the whole image"):
        create("ibts", 3, condition="class")
    with pytest.raises(InputError, match="condition must be one of"):
        create("lts", 3, condition="size")
