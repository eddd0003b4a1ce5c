"""The streaming suite: against loops, in parts, merged, on 17 million pixels, in two processes."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection

from segcal import CalibrationSuite
from segcal.evidence import Evidence, Form
from segcal.functional.catalogue import METRICS
from segcal.types import Activation, InputError
from support import references
from support.distributed_worker import everything, run, scenario_batches, scenario_suite, uniform_updates

FORMS: tuple[Form, ...] = get_args(Form)
POOLED_EXACTLY = tuple(name for name in METRICS if name != "ace")  # pooled ACE has a stated error instead
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def batch(
    seed: int = 0, *, images: int = 3, classes: int = 4, space: tuple[int, ...] = (6, 7), spread: float = 3.0
) -> tuple[Tensor, Tensor]:
    """Logits and labels, of which 9 and 255 are to be ignored."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([*range(classes), 9, 255], size=(images, *space))
    return torch.from_numpy(rng.normal(scale=spread, size=(images, classes, *space))), torch.from_numpy(labels)


def shown(logits: Tensor, labels: Tensor, mask: Any = None, **options: Any) -> CalibrationSuite:
    suite = CalibrationSuite(logits.shape[1], (9, 255), **options)
    suite.update(logits, labels, mask)
    return suite


def expected(logits: Tensor, labels: Tensor, mask: Tensor | None = None, **options: Any) -> dict[str, float]:
    outside = torch.isin(labels, torch.tensor([9, 255])) | (False if mask is None else ~mask)
    return references.readings(*references.flat(logits.double(), labels.masked_fill(outside, -1)), **options)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Any], names: tuple[str, ...] = METRICS) -> None:
    for name in (*names, "pixels"):
        assert float(found[name]) == pytest.approx(float(wanted[name]), rel=1e-12, abs=1e-12, nan_ok=True), name


def tensors(nested: Any) -> Iterator[Tensor]:
    for value in nested.values():
        yield from tensors(value) if isinstance(value, dict) else (value,)


def assert_close(one: Any, other: Any, tolerance: float = 1e-12) -> None:
    for a, b in zip(tensors(one), tensors(other), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


# ---------------------------------------------------------------------------------------------------------------------
# against loops


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("space", "classes", "bins", "dtype"),
    [
        ((), 3, 10, torch.float64),
        ((50,), 2, 10, torch.bfloat16),
        ((6, 7), 4, 15, torch.float32),
        ((3, 4, 5), 11, 3, torch.float16),
    ],
)
def test_pooled_and_single_images_agree_with_loops(
    space: tuple[int, ...], classes: int, bins: int, form: Form, dtype: torch.dtype
) -> None:
    logits, labels = batch(space=space, classes=classes)
    logits = logits.to(dtype)
    suite = shown(logits, labels, bins=bins, form=form, per_image=True)
    assert_same(suite.compute()["all"], expected(logits, labels, bins=bins, form=form), POOLED_EXACTLY)
    images = suite.compute_images()["all"]
    for k in range(3):
        wanted = expected(logits[k : k + 1], labels[k : k + 1], bins=bins, form=form)
        assert_same({name: values[k] for name, values in images.items()}, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_huge_logits_stay_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[[1e4, -1e4, 1e4, 0], [-1e4, 1e4, 1e4, 0]]], dtype=dtype)
    labels = torch.tensor([[0, 0, 1, 9]])
    assert_same(shown(logits, labels).compute()["all"], expected(logits, labels))


@pytest.mark.parametrize("form", FORMS)
def test_regions_and_classes_agree_with_loops(form: Form) -> None:
    logits, labels = batch(5)
    rng = np.random.default_rng(1)
    masks = {name: torch.from_numpy(rng.random(labels.shape) < share) for name, share in (("a", 0.5), ("b", 0.1))}
    masks["none"] = torch.zeros_like(masks["a"])
    suite = shown(logits, labels, masks, regions=("a", "none", "b"), form=form, per_image=True)
    pooled, images, classes = suite.compute(), suite.compute_images(), suite.compute_classes()
    for name, mask in masks.items():
        assert_same(pooled[name], expected(logits, labels, mask, form=form), POOLED_EXACTLY)
        for k in range(3):
            one = slice(k, k + 1)
            found = {metric: values[k] for metric, values in images[name].items()}
            assert_same(found, expected(logits[one], labels[one], mask[one], form=form))
        outside = torch.isin(labels, torch.tensor([9, 255])) | ~mask
        table = references.class_table(*references.flat(logits, labels.masked_fill(outside, -1)))
        for c, row in enumerate(table):
            assert {k: float(v[c]) for k, v in classes[name].items()} == pytest.approx(row, abs=1e-12, nan_ok=True)


def test_an_empty_region_is_nan_and_never_zero() -> None:
    logits, labels = batch()
    nothing = torch.zeros(labels.shape, dtype=torch.bool)
    suite = shown(logits, labels, nothing, per_image=True)
    found = suite.compute()["all"]
    assert found["pixels"] == 0
    assert all(found[name].isnan() for name in METRICS)
    images = suite.compute_images()["all"]
    assert images["pixels"].tolist() == [0, 0, 0]
    assert all(images[name].isnan().all() for name in METRICS)
    assert np.isnan(suite.ace_error_bound()["all"])
    assert suite.compute_curves()["all"]["pixels"].sum() == 0


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 4, 0)], ids=str)
def test_a_batch_without_pixels_adds_nothing(shape: tuple[int, ...]) -> None:
    suite = CalibrationSuite(4, per_image=True)
    suite.update(torch.zeros(shape), torch.zeros((shape[0], *shape[2:]), dtype=torch.int64))
    assert suite.compute()["all"]["pixels"] == 0
    assert suite.compute_images()["all"]["ece"].shape == (shape[0],)


def test_a_suite_that_saw_nothing_warns_and_says_nan() -> None:
    with pytest.warns(UserWarning, match="before the ``update``"):
        found = CalibrationSuite(3).compute()["all"]
    assert found["ece"].isnan()
    assert found["pixels"] == 0


# ---------------------------------------------------------------------------------------------------------------------
# in parts and together


@pytest.mark.parametrize("form", FORMS)
def test_parts_masks_chunks_and_order_do_not_matter(monkeypatch: pytest.MonkeyPatch, form: Form) -> None:
    logits, labels = batch(images=6)
    whole = shown(logits, labels, form=form)
    one_by_one = CalibrationSuite(4, (9, 255), form=form)
    for k in (3, 1, 0, 5, 4, 2):
        one_by_one.update(logits[k : k + 1], labels[k : k + 1])
    half = torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    masked = shown(logits, labels, half, form=form)
    masked.update(logits, labels, ~half)
    monkeypatch.setattr("segcal.functional.counting._PART", 5)
    monkeypatch.setattr("segcal.evidence.statistic._PART", 5)
    chunked = shown(logits, labels, form=form)
    for suite in (one_by_one, masked, chunked):
        assert_close(suite.compute(), whole.compute())
        assert_close(suite.compute_classes(), whole.compute_classes())
        assert suite.ace_error_bound() == whole.ace_error_bound()


@pytest.mark.parametrize("per_image", [False, True])
def test_merged_suites_are_one(per_image: bool) -> None:
    parts = batch(1), batch(2, images=2)
    one, other = (shown(*part, per_image=per_image) for part in parts)
    whole = shown(*(torch.cat(pair) for pair in zip(*parts, strict=True)), per_image=per_image)
    added = CalibrationSuite(4, (9, 255), per_image=per_image)
    added.update(*(part[:0] for part in parts[0]))
    for name in added._defaults:
        setattr(added, name, getattr(one, name) + getattr(other, name))
    one.merge_state(other)
    assert_close(added.compute(), whole.compute())
    if per_image:
        assert_close(added.compute_images(), whole.compute_images())
        # torchmetrics puts what is merged first
        merged, together = (suite.compute_images()["all"]["ece"].sort().values for suite in (one, whole))
        assert torch.equal(merged, together)
    assert_close(one.compute(), whole.compute())


def test_forward_gives_the_batch_and_keeps_the_whole() -> None:
    suite = CalibrationSuite(4, (9, 255), per_image=True)
    parts = batch(1), batch(2)
    for part in parts:
        assert_close(suite(*part), shown(*part).compute())
    whole = shown(*(torch.cat(pair) for pair in zip(*parts, strict=True)), per_image=True)
    assert_close(everything(suite), everything(whole))


def test_computing_twice_and_between_updates_changes_nothing() -> None:
    suite = shown(*batch(1), per_image=True)
    everything(suite)
    suite.update(*batch(2))
    whole = shown(*(torch.cat(pair) for pair in zip(batch(1), batch(2), strict=True)), per_image=True)
    assert_close(everything(suite), everything(whole))
    assert_close(everything(suite), everything(whole))


def state_bytes(suite: CalibrationSuite) -> int:
    states = [getattr(suite, name) for name in suite._defaults]
    return sum(t.untyped_storage().nbytes() for s in states for t in (s if isinstance(s, list) else [s]))


def test_memory_stays_constant() -> None:
    suite = shown(*batch())
    before = state_bytes(suite)
    for seed in range(5):
        suite.update(*batch(seed, space=(20, 20)))
    assert state_bytes(suite) == before


COPIES: dict[str, Callable[[CalibrationSuite], CalibrationSuite]] = {
    "pickle": lambda suite: pickle.loads(pickle.dumps(suite)),
    "deepcopy": copy.deepcopy,
    "clone": lambda suite: suite.clone(),
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies_live_on_by_themselves(duplicate: Callable[[CalibrationSuite], CalibrationSuite]) -> None:
    suite = shown(*batch(1), per_image=True)
    before = copy.deepcopy(everything(suite))
    other = duplicate(suite)
    other.update(*batch(2))
    assert_close(everything(suite), before, tolerance=0)
    whole = shown(*(torch.cat(pair) for pair in zip(batch(1), batch(2), strict=True)), per_image=True)
    assert_close(everything(other), everything(whole))


def test_state_dict_there_and_back() -> None:
    suite, other = shown(*batch(1)), shown(*batch(2))
    suite.persistent(True)
    other.persistent(True)
    other.load_state_dict(suite.state_dict())
    assert_close(other.compute(), suite.compute(), tolerance=0)


CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "half": lambda module: module.half(),
    "float": lambda module: module.float(),
    "bfloat16": lambda module: module.bfloat16(),
    "to half": lambda module: module.to(torch.float16),
    "to device and half": lambda module: module.to("cpu", torch.float16),
    "type": lambda module: module.type(torch.float32),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_a_cast_of_the_model_does_not_touch_the_sums(cast: Callable[[nn.Module], nn.Module]) -> None:
    suite = shown(*batch(1), per_image=True)
    before = copy.deepcopy(everything(suite))
    model = cast(nn.ModuleDict({"network": nn.Linear(2, 2), "suite": suite}))
    assert_close(everything(model["suite"]), before, tolerance=0)
    suite.reset()
    suite.update(*batch(1))
    assert {suite.sums.dtype, suite.top_confidence.dtype, suite.cells_confidence.dtype} == {torch.float64}
    assert_close(everything(suite), before, tolerance=0)


# ---------------------------------------------------------------------------------------------------------------------
# many pixels and several processes

CONFIDENCE = 1 / (1 + np.exp(-1.0))


def assert_uniform(found: dict[str, Tensor], pixels: int) -> None:
    assert found["pixels"] == pixels
    assert found["accuracy"] == 0.75
    for name in ("ece", "mce", "sce"):
        assert found[name].item() == pytest.approx(0.75 - CONFIDENCE, abs=1e-12)
    # one long sum for each cell of the fine histogram
    assert found["ace"].item() == pytest.approx(0.75 - CONFIDENCE, abs=1e-9)
    assert found["nll"].item() == pytest.approx(0.25 - np.log(CONFIDENCE), rel=1e-12)


@pytest.mark.parametrize(("updates", "pixels"), [(1, 17_000_000), (100, 170_000)])
def test_more_pixels_than_float32_counts(set_threads: Callable[[int], None], updates: int, pixels: int) -> None:
    set_threads(1)  # many small updates are slow on a busy machine when threads wait for each other
    total = updates * pixels
    assert total > 2**24  # where a float32 counter stops
    suite = CalibrationSuite(2)
    uniform_updates(suite, updates, pixels)
    assert (suite.top_pixels.sum(), suite.top_hit.sum()) == (total, total // 4 * 3)
    assert (suite.cells_pixels.sum(), suite.cells_hit.sum()) == (total, total // 4 * 3)
    assert suite.support.tolist() == [[[total // 4, total // 4 * 3]]]
    assert suite.compute_curves()["all"]["pixels"].tolist() == [0, 0, 0, 0, 0, 0, 0, total, 0, 0]
    assert_uniform(suite.compute()["all"], total)


def test_two_processes_are_one(tmp_path: Path) -> None:
    """An even share, an uneven share, and a process that sees no image at all."""
    scenarios = {f"{form} {images}": (form, images) for form in FORMS for images in (4, 3, 1)}
    torch.multiprocessing.spawn(run, (2, str(tmp_path), scenarios, (100, 170_000)), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, (form, images) in scenarios.items():
        assert all(part[name].pop("kept its own") for part in found)
        batches = scenario_batches(4, images)
        whole = scenario_suite(form)
        for part in (*batches[0::2], *batches[1::2]):  # images come process by process
            whole.update(*part)
        for part in found:
            assert_close(part[name], everything(whole))
    for part in found:
        assert_uniform(part["uniform"]["pooled"]["all"], 17_000_000)


# ---------------------------------------------------------------------------------------------------------------------
# mistakes

LOGITS, LABELS = batch()
MASK = torch.ones(LABELS.shape, dtype=torch.bool)
WRONG_UPDATES = {
    "classes": ((LOGITS[:, :3], LABELS), "logits must have num_classes=4 entries along axis 1, got shape (3, 3, 6, 7)"),
    "space": ((LOGITS, LABELS[:, :5]), "labels must have shape (3, 6, 7) to match logits of shape (3, 4, 6, 7)"),
    "label": ((LOGITS, LABELS.where(LABELS != 9, 8)), "labels must be in 0..3 or ignore_index=(9, 255), got 8 at"),
    "integers": ((LOGITS.long(), LABELS), "logits must be floating point, got torch.int64"),
    "infinite": ((LOGITS / 0, LABELS), "logits must be finite, or -inf for an impossible class, got"),
    "numbers": (
        (LOGITS, LABELS, MASK.int()),
        "the mask of region 'all' must be Bool of shape (3, 6, 7), got torch.int32",
    ),
    "shape": ((LOGITS, LABELS, MASK[:1]), "must be Bool of shape (3, 6, 7), got torch.bool of shape (1, 6, 7)"),
    "other": ((LOGITS, LABELS, {"boundary": MASK}), "a mask for each of ('all',), got ('boundary',); set regions="),
    "more": ((LOGITS, LABELS, {"all": MASK, "b": MASK}), "a mask for each of ('all',), got ('all', 'b'); set regions="),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG_UPDATES.values(), ids=WRONG_UPDATES)
def test_a_wrong_update_is_refused_and_leaves_no_trace(arguments: tuple[Any, ...], message: str) -> None:
    suite = shown(LOGITS, LABELS)
    before = copy.deepcopy(suite.compute())
    with pytest.raises(InputError, match=re.escape(message)):
        suite.update(*arguments)
    suite.update(LOGITS[:0], LABELS[:0])
    assert_close(suite.compute(), before, tolerance=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"num_classes": 2, "bins": 0}, "bins must be at least 1, got 0"),
        ({"num_classes": 2, "form": "paper"}, "form must be 'tables', 'equations' or 'marginal', got 'paper'"),
    ],
)
def test_a_wrong_suite_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        CalibrationSuite(**options)
    with pytest.raises(InputError, match="per_image=True"):
        shown(LOGITS, LABELS).compute_images()


def deferring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let suites add batches as they do on a GPU; without one, the plain form does it."""
    monkeypatch.setattr("segcal.evidence.suite.engine_for", lambda *_: "triton")


def test_a_pass_that_does_not_wait_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = batch(1), batch(2)
    regions = {"all": parts[0][1] != 2, "boundary": parts[0][1] == 1}
    checked, unchecked = (CalibrationSuite(4, (9, 255), regions=tuple(regions)) for _ in range(2))
    for suite in (checked, unchecked):
        for part in parts:
            suite.update(*part, mask=regions)
        deferring(monkeypatch)
    assert_close(unchecked.compute(), checked.compute())
    assert_close(unchecked.compute_classes(), checked.compute_classes())


def test_what_is_invalid_is_left_out_and_reported_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    deferring(monkeypatch)
    logits, labels = batch(1)
    wrong, strange = labels.clone(), logits.clone()
    wrong.view(-1)[7] = 4
    strange[:, :, 0] = torch.nan
    first, second = (CalibrationSuite(4, (9, 255)) for _ in range(2))
    first.update(logits, labels)
    counted = int(first.top_pixels.sum())
    first.update(logits, wrong)
    assert int(first.top_pixels.sum()) in (2 * counted, 2 * counted - 1)
    with pytest.raises(InputError, match=r"labels must be in 0..3 or .*, got one .* at position 7 .* update 2"):
        first.compute()
    first.reset()
    first.update(logits, labels)
    assert int(first.compute()["all"]["pixels"]) == counted
    second.update(strange, labels)
    with pytest.raises(InputError, match=r"logits must be finite, .*, got one .* at position 0 .* update 1"):
        second.compute_classes()
    for read in (second.compute, second.compute_curves, second.ace_error_bound):
        with pytest.raises(InputError, match="logits must be finite"):
            read()
    with pytest.raises(InputError, match="labels must be integers"):
        second.update(logits, labels.float())


# --------------------------------------------------------------------------------------------------------------------
# sigmoid heads


def sigmoid_batch(channels: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits and masks of 0 and 1, of which 9 is to be ignored; the last channel of the last image is all ignored."""
    rng = np.random.default_rng(seed)
    masks = rng.choice([0, 1, 9], size=(3, channels, 6, 7))
    masks[-1, -1] = 9
    return torch.from_numpy(rng.normal(scale=3, size=masks.shape)), torch.from_numpy(masks)


def two_class(logits: Tensor, k: int) -> Tensor:
    return torch.stack([torch.zeros_like(logits[:, k]), logits[:, k]], dim=1)


@pytest.mark.parametrize("options", [{}, {"per_image": True}, {"form": "marginal"}], ids=str)
def test_one_channel_is_two_classes(options: dict[str, Any]) -> None:
    logits, masks = sigmoid_batch(1)
    wanted = CalibrationSuite(2, 9, **options)
    wanted.update(two_class(logits, 0), masks[:, 0])
    for labels in (masks, masks[:, 0]):  # with and without the channel axis
        suite = CalibrationSuite(1, 9, **options)
        suite.update(logits, labels)
        assert_same(suite.compute()["all"], wanted.compute()["all"])
        assert_same(suite.compute_channels()[0]["all"], wanted.compute()["all"])
        if options.get("per_image"):
            torch.testing.assert_close(suite.compute_images(), wanted.compute_images(), equal_nan=True)
        for name, values in wanted.compute_classes()["all"].items():
            torch.testing.assert_close(suite.compute_classes()["all"][name], values, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"per_image": True}, {"form": "marginal"}], ids=str)
def test_several_channels_are_a_loop_and_their_mean(options: dict[str, Any]) -> None:
    suite = CalibrationSuite(3, 9, activation="sigmoid", regions=("all", "left"), **options)
    alone = [CalibrationSuite(2, 9, regions=("all", "left"), **options) for _ in range(3)]
    for seed in range(2):
        logits, masks = sigmoid_batch(3, seed)
        left = torch.zeros(masks[:, 0].shape, dtype=torch.bool)
        left[..., :3] = True
        regions = {"all": torch.ones_like(left), "left": left}
        suite.update(logits, masks, regions)
        for k, own in enumerate(alone):
            own.update(two_class(logits, k), masks[:, k], regions)
    found, each = suite.compute(), suite.compute_channels()
    for region in ("all", "left"):
        wanted = [own.compute()[region] for own in alone]
        for k in range(3):
            assert_same(each[k][region], wanted[k])
        for name, value in found[region].items():
            values = np.array([float(own[name]) for own in wanted])
            assert float(value) == pytest.approx(values.sum() if name == "pixels" else values.mean()), name
        counts = sum(own.compute_curves()[region]["pixels"] for own in alone)
        assert torch.equal(suite.compute_curves()[region]["pixels"], counts)
        classes = torch.cat([own.compute_classes()[region]["pixels"] for own in alone])
        assert torch.equal(suite.compute_classes()[region]["pixels"], classes)
        if options.get("per_image"):
            images = torch.stack([own.compute_images()[region]["ece"] for own in alone])
            torch.testing.assert_close(suite.compute_images()[region]["ece"], images.nanmean(dim=0))
    bounds = np.mean([own.ace_error_bound()["left"] for own in alone])
    assert suite.ace_error_bound()["left"] == pytest.approx(bounds)
    suite.reset()
    assert int(suite.top_pixels.sum()) == 0


def test_channels_are_the_same_in_a_pass_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, unchecked = (CalibrationSuite(3, 9, activation="sigmoid") for _ in range(2))
    for suite in (checked, unchecked):
        for seed in range(2):
            suite.update(*sigmoid_batch(3, seed))
        deferring(monkeypatch)
    for own, wanted in zip(unchecked.compute_channels(), checked.compute_channels(), strict=True):
        assert_same(own["all"], wanted["all"])
    logits, masks = sigmoid_batch(3)
    unchecked.update(logits, masks.clamp(max=2))
    with pytest.raises(InputError, match=r"labels must be in 0..1 or ignore_index=9, got one"):
        unchecked.compute()


def test_sigmoid_channels_need_masks() -> None:
    logits, masks = sigmoid_batch(2)
    with pytest.raises(InputError, match=r"labels of sigmoid channels must have shape \(3, 2, 6, 7\).*channel_labels"):
        CalibrationSuite(2, 9, activation="sigmoid").update(logits, masks[:, 0])
    with pytest.raises(InputError, match=r"activation='sigmoid' if they overlap"):
        CalibrationSuite(2, 9).update(logits, masks)


def test_plot_takes_no_value_and_no_axes() -> None:
    suite = shown(*batch())
    for arguments in ({"val": suite.compute()}, {"ax": object()}, {"val": 1.0, "ax": object()}):
        with pytest.raises(InputError, match="call it without arguments"):
            suite.plot(**arguments)


def test_what_torchmetrics_asks_about_a_suite() -> None:
    suite = CalibrationSuite(3)
    assert (suite.is_differentiable, suite.higher_is_better, suite.full_state_update) == (False, None, False)
    assert suite.state_dict() == {}, "nothing is saved with a model unless `persistent` says so"
    assert not suite.per_image


def test_a_suite_has_at_most_65536_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Evidence, "zeros")  # so that no memory is asked for
    with pytest.raises(InputError, match="num_classes must be at most 65536, got 65537"):
        CalibrationSuite((1 << 16) + 1)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_suite_of_probabilities_is_that_of_their_logits(activation: Activation) -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 40, generator=random, dtype=torch.float64) * 3
    labels = torch.randint(0, 2 if activation == "sigmoid" else 3, (2, 3, 40), generator=random)
    labels = labels if activation == "sigmoid" else labels[:, 0]
    probs = logits.sigmoid() if activation == "sigmoid" else logits.softmax(dim=1)
    one, other = (CalibrationSuite(3, activation=activation, scores=kind) for kind in ("logits", "probabilities"))
    one.update(logits, labels)
    other.update(probs, labels)
    assert_close(one.compute(), other.compute(), tolerance=1e-7)
    with pytest.raises(InputError, match=r'look like probabilities: .*; pass scores="probabilities"'):
        one.update(probs, labels)
    with pytest.raises(InputError, match=r"probabilities must be in 0\.\.1"):
        other.update(logits, labels)


def test_names_are_flat_in_a_collection() -> None:
    logits, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8))
    suite = CalibrationSuite(3, regions=("all", "rim"))
    masks = {"all": torch.ones_like(labels).bool(), "rim": labels > 0}
    collection = MetricCollection({"calibration": suite}, prefix="val_")
    collection.update(logits, labels, masks)
    found, alone = collection.compute(), collection["calibration"].compute()
    assert float(found["val_rim_ece"]) == float(alone["rim"]["ece"])
    assert all(isinstance(value, torch.Tensor) for value in found.values())
    assert dict(collection["calibration"].items()) == alone
    with pytest.raises(KeyError, match="edge"):
        alone["edge"]
