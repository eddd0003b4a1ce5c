"""Over-, under- or balanced confidence: by hand, against slow sums, and in the words that users read."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from segcal.data.sample.scenes import simulate
from segcal.evaluation.diagnosis import diagnose
from segcal.types import Case, InputError
from support import references
from support.scenes import simulated

IGNORED = 9


def scenes(temperature: float, count: int = 3, dims: int = 2) -> list[Case]:
    size = (24, 20) if dims == 2 else (6, 10, 12)
    return simulated(count, num_classes=4, size=size, variation="global", temperatures=(temperature,) * 2)


def scaled(case: Case, factor: float) -> Case:
    return replace(case, logits=np.asarray(case.logits, np.float64) * factor)


def by_hand(right: int) -> Case:
    """Two classes whose logits are one apart, and four pixels of which some are right."""
    logits = np.zeros((2, 1, 4), np.float32)
    logits[1] = 1.0
    return Case("by hand", logits, np.array([[1] * right + [0] * (4 - right)]))


def test_worked_by_hand() -> None:
    """At 3 of 4 right the best confidence is 3/4, above softmax(1) = 0.731: underconfident, T = 1 / log 3."""
    found = diagnose([by_hand(3)], num_classes=2).dataset
    p = 1 / (1 + np.exp(-1))
    assert found.state == "underconfident"
    assert found.temperature == pytest.approx(1 / np.log(3))
    assert found.nll == pytest.approx(-(3 * np.log(p) + np.log(1 - p)) / 4)
    assert found.entropy == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p))
    assert (found.underconfident_share, found.overconfident_share) == (0.75, 0.25)
    assert found.pixels == 4


@pytest.mark.parametrize("dims", [2, 3])
def test_against_slow_sums(dims: int) -> None:
    cases = scenes(2.0, dims=dims)
    found = diagnose(cases, num_classes=4)
    for case, image in zip(cases, found.images, strict=True):
        z, y = np.asarray(case.logits, np.float64).reshape(4, -1), np.asarray(case.labels).astype(int).ravel()
        assert image.name == case.name
        assert image.pixels == y.size
        assert image.nll == pytest.approx(references.total_nll(z, y, 1.0) / y.size)
        assert image.entropy == pytest.approx(references.total_entropy(z, y, 1.0) / y.size)
        assert 1 / image.temperature == pytest.approx(references.optimal_inverse_temperature(z, y), rel=1e-5)
        probs = references.softmax(z)
        excess = -np.log(probs[y, np.arange(y.size)]) + (probs * np.log(probs)).sum(axis=0)
        assert image.overconfident_share == pytest.approx((excess > 1e-6).mean())
        assert image.underconfident_share == pytest.approx((excess < -1e-6).mean())


def test_data_set_is_all_pixels_together() -> None:
    """Images of unequal size weigh by their pixels."""
    first, second = scenes(2.0, count=2)
    cut = replace(second, logits=second.logits[:, :7], labels=second.labels[:7], image=None)
    both = np.concatenate([np.asarray(case.logits).reshape(4, -1) for case in (first, cut)], axis=1)[:, None]
    truth = np.concatenate([np.asarray(case.labels).ravel() for case in (first, cut)])[None]
    apart = diagnose([first, cut], num_classes=4).dataset
    (together,) = diagnose([Case("all images", both, truth)], num_classes=4).images
    assert vars(apart) == {
        name: pytest.approx(value) if isinstance(value, float) else value for name, value in vars(together).items()
    }


@pytest.mark.parametrize(("temperature", "state"), [(3.0, "overconfident"), (0.4, "underconfident")])
def test_state_tells_the_side_of_the_temperature(temperature: float, state: str) -> None:
    found = diagnose(scenes(temperature, count=6), num_classes=4)
    assert {image.state for image in (found.dataset, *found.images)} == {state}
    assert found.dataset.temperature == pytest.approx(temperature, rel=0.1)


def test_scores_at_their_best_temperature_are_balanced() -> None:
    cases = scenes(3.0)
    best = diagnose(cases, num_classes=4).dataset.temperature
    found = diagnose([scaled(case, 1 / best) for case in cases], num_classes=4)
    assert found.dataset.state == "balanced"
    assert found.dataset.temperature == pytest.approx(1)
    assert found.advice().startswith("NLL and entropy are equal, so one temperature for all images would change")


def test_ignored_and_background_pixels_are_left_out() -> None:
    case = scenes(2.0, count=1)[0]
    labels = np.array(case.labels)
    labels[:14], labels[:, -3:] = 0, IGNORED
    spoilt = np.array(case.logits)
    spoilt[:, :10, :-7] *= -5  # far inside the background
    spoilt[:, :, -3:] *= -5
    settings = {"num_classes": 4, "ignore_index": IGNORED, "background": 0}
    usual = diagnose([replace(case, labels=labels)], **settings)
    assert diagnose([replace(case, labels=labels, logits=spoilt)], **settings) == usual
    near = references.boundary(labels.astype(int))
    assert usual.dataset.pixels == int(((labels != IGNORED) & ((labels != 0) | near)).sum())


def test_slabs_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = diagnose(scenes(2.0), num_classes=4)
    monkeypatch.setattr("segcal.cases.stream.SLAB", 5 * 4 * 20)
    for one, other in zip(diagnose(scenes(2.0), num_classes=4).images, whole.images, strict=True):
        assert (one.name, one.state, one.pixels) == (other.name, other.state, other.pixels)
        assert (one.nll, one.entropy, one.temperature) == pytest.approx(
            (other.nll, other.entropy, other.temperature), rel=1e-10
        )


def test_images_without_pixels_or_optimum_are_told_in_plain_json() -> None:
    usual = scenes(2.0, count=1)[0]
    z = np.asarray(usual.logits)
    cases = [
        usual,
        replace(usual, name="blank", labels=np.full(z.shape[1:], IGNORED)),
        replace(usual, name="right", labels=z.argmax(0)),
        replace(usual, name="wrong", labels=z.argmin(0)),
    ]
    found = diagnose(cases, num_classes=4, ignore_index=IGNORED)
    _, blank, right, wrong = found.images
    assert blank.pixels == 0
    assert np.isnan([blank.nll, blank.entropy, blank.temperature, blank.overconfident_share]).all()
    assert (right.state, right.temperature) == ("underconfident", 0.0)
    assert (wrong.state, wrong.temperature) == ("overconfident", np.inf)
    assert found.dataset.pixels == 3 * z[0].size
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [image["temperature"] is None for image in told["images"]] == [False, True, True, True]
    assert told["images"][1]["nll"] is None
    assert told["advice"] == found.advice()
    assert told["dataset"]["name"] == "all images"


def advice_of(*factors: float) -> str:
    """For copies of one balanced image, multiplied by factors, which then are the best temperatures."""
    case = scenes(1.0, count=1)[0]
    best = diagnose([case], num_classes=4).dataset.temperature
    copies = [replace(scaled(case, factor / best), name=str(k)) for k, factor in enumerate(factors)]
    return diagnose(copies, num_classes=4).advice()


def test_a_temperature_of_almost_one_is_not_called_a_remedy() -> None:
    """'The best temperature is 1' would contradict itself."""
    for factor, state in ((1.002, "overconfident"), (0.998, "underconfident")):
        assert advice_of(factor, factor).startswith(
            f"The scores are only just {state}; the best temperature for all images is {factor}, which changes almost "
            "nothing, and it hardly varies between images; "
        )
    larger = advice_of(1.02, 1.02)
    assert larger.startswith("The scores are overconfident; the best temperature for all images is 1.02 (ts)")


def test_advice_tells_whether_images_agree() -> None:
    assert advice_of(2.0, 2.0) == (
        "The scores are overconfident; the best temperature for all images is 2 (ts), and it hardly varies between "
        "images; whether it varies within images is unknown (judged in 0 of 2 images). 'segcal compare' decides which "
        "method to use."
    )
    # log-temperatures spread by log 2: a factor of 2, so 100 %
    assert advice_of(2.0, 8.0).endswith(
        "but it varies from image to image by 100 %: one temperature per image (ibts) may help; whether it varies "
        "within images is unknown (judged in 0 of 2 images). 'segcal compare' decides which method to use."
    )
    alone = advice_of(2.0)
    assert "hardly" not in alone, "one image agrees with nothing"
    assert "(judged in 0 of 1 image)." in alone


def split_scene(*factors: float) -> Case:
    """A large balanced image of which each third of the columns is multiplied by a factor."""
    (scene,) = simulate(1, num_classes=4, size=(150, 150), variation="global", temperatures=(1.0, 1.0), contrast=2.0)
    logits = np.asarray(scene.case.logits, np.float64).copy()
    for k, factor in enumerate(factors):
        logits[:, :, 50 * k : 50 * (k + 1)] *= factor
    return replace(scene.case, logits=logits)


def test_spread_within_an_image_is_that_of_its_parts() -> None:
    even, uneven = (diagnose([split_scene(*f)], num_classes=4).dataset.spread for f in ((2, 2, 2), (1, 2, 4)))
    assert even is not None
    assert uneven is not None
    assert even < 0.05
    assert uneven == pytest.approx(np.std(np.repeat(np.log([1, 2, 4]), 3), ddof=1), rel=0.1)
    assert diagnose(scenes(2.0, count=1), num_classes=4).dataset.spread is None  # 480 pixels tell nothing


def test_advice_tells_where_the_temperature_varies() -> None:
    def advice(*images: tuple[float, ...]) -> str:
        cases = [replace(split_scene(*factors), name=str(k)) for k, factors in enumerate(images)]
        return diagnose(cases, num_classes=4).advice()

    even = advice((2, 2, 2), (2, 2, 2))
    assert "and it hardly varies between images; within images it varies by only" in even
    assert "(judged in 2 of 2 images)." in even
    assert "by 100 %: one temperature per image (ibts) may help; within images" in advice((2, 2, 2), (8, 8, 8))
    place = advice((1, 2, 4), (1, 2, 4))
    assert "varies within images by" in place
    remedy = "one temperature per pixel (cts or lts) may help. 'segcal compare' decides which method to use."
    assert place.endswith(f"(judged in 2 of 2 images): {remedy}")
    assert "from image to image by 100 % and within images by" in advice((1, 2, 4), (4, 8, 16))


@pytest.mark.parametrize("unknown", [1, 2, 9])
def test_advice_follows_the_place_only_if_half_of_the_images_were_judged(unknown: int) -> None:
    """One image varies within; in the others that cannot be told, and an image without pixels does not count."""
    uneven, small = split_scene(1, 2, 4), scenes(2.0, count=1)[0]
    blank = replace(small, name="blank", labels=np.full((24, 20), IGNORED))
    others = [replace(small, name=str(k)) for k in range(unknown)]
    found = diagnose([uneven, *others, blank], num_classes=4, ignore_index=IGNORED)
    assert f"judged in 1 of {unknown + 1} images" in found.advice()
    assert ("(cts or lts)" in found.advice()) == (unknown == 1)
    assert (found.dataset.spread is None) == (unknown > 1)


def test_advice_where_no_temperature_is_best() -> None:
    case = scenes(1.0, count=1)[0]
    z = np.asarray(case.logits)
    wrong = diagnose([replace(case, labels=z.argmin(0))], num_classes=4)
    blind = diagnose([replace(case, logits=np.zeros_like(z))], num_classes=4)
    right = diagnose([replace(case, labels=z.argmax(0))], num_classes=4)
    for found, words in (
        (wrong, "no better than chance"),
        (blind, "no better than chance"),
        (right, "predicted right"),
    ):
        assert words in found.advice()
        assert "(ts)" not in found.advice()
        assert "inf" not in found.advice()


def test_nothing_to_diagnose_is_refused() -> None:
    with pytest.raises(InputError, match="at least one case"):
        diagnose([], num_classes=4)
    blank = replace(scenes(2.0, count=1)[0], labels=np.full((24, 20), IGNORED))
    with pytest.raises(InputError, match="no labelled pixel"):
        diagnose([blank], num_classes=4, ignore_index=IGNORED)


def test_the_entropy_of_other_pixels_survives_a_huge_loss() -> None:
    """At one of four pixels the label is 1e35 nats below; entropy computed as NLL minus slope would be lost."""
    case = by_hand(3)
    logits = np.array(case.logits)
    logits[0, 0, 3] = -1e35
    found = diagnose([replace(case, logits=logits)], num_classes=2).dataset
    p = 1 / (1 + np.exp(-1))
    assert found.nll == pytest.approx(1e35 / 4)
    assert found.entropy == pytest.approx(3 / 4 * (-p * np.log(p) - (1 - p) * np.log(1 - p)))
