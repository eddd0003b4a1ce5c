"""Histogram binning against netcal, by hand, and with bins of equal mass."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from segcal.calibrators import HistogramBinning
from segcal.calibrators.scores import equal_mass
from segcal.functional.scores import count_scores, empty_scores, largest_of_cells
from segcal.types import Case
from support.flat import scores_of
from support.scenes import flat_case


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_agrees_with_netcal(bins: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Peer = pytest.importorskip("netcal.binning").HistogramBinning
    case = flat_case(20_000)
    probs, _ = scores_of(case)
    peer = Peer(bins).fit(probs.T, np.asarray(case.labels)[:, 0]).transform(probs.T)
    found = HistogramBinning(4, bins=bins).fit([case])
    ours = found.predict_proba(torch.from_numpy(np.asarray(case.logits))[None])[0, :, :, 0].numpy()
    np.testing.assert_allclose(ours, peer.T, rtol=0, atol=1e-7)  # netcal has no tie-break of 1e-9


def test_by_hand() -> None:
    """Scores of 0.7 and 0.3 in two bins: of the first class 3 of 4 are true above 1/2, none of 1 below."""
    logits = np.array([[np.log(7 / 3)] * 4 + [np.log(3 / 7)], [0.0] * 5])[:, :, np.newaxis]
    labels = np.array([0, 0, 0, 1, 1])[:, np.newaxis]
    found = HistogramBinning(2, bins=2).fit([Case("a", logits, labels)])
    values = found.predict_proba(torch.tensor([[[2.0, -2.0, 0.0], [0.0, 0.0, 0.0]]]))[0, 0]
    # a score of exactly 1/2 is in the lower bin, which says 0 for the first class and 1/4 for the second
    assert values.tolist() == pytest.approx([3 / 4, 0.0, 0.0], abs=1e-6)
    assert found.fit_report_.warnings == ()


def test_an_empty_bin_answers_with_its_middle() -> None:
    logits = np.array([[2.0, 2.0], [0.0, 0.0]])[:, :, np.newaxis]
    found = HistogramBinning(2, bins=4).fit([Case("a", logits, np.array([[0], [1]]))])
    assert found.left[0].tolist() == [0.125, 0.375, 0.625, 0.5]
    assert found.left[1].tolist() == [0.5, 0.375, 0.625, 0.875]
    assert found.fit_report_.warnings == ("6 bins without a score answer with their middle",)
    assert found.fit_report_.details == {"empty_bins": 6}


def test_where_all_bins_say_nothing_the_probabilities_stay() -> None:
    """Three classes with a bin each that was never true: what is left is the tie-break."""
    found = HistogramBinning(3, bins=2).fit([Case("a", np.array([[4.0], [0], [0]])[:, :, np.newaxis], np.array([[0]]))])
    for name in ("left", "right"):
        getattr(found, name).fill_(0.0)
    logits = torch.tensor([[[1.0], [0.5], [0.0]]])
    torch.testing.assert_close(found.predict_proba(logits), torch.softmax(logits, dim=1))


def test_bins_of_equal_mass_hold_equally_many_scores() -> None:
    case = flat_case(30_000)
    probs, truth = scores_of(case)
    table = empty_scores(4)
    count_scores(torch.from_numpy(np.asarray(case.logits)[:, :, 0]), torch.from_numpy(truth.argmax(0)), table)
    found = HistogramBinning(4, bins=8, equal="mass").fit([case])
    for c in range(4):
        edges, total, hits = equal_mass(table.total[c], table.hits[c], 8)
        exact = np.quantile(probs[c], np.arange(1, 8) / 8)
        near = np.minimum(exact, 1 - exact)
        assert (np.abs(edges.numpy() - exact) <= 2.0**-8 * near).all(), "within a cell of the quantiles"
        assert (np.abs(total.numpy() - 30_000 / 8) < 100).all()
        where = (probs[c][:, np.newaxis] > edges.numpy()).sum(axis=1)
        assert total.tolist() == np.bincount(where).tolist(), "exact between those edges"
        assert hits.tolist() == np.bincount(where, weights=truth[c]).tolist()
        assert found.left[c].tolist() == pytest.approx((hits / total).tolist())


def test_quantiles_in_one_cell_share_an_edge() -> None:
    total = torch.zeros(1 << 16, dtype=torch.int64)
    total[100], total[40_000] = 97, 3
    edges, bins, hits = equal_mass(total, total // 3, 10)
    assert edges.tolist() == [float(largest_of_cells()[100])]
    assert bins.tolist() == [97, 3]
    assert hits.tolist() == [32, 1]
    alone = torch.zeros_like(total)
    alone[7] = 5
    edges, bins, _ = equal_mass(alone, alone, 10)
    assert (len(edges), bins.tolist()) == (0, [5])
