"""Shares of raters as label maps: their votes, and the fits that they give, against the shares themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import segcal
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.functional.soft import rater_labels
from segcal.types import Case, InputError


def votes(seed: int, raters: int, classes: int, size: tuple[int, ...] = (6, 7)) -> np.ndarray:
    """Label maps of raters who disagree."""
    return np.random.default_rng(seed).integers(classes, size=(raters, *size))


def shares_of(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.stack([(labels == c).mean(axis=0) for c in range(classes)])


@given(seed=st.integers(0, 100), raters=st.integers(1, 7), classes=st.integers(2, 5), half=st.booleans())
def test_label_maps_vote_as_the_raters_did(seed: int, raters: int, classes: int, half: bool) -> None:
    labels = votes(seed, raters, classes)
    shares = torch.from_numpy(shares_of(labels, classes).astype(np.float16 if half else np.float64))
    found = rater_labels(shares, raters).numpy()
    assert found.shape == labels.shape
    np.testing.assert_array_equal(np.sort(found, axis=0), np.sort(labels, axis=0))


@given(seed=st.integers(0, 100), raters=st.integers(1, 6))
def test_any_shares_are_met_to_one_vote(seed: int, raters: int) -> None:
    shares = torch.from_numpy(np.random.default_rng(seed).dirichlet([0.5] * 4, size=30).T)
    counts = torch.stack([(rater_labels(shares, raters) == c).sum(dim=0) for c in range(4)])
    assert (counts - raters * shares).abs().max() <= 1 + 1e-9


def test_masks_of_channels_overlap() -> None:
    shares = torch.tensor([[1.0, 0.5, 0.25], [1.0, 0.0, 0.75]])  # two channels, three pixels, four raters
    found = rater_labels(shares, 4, "sigmoid")
    assert found.shape == (4, 2, 3)
    assert found.sum(dim=0).tolist() == [[4, 2, 1], [4, 0, 3]]


def test_pixels_without_votes_are_ignored() -> None:
    shares = torch.tensor([[0.0, 0.5], [0.0, 0.5]])
    assert rater_labels(shares, 2).tolist() == [[-1, 0], [-1, 1]]


@pytest.mark.parametrize(
    ("shares", "raters", "message"),
    [
        (torch.tensor([[2.0], [1.0]]), 3, "soft labels must be shares in 0..1 that sum to 1"),
        (torch.tensor([[0.2], [0.2]]), 3, "soft labels must be shares in 0..1 that sum to 1"),
        (torch.tensor([[0.5], [0.5]]), 0, "raters must be at least 1, got 0"),
    ],
)
def test_other_numbers_are_refused(shares: torch.Tensor, raters: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rater_labels(shares, raters)


def test_a_fit_on_rater_cases_minimises_the_cross_entropy_of_the_shares() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(scale=4, size=(3, 6, 7)).astype(np.float32)
    shares = shares_of(votes(1, 4, 3), 3)
    cases = segcal.rater_cases(Case("scan", logits, shares), raters=4)
    assert [case.name for case in cases] == ["scan-1", "scan-2", "scan-3", "scan-4"]
    assert {case.group for case in cases} == {"scan"}
    fitted = segcal.create("ts", 3).fit(cases)

    def cross_entropy(inverse: float) -> float:
        z = inverse * logits.astype(np.float64)
        return float(-(shares * (z - np.log(np.exp(z).sum(axis=0)))).sum(axis=0).mean())

    best = minimize_scalar(cross_entropy, bounds=(0.01, 3), method="bounded", options={"xatol": 1e-10})
    assert fitted.fit_report_.nll_after == pytest.approx(best.fun, rel=1e-6)
    assert fitted.fit_report_.nll_before == pytest.approx(cross_entropy(1.0), rel=1e-6)
    results = segcal.evaluate(cases, {"UC": None}, num_classes=3, patches=0, repetitions=0)
    assert results.pooled().query("region == 'all' and metric == 'nll'")["value"].iloc[0] == pytest.approx(
        segcal.nll(logits[None], shares[None]), rel=1e-6
    )


def test_a_folder_of_rater_cases_keeps_their_group(tmp_path: Path) -> None:
    logits = np.random.default_rng(2).normal(size=(3, 6, 7)).astype(np.float32)
    shares = shares_of(votes(3, 2, 3), 3)
    cases = segcal.rater_cases(Case("scan", logits, shares), raters=2)
    write_folder(tmp_path / "data", {"fit": cases})
    folder = open_folder(tmp_path / "data")
    assert [(case.name, case.group) for case in folder] == [("scan-1", "scan"), ("scan-2", "scan")]
    again = segcal.create("ts", 3).fit(folder).fit_report_
    assert again.nll_after == segcal.create("ts", 3).fit(cases).fit_report_.nll_after
    for path in (tmp_path / "data" / "labels").iterdir():
        path.unlink()
        np.save(path.with_suffix(".npy"), shares)
    with pytest.raises(InputError, match=r"must be whole numbers, .* one case per rater with segcal\.rater_cases"):
        list(open_folder(tmp_path / "data"))


def test_labels_of_another_shape_are_refused_with_their_remedy() -> None:
    logits = np.zeros((3, 4, 5), np.float32)
    with pytest.raises(InputError, match=r"shares of raters must have the shape \(3, 4, 5\) of the logits, got shape"):
        segcal.rater_cases(Case("a", logits, np.zeros((4, 5), int)), 2)
    with pytest.raises(InputError, match="got no labels of case 'a'"):
        segcal.rater_cases(Case("a", logits, None), 2)
    with pytest.raises(InputError, match=r"shares of several raters become label maps with segcal\.rater_cases"):
        segcal.create("ts", 3).fit([Case("a", logits, np.full((3, 4, 5), 1 / 3))])
    with pytest.raises(InputError, match=r"shares of several raters, make label maps of them with segcal\.rater_cases"):
        segcal.create("ts", 3, activation="sigmoid").fit([Case("a", logits, np.full((3, 4, 5), 1 / 3))])
