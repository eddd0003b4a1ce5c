"""The published rivals: against fiducio, their reference implementation, slow references and what they must keep."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.calibrators import TemperatureScaling, create
from segcal.functional.class_conditional import (
    conditional_map,
    expert_curvature,
    expert_loss,
    experts_of,
    penalty_curvature,
    penalty_of,
    ranked_features,
)
from segcal.functional.minimise import least_quadratic
from segcal.kernels.dispatch import plain_only
from segcal.types import Case, InputError

CLASSES = 4


def scene(seed: int = 0, size: tuple[int, int] = (20, 30), heat: float = 1.7) -> Case:
    """Logits of a network whose labels are drawn from a softer softmax, and class 2 too seldom."""
    random = np.random.default_rng(seed)
    logits = (3 * random.normal(size=(CLASSES, *size))).astype(np.float32)
    true = logits / heat + np.array([0.0, 0.3, -0.8, 0.2])[:, None, None]
    labels = (true + random.gumbel(size=logits.shape)).argmax(0)
    return Case(f"{seed}", logits, labels)


CASES = [scene(k) for k in range(2)]
LOGITS = torch.from_numpy(np.stack([np.asarray(case.logits) for case in CASES]))
LABELS = torch.from_numpy(np.stack([np.asarray(case.labels) for case in CASES])).long()


def nll(probs: torch.Tensor) -> float:
    return float(-probs.gather(1, LABELS.unsqueeze(1)).clamp(min=1e-12).double().log().mean())


# --------------------------------------------------------------------------------------------------------------------
# against fiducio

PEERS = {
    "msc": "TranslationInvariantMatrixScaling",
    "matrix": "MatrixScaling",
    "dirichlet": "DirichletCalibration",
    "cmsap": "ArgmaxPreservingMatrixScaling",
    "cmsop": "OrderPreservingMatrixScaling",
}


@pytest.mark.parametrize("penalty", [0.0, 0.1])
@pytest.mark.parametrize("method", PEERS)
def test_the_optimum_is_at_least_as_good_as_that_of_fiducio(method: str, penalty: float) -> None:
    """Its L-BFGS ends near the same optimum.

    Its nonnegative numbers are softplus of free ones, which have no slope near 0, where its default lets them start.
    """
    fiducio: Any = pytest.importorskip("fiducio")
    torch.manual_seed(0)
    start = {"init_floor": 0.2} if method.startswith("cms") else {}
    peer = getattr(fiducio, PEERS[method])(
        optimizer="lbfgs", max_iter=200, lambda_reg=penalty, mu_reg=penalty, device="cpu", **start
    )
    peer.fit(LOGITS, LABELS)
    ours = create(method, CLASSES, off_diagonal_penalty=penalty, bias_penalty=penalty).fit(CASES)
    assert ours.fit_report_.converged
    theirs, own = nll(peer.transform(LOGITS)), nll(ours.predict_proba(LOGITS))
    assert own == pytest.approx(ours.fit_report_.nll_after, rel=1e-5)
    if penalty == 0:
        assert own < theirs + 1e-5
    assert own == pytest.approx(theirs, abs=2e-3)
    assert float((ours.predict_proba(LOGITS) - peer.transform(LOGITS)).abs().mean()) < 0.01


# --------------------------------------------------------------------------------------------------------------------
# the mathematics


def matrices(seed: int = 0, classes: int = CLASSES) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, (classes, classes - 1, classes)))


@pytest.mark.parametrize("ordered", [False, True])
def test_the_map_by_loops(ordered: bool) -> None:
    maps, z = matrices(), LOGITS[:1, :, :2, :3].double()
    found = conditional_map(z, maps, ordered=ordered)
    for y, x in np.ndindex(2, 3):
        scores = z[0, :, y, x].tolist()
        k = int(np.argmax(scores))
        ranked = sorted(range(CLASSES), key=lambda c: (-scores[c], c)) if ordered else [
            k, *(c for c in range(CLASSES) if c != k)]  # fmt: skip
        f = [scores[a] - scores[b] for a, b in pairwise(ranked)] if ordered else [
            scores[k] - scores[c] for c in ranked[1:]]  # fmt: skip
        t = [sum(b * v for b, v in zip(row, [*f, 1.0], strict=True)) for row in maps[k].tolist()]
        expected = np.zeros(CLASSES)
        for r, c in enumerate(ranked[1:]):
            expected[c] = -(sum(t[: r + 1]) if ordered else t[r])
        np.testing.assert_allclose(found[0, :, y, x], expected, rtol=1e-12)


def test_ranks_are_those_of_a_stable_sort(rng: np.random.Generator) -> None:
    scores = torch.from_numpy(rng.normal(size=(CLASSES, 500)).round())  # among them ties
    labels = torch.from_numpy(rng.integers(0, CLASSES, 500))
    value, order = torch.sort(scores, dim=0, descending=True, stable=True)
    for forms in (nullcontext(), plain_only()):
        with forms:
            features, place = ranked_features(scores, labels)
        assert torch.equal(features, torch.cat([value[:-1] - value[1:], torch.ones(1, 500).double()]))
        assert torch.equal(place, (order == labels).int().argmax(dim=0))


@pytest.mark.parametrize("ordered", [False, True])
def test_gradient_and_curvature_by_differences(ordered: bool) -> None:
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    experts = experts_of(LOGITS[0, :, :5].flatten(1), LABELS[0, :5].flatten(), weights, ordered=ordered)
    assert sum(len(expert.place) for expert in experts.values()) == 150
    expert, matrix = experts[1], matrices()[1]
    loss, gradient = expert_loss(expert, matrix, ordered=ordered)
    with plain_only():
        torch.testing.assert_close(expert_loss(expert, matrix, ordered=ordered), (loss, gradient))
    (block,) = expert_curvature(expert, matrix, ordered=ordered)
    for number in range(matrix.numel()):
        step = torch.zeros_like(matrix)
        step.view(-1)[number] = 1e-5
        (up, above), (down, below) = (expert_loss(expert, matrix + s, ordered=ordered) for s in (step, -step))
        assert float(gradient.view(-1)[number]) == pytest.approx(float(up - down) / 2e-5, rel=1e-5, abs=1e-5)
        np.testing.assert_allclose(block.curvature[:, number], ((above - below) / 2e-5).ravel(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ordered", [False, True])
def test_rows_apart_are_the_diagonal_blocks_of_the_whole(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = experts_of(LOGITS[0].flatten(1), LABELS[0].flatten(), torch.ones(CLASSES).double(), ordered=ordered)
    (whole,) = expert_curvature(experts[0], matrices()[0], ordered=ordered)
    monkeypatch.setattr("segcal.functional.class_conditional._WHOLE", 0)
    for block in expert_curvature(experts[0], matrices()[0], ordered=ordered):
        np.testing.assert_allclose(block.curvature, whole.curvature[np.ix_(block.index, block.index)], rtol=1e-9)
    rows = create("cmsop" if ordered else "cmsap", CLASSES).fit(CASES)
    monkeypatch.undo()
    both = create("cmsop" if ordered else "cmsap", CLASSES).fit(CASES)
    assert rows.fit_report_.nll_after == pytest.approx(both.fit_report_.nll_after, abs=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
def test_the_penalty_is_that_of_the_induced_map(ordered: bool) -> None:
    """The affine map of scores, predicted class first, read off by applying it to unit vectors."""
    matrix = matrices()[0].numpy()
    place = np.arange(1, CLASSES)

    def apply(z: np.ndarray) -> np.ndarray:
        f = z[:-1] - z[1:] if ordered else z[0] - z[1:]
        t = matrix[:, :-1] @ f + matrix[:, -1]
        return np.concatenate([[z[0]], z[0] - (np.cumsum(t) if ordered else t)])

    b = apply(np.zeros(CLASSES))
    a = np.stack([apply(unit) - b for unit in np.eye(CLASSES)], axis=1)
    off = a[~np.eye(CLASSES, dtype=bool)]
    value, gradient = penalty_of(matrix, 0.3, 0.7, ordered=ordered)
    assert value == pytest.approx(0.3 * (off**2).mean() + 0.7 * (b**2).mean(), rel=1e-12)
    bend = penalty_curvature(CLASSES - 1, np.arange(matrix.size), 0.3, 0.7, ordered=ordered)
    step = 1e-3 * np.random.default_rng(1).normal(size=matrix.shape)
    moved, _ = penalty_of(matrix + step, 0.3, 0.7, ordered=ordered)
    expected = value + (gradient * step).sum() + step.ravel() @ bend @ step.ravel() / 2
    assert moved == pytest.approx(expected, rel=1e-12)
    assert place.size == CLASSES - 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_the_least_nonnegative_point_of_a_quadratic(seed: int, size: int) -> None:
    """The conditions of Karush, Kuhn and Tucker: no slope where a number is free, none downwards at 0."""
    random = np.random.default_rng(seed)
    root = random.normal(size=(size, size + 2))
    curvature, gradient, start = root @ root.T, random.normal(size=size), random.uniform(0, 1, size)
    found = least_quadratic(curvature, gradient, start)
    slope = gradient + curvature @ (found - start)
    assert (found >= 0).all()
    np.testing.assert_allclose(slope[found > 0], 0, atol=1e-7 * np.abs(curvature).max())
    assert (slope[found == 0] >= -1e-7 * np.abs(curvature).max()).all()


# --------------------------------------------------------------------------------------------------------------------
# what they keep


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_order_and_argmax_stay_for_any_nonnegative_numbers(seed: int) -> None:
    z = 4 * torch.randn(1, 5, 40, generator=torch.Generator().manual_seed(seed)).double()
    ordered, argmax = (conditional_map(z, matrices(seed, 5), ordered=kept) for kept in (True, False))
    assert torch.equal(ordered.argsort(dim=1), z.argsort(dim=1))
    assert torch.equal(argmax.argmax(dim=1), z.argmax(dim=1))


def test_msc_has_equal_row_sums_and_lies_between_ts_and_dirichlet() -> None:
    msc = create("msc", CLASSES, off_diagonal_penalty=0.0, bias_penalty=0.0).fit(CASES)
    sums = msc.weights.sum(dim=1)
    torch.testing.assert_close(sums, sums.mean().expand(CLASSES))
    dirichlet = create("dirichlet", CLASSES, off_diagonal_penalty=0.0, bias_penalty=0.0).fit(CASES)
    ts = TemperatureScaling(CLASSES).fit(CASES)
    reports = [calibrator.fit_report_.nll_after for calibrator in (dirichlet, msc, ts)]
    assert reports == sorted(reports)


def test_svs_is_temperature_scaling_under_a_strong_penalty_and_its_objective_is_least() -> None:
    ts = TemperatureScaling(CLASSES).fit(CASES)
    strong = create("svs", CLASSES, penalty=1e9).fit(CASES)
    torch.testing.assert_close(strong.predict_proba(LOGITS), ts.predict_proba(LOGITS), rtol=1e-4, atol=1e-5)
    svs = create("svs", CLASSES, penalty=20.0).fit(CASES)
    v, b = (torch.tensor(svs.fit_report_.details[name]).double() for name in ("deviations", "biases"))
    x = torch.log_softmax(LOGITS.double(), dim=1) / ts.fit_report_.details["temperature"]

    def objective(v: torch.Tensor, b: torch.Tensor) -> float:
        loss = torch.nn.functional.cross_entropy((1 + v)[:, None, None] * x + b[:, None, None], LABELS)
        return float(loss + 20.0 * CLASSES / LABELS.numel() * (v.square().sum() + b.square().sum()))

    least = objective(v, b)
    for k in range(CLASSES):
        step = 0.01 * torch.eye(CLASSES).double()[k]
        assert (
            min(objective(v + step, b), objective(v - step, b), objective(v, b + step), objective(v, b - step)) > least
        )


@pytest.mark.parametrize("method", ["cmsap", "matrix"])
def test_logits_whose_squares_are_infinite_are_refused(method: str) -> None:
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(CLASSES, 24, 24))
    logits[-1] = -1e300  # a class that is ruled out
    case = Case("a", logits, (logits / 1.7 + random.gumbel(size=logits.shape)).argmax(0))
    with pytest.raises(InputError, match=rf"logits of up to 1e\+300 are too large for '{method}'"):
        create(method, CLASSES).fit([case])


@pytest.mark.parametrize("method", ["cmsap", "cmsop"])
def test_logits_whose_squares_are_too_large_are_refused(method: str) -> None:
    """Not by an error of linear algebra, which would end `auto` instead of this candidate."""
    cases = [Case(f"{k}", 1e30 * np.asarray(scene(k).logits), scene(k).labels, group=f"{k}") for k in range(5)]
    with pytest.raises(InputError, match=rf"logits of up to .*e\+31 are too large for '{method}'"):
        create(method, CLASSES).fit(cases)
    chosen = create("auto", CLASSES, candidates=("ts", method)).fit(cases)
    assert chosen.fit_report_.details["chosen"] == "ts"
    assert any(f"{method} could not be fitted: logits of up to" in text for text in chosen.fit_report_.warnings)
