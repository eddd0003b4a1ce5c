"""Several passes: pooled where they help, left alone where they do not, under the contract of every calibrator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

import segcal
from segcal.calibrators import PooledPasses
from segcal.types import Case, InputError
from support.contracts import CHECKS, Check, Subject, assert_same_state, subject
from support.fits import mean_nll, pool_of_passes
from support.scenes import PASS_CLASSES as CLASSES
from support.scenes import PASS_SIZE as SIZE
from support.scenes import several_passes

pytestmark = pytest.mark.usefixtures("few_strengths")


def tensors(case: Case) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(np.array(case.logits))[None], torch.as_tensor(np.array(case.passes))[None]


@pytest.fixture(scope="module")
def helped() -> PooledPasses:
    return pool_of_passes()


def test_passes_that_help_are_used_and_labels_kept(helped: PooledPasses) -> None:
    test = several_passes(4, seed=1)
    single = segcal.create("cts", CLASSES).fit(several_passes(8))
    assert mean_nll(helped, test) < 0.9 * mean_nll(single, test)
    details = helped.fit_report_.details
    assert helped.uses_passes
    assert details["chosen"] == "pool"
    assert details["why"].startswith("passes are used: in cross-validation over the groups")
    assert helped.fit_report_.sentences().count(details["why"]) == 1
    np.testing.assert_allclose(details["weights"], 1 / 3, atol=0.05)  # all of them look alike
    for case in test:
        logits, passes = tensors(case)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            z, others = logits.to(dtype), passes.to(dtype)
            assert torch.equal(helped(z, None, others).argmax(1), z.argmax(1))
            assert torch.equal(helped.predict_proba(z, None, others).argmax(1), z.argmax(1))


def test_passes_that_only_disturb_are_not_used() -> None:
    random = np.random.default_rng(2)
    cases = [
        replace(case, passes=(9 * random.normal(size=(2, CLASSES, *SIZE))).astype(np.float32))
        for case in several_passes(8)
    ]
    pool, single = (segcal.create(method, CLASSES).fit(cases) for method in ("pool", "cts"))
    details = pool.fit_report_.details
    assert not pool.uses_passes
    assert details["chosen"] in ("cts", "ts")
    assert details["weights"] == [1.0]
    assert details["why"].startswith("passes are not used: in cross-validation over the groups")
    logits, passes = tensors(cases[0])
    assert torch.equal(pool(logits), single(logits))
    assert torch.equal(pool(logits, None, passes), single(logits))
    assert pool.fit_report_.nll_after == single.fit_report_.nll_after


def test_one_useless_pass_among_good_ones_gets_little_weight() -> None:
    random = np.random.default_rng(3)
    cases = [
        replace(case, passes=[case.each_pass[0], (9 * random.normal(size=(CLASSES, *SIZE))).astype(np.float32)])
        for case in several_passes(8)
    ]
    weights = segcal.create("pool", CLASSES).fit(cases).fit_report_.details["weights"]
    assert weights[2] < 0.1
    assert abs(weights[0] - weights[1]) < 0.15


def test_passes_are_compared_with_scores_that_know_nothing() -> None:
    random = np.random.default_rng(3)
    noise = [
        replace(case, logits=random.normal(size=(CLASSES, *SIZE)).astype(np.float32)) for case in several_passes(6)
    ]
    found = segcal.create("pool", CLASSES).fit(noise)
    assert found.fit_report_.nll_after <= found.fit_report_.nll_before


def test_evaluate_reads_the_passes(helped: PooledPasses) -> None:
    test = several_passes(4, seed=1)
    rows = segcal.evaluate(test, {"UC": None, "POOL": helped}, num_classes=CLASSES, patches=0).to_frame()
    nll = rows.query("metric == 'nll' and region == 'all'").groupby("method")["value"].mean()
    assert nll["POOL"] == pytest.approx(mean_nll(helped, test), rel=1e-5)
    assert nll["POOL"] < nll["UC"]


def test_cases_without_passes_give_cts() -> None:
    cases = [replace(case, passes=None) for case in several_passes(6)]
    pool, single = (segcal.create(method, CLASSES).fit(cases) for method in ("pool", "cts"))
    assert pool.fit_report_.details["why"] == "the cases have no further passes"
    logits, _ = tensors(several_passes(1)[0])
    assert torch.equal(pool(logits), single(logits))


def test_one_group_shows_whether_equal_weights_help() -> None:
    pool = segcal.create("pool", CLASSES).fit([replace(case, group="all") for case in several_passes(3)])
    assert pool.fit_report_.details["weights"] == pytest.approx([1 / 3] * 3)
    assert any("belong to one image or group" in warning for warning in pool.fit_report_.warnings)


def test_free_labels_are_those_of_the_pool_and_counted() -> None:
    pool = segcal.create("pool", CLASSES, free_labels=True).fit(several_passes(8))
    right = moved = pixels = 0
    for case in several_passes(4, seed=1):
        logits, passes = tensors(case)
        labels, raw = pool(logits, None, passes).argmax(1), logits.argmax(1)
        truth = torch.as_tensor(case.labels)[None]
        right += int((labels == truth).sum()) - int((raw == truth).sum())
        moved, pixels = moved + int((labels != raw).sum()), pixels + raw.numel()
    assert right > 0
    assert not pool.preserves_labels
    assert pool.fit_report_.details["moved"] == pytest.approx(moved / pixels, abs=0.05)
    assert any("labels changed" in words for words in pool.fit_report_.details["words"])


def test_other_passes_than_those_of_the_fit_are_refused(helped: PooledPasses) -> None:
    logits, passes = tensors(several_passes(1)[0])
    for given, got in ((None, 0), (passes[:, :1], 1)):
        with pytest.raises(InputError, match=f"needs the 2 passes that it was fitted with, got {got}"):
            helped(logits, None, given)
    with pytest.raises(InputError, match=r"passes must have shape \(1, K, 3, 24, 18\), got \(1, 2, 3, 24, 17\)"):
        helped(logits, None, passes[..., :-1])
    with pytest.raises(InputError, match="got nan"):
        helped(logits, None, passes * torch.nan)
    with pytest.raises(InputError, match="got 0 of case 'other'"):
        helped.fit([*several_passes(2), replace(several_passes(1)[0], name="other", passes=None)])


def test_the_weights_of_a_damaged_pool_are_refused(helped: PooledPasses) -> None:
    damaged = segcal.create("pool", CLASSES)
    damaged.load_state_dict({**helped.state_dict(), "weights": torch.tensor([0.9, 0.9, -0.8], dtype=torch.float64)})
    assert damaged._problem() == "'weights' must be at least 0 and sum to 1"


def test_fitting_in_slabs_and_from_lists_of_passes_gives_the_same(helped: PooledPasses) -> None:
    cases = [replace(case, passes=list(case.each_pass)) for case in several_passes(8)]
    assert_same_state(segcal.create("pool", CLASSES).fit(case for case in cases), helped)
    with mock.patch("segcal.cases.stream.SLAB", 8 * SIZE[1] * CLASSES * 3):
        in_slabs = segcal.create("pool", CLASSES).fit(cases)
    for name, value in helped.state_dict().items():
        torch.testing.assert_close(in_slabs.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_sigmoid_channels_are_pooled_separately() -> None:
    random = np.random.default_rng(5)
    cases = []
    for number in range(6):
        labels = np.kron(random.integers(0, 2, (2, 4, 3)), np.ones((6, 6), int)).astype(np.uint8)
        members = (4.0 * (2.0 * labels - 1) + 3 * random.normal(size=(3, 2, *SIZE))).astype(np.float32)
        cases.append(Case(f"case {number}", members[0], labels, passes=members[1:]))
    pool = segcal.create("pool", 2, activation="sigmoid").fit(cases)
    logits, passes = tensors(cases[0])
    probs = pool.predict_proba(logits, None, passes)
    assert pool.uses_passes
    assert torch.equal(probs > 0.5, logits > 0)
    slabs = torch.cat([slab.probabilities() for slab in pool.calibrate_case(cases[0])], dim=2)
    torch.testing.assert_close(slabs, probs)


# --------------------------------------------------------------------------------------------------------------------
# the contract, with passes that follow from logits and image


def further(logits: Tensor, image: Tensor) -> Tensor:
    """Passes `[B, 2, L, *S]` that often have other labels."""
    clipped = logits.clamp(-20, 20)
    weights = torch.linspace(-1, 1, logits.shape[1]).to(logits).view(1, -1, *[1] * (logits.ndim - 2))
    return torch.stack([0.5 * clipped + 0.3 * clipped.flip(1), 0.9 * clipped + weights * image], dim=1)


class PooledWithImage(PooledPasses):
    """Pools passes that it makes itself, so that it is called as every other method."""

    method = "pooled"
    image_channels = 1

    def forward(self, logits: Tensor, image: Tensor | None = None, passes: Tensor | None = None) -> Tensor:
        return super().forward(logits, image, self._made(logits, image) if passes is None else passes)

    def predict_proba(self, logits: Tensor, image: Tensor | None = None, passes: Tensor | None = None) -> Tensor:
        return super().predict_proba(logits, image, self._made(logits, image) if passes is None else passes)

    def _made(self, logits: Tensor, image: Tensor | None) -> Tensor | None:
        return None if image is None or not self.fitted else further(logits, image)


@pytest.fixture(scope="module")
def pooled() -> Iterator[Subject]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(segcal.calibrators._METHODS, "pooled", PooledWithImage)
        plain = subject("ts", 2)

        def make(**settings: Any) -> PooledPasses:
            return PooledWithImage(CLASSES, **settings)

        def with_passes(case: Case) -> Case:
            logits, image = (torch.as_tensor(np.array(part))[None] for part in (case.logits, case.image))
            return replace(case, passes=further(logits, image)[0].numpy())

        yield Subject(make, [with_passes(case) for case in plain.cases])


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_contract_with_passes(pooled: Subject, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.calibrators.pool.within_one_error", lambda totals, best: np.zeros(len(totals), bool))
    check(pooled, tmp_path)


def test_an_automatic_choice_takes_the_pool_where_passes_help(tmp_path: Path) -> None:
    cases, among = several_passes(8), ("ts", "cts", "pool")
    auto = segcal.create("auto", CLASSES, candidates=among).fit(cases)
    details = auto.fit_report_.details
    assert details["chosen"] == "pool"
    assert details["scores"]["pool"]["nll"] < 0.9 * details["scores"]["cts"]["nll"]
    assert auto.uses_passes
    auto.save(tmp_path / "auto")
    logits, passes = tensors(cases[0])
    again = segcal.load(tmp_path / "auto")
    assert torch.equal(again(logits, None, passes), auto(logits, None, passes))
    plain = segcal.create("auto", CLASSES, candidates=among).fit([replace(case, passes=None) for case in cases])
    assert "pool" not in plain.fit_report_.details["scores"]
    assert not plain.uses_passes
