"""Readings of the evidence: every metric of `segcal.functional.catalogue` that is computed from it, by name.

A new metric is one line in the catalogue (name, title, unit, direction), its function, and one line in `read`; it
then appears in the results of every case, patch and region. Calibration errors (appendix "Evaluation Metrics") are read
from reliability histograms, of any number of regions at once: these have shape `[*G, L, R]`.

SCE and ACE have three forms. `tables`: pixels are split by predicted label and the gaps of all cells are weighted by
their fraction of pixels, as the paper's printed tables follow. `equations`: the paper's printed equations, with 1/|L|
and 1/(|L| R). `marginal`: Nixon et al. 2019, the probability of every class is binned against the truth of that class.

Debiased errors. Even at a perfectly calibrated network the gap g of a bin of n pixels is not 0: its variance is about
s^2 = acc (1 - acc) / (n - 1). Bröcker (2012) and Kumar et al. (2019) subtract it from g^2, which makes the *squared*
error unbiased; `rms-debiased` is the root of the weighted sum. The absolute value in ECE cannot be unbiased; here each
|g| is replaced by what two halves of the bin's pixels would give on average if one told the sign of the gap and the
other its size, |g| (2 Phi(|g|/s) - 1) - 2 s phi(|g|/s): 0 on average where the gap is 0, |g| where it is many s.

Splits of NLL and Brier score (DeGroot and Fienberg 1983, Murphy 1973): score = calibration + refinement and
refinement = uncertainty - resolution. Calibration is what the bins of the top confidence show: the weighted mean of
KL(acc || conf) for NLL and of (acc - conf)^2 for the Brier score, of the event that the prediction is right. By the
data-processing inequality neither is more than the whole calibration loss of the probabilities. Uncertainty is the
score of a network that knows only how frequent each class is, and resolution what the network knows beyond that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64, Num
from torch import Tensor

from segcal.evidence.statistic import Evidence, Form, Histogram, edge_cells, merge_classes
from segcal.functional.catalogue import METRICS, PARTS, SCORES
from segcal.types import Array

Reading = Float64[Tensor, "*G"]

_GRID = 1 << 14  # positions at which the smoothed gap is computed

FURTHER = ("ece-debiased", "rms-debiased", *(f"{score}-{part}" for score in SCORES for part in PARTS))
"""Errors without the bias of few pixels, and what NLL and Brier score are made of."""


def ece(h: Histogram) -> Float64[Tensor, "*G"]:
    """Return the expected calibration error: the mean gap of confidence and accuracy over bins, weighted by pixels.

    Examples:
        >>> one_bin = Histogram(torch.tensor([[4]]), torch.tensor([[2]]), torch.tensor([[3.0]]).double())
        >>> float(ece(one_bin))  # accuracy 1/2 at a mean confidence of 3/4
        0.25
    """
    return _excess(merge_classes(h)).sum(dim=(-2, -1)) / _pixels(h)


def mce(h: Histogram) -> Float64[Tensor, "*G"]:
    """Return the maximum calibration error: the largest gap of all bins that contain pixels."""
    largest = _gaps(merge_classes(h)).amax(dim=(-2, -1))
    return largest.where(_pixels(h) > 0, torch.nan)


def sce(h: Histogram, form: Form = "tables") -> Float64[Tensor, "*G"]:
    """Return the static calibration error: gaps by class and bin, weighted by pixels."""
    weighted = _excess(h).sum(dim=(-2, -1)) / _pixels(h)
    return weighted / h.pixels.shape[-2] if form == "equations" else weighted


def ace(h: Histogram, form: Form = "tables") -> Float64[Tensor, "*G"]:
    """Return the adaptive calibration error: gaps by class and equal-mass bin."""
    if form == "tables":
        return sce(h)
    mean_gap = _gaps(h).sum(dim=(-2, -1)) / (h.pixels.shape[-2] * h.pixels.shape[-1])
    return mean_gap.where(_pixels(h) > 0, torch.nan)


def accuracy(h: Histogram) -> Float64[Tensor, "*G"]:
    """Return the fraction of pixels whose predicted label is correct."""
    return h.hit.sum(dim=(-2, -1)) / _pixels(h)


def intersection_over_union(h: Histogram, support: Num[Tensor, "*G L"]) -> Float64[Tensor, "*G L"]:
    """Return the IoU of each class; NaN for a class that is neither predicted nor true anywhere."""
    hit = h.hit.sum(dim=-1).double()
    return hit / (h.pixels.sum(dim=-1) + support - hit)


def reliability_curve(h: Histogram) -> dict[str, Tensor]:
    """Return mean confidence, accuracy and pixels of each bin `[*G, R]`, classes merged; NaN in an empty bin."""
    merged = merge_classes(h)
    count = merged.pixels.squeeze(-2).double()
    return {
        "confidence": merged.confidence.squeeze(-2) / count,
        "accuracy": merged.hit.squeeze(-2) / count,
        "pixels": merged.pixels.squeeze(-2),
    }


def class_table(h: Histogram, support: Int64[Tensor, "*G L"]) -> dict[str, Tensor]:
    """Return metrics of each class `[*G, L]`: of the pixels predicted as it, and its overlap with the truth."""
    predicted = h.pixels.sum(dim=-1).double()
    return {
        "pixels": predicted.long(),
        "support": support,
        "confidence": h.confidence.sum(dim=-1) / predicted,
        "accuracy": h.hit.sum(dim=-1) / predicted,
        "ece": _excess(h).sum(dim=-1) / predicted,
        "mce": _gaps(h).amax(dim=-1).where(predicted > 0, torch.nan),
        "iou": intersection_over_union(h, support),
    }


def read(evidence: Evidence, names: Sequence[str] = METRICS, form: Form = "tables") -> dict[str, Reading]:
    """Return metrics by name, and `pixels`; NaN for a region without pixels."""
    merged = merge_classes(evidence.top)
    pixels = merged.pixels.sum(dim=(-2, -1))
    nll, brier, entropy = (evidence.sums / pixels.double().unsqueeze(-1)).unbind(dim=-1)
    found = {
        "ece": ece(merged),
        "mce": mce(merged),
        "sce": sce(evidence.top if evidence.static is None else evidence.static, form),
        "accuracy": accuracy(merged),
        "miou": intersection_over_union(evidence.top, evidence.support).nanmean(dim=-1),
        "nll": nll,
        "brier": brier,
        "entropy": entropy,
    }
    if "ace" in names:  # needs equal-mass bins, which some evidence has not
        found["ace"] = ace(evidence.adaptive(form), form)
    if any(name not in found for name in names):
        found |= further_readings(evidence)
    return {**{name: found[name] for name in names}, "pixels": pixels}


def further_readings(evidence: Evidence) -> dict[str, Reading]:
    """Every reading of `FURTHER`; NaN for a region without pixels."""
    found = {"ece-debiased": debiased_ece(evidence.top), "rms-debiased": debiased_rms(evidence.top)}
    pixels = evidence.support.sum(dim=-1).double()
    frequency = evidence.support / pixels.unsqueeze(-1)
    uncertainty = {
        "nll": -torch.special.xlogy(frequency, frequency).sum(dim=-1),
        "brier": 1 - frequency.square().sum(dim=-1),
    }
    for k, score in enumerate(SCORES):
        calibration = _calibration(evidence.top, score)
        refinement = evidence.sums[..., k] / pixels - calibration
        values = (calibration, refinement, uncertainty[score] - refinement, uncertainty[score])
        found.update({f"{score}-{part}": value for part, value in zip(PARTS, values, strict=True)})
    return found


def debiased_ece(h: Histogram) -> Reading:
    """ECE less what chance adds to it; near 0 (on either side) for a calibrated network."""
    count, gap, variance = _bins(h)
    spread = variance.sqrt()
    ratio = gap.abs() / spread.clamp(min=torch.finfo(torch.float64).tiny)
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    corrected: Tensor = gap.abs() * (2 * torch.special.ndtr(ratio) - 1) - 2 * spread * density
    return (count * corrected).sum(dim=-1) / count.sum(dim=-1)


def debiased_rms(h: Histogram) -> Reading:
    """Root of the unbiased mean squared gap (Kumar et al. 2019); 0 where chance explains all of it."""
    count, gap, variance = _bins(h)
    squared = (count * (gap.square() - variance)).sum(dim=-1) / count.sum(dim=-1)
    return squared.clamp(min=0).sqrt()


def _calibration(h: Histogram, score: str) -> Reading:
    count, gap, _ = _bins(h)
    if score == "brier":
        loss = gap.square()
    else:
        hit, confidence = h.hit.sum(dim=-2) / count.clamp(min=1), h.confidence.sum(dim=-2) / count.clamp(min=1)
        # a mean confidence that rounds to 1 with a miss in the bin would cost infinitely much, and NLL is finite
        inside = confidence.clamp(torch.finfo(torch.float64).tiny, 1 - torch.finfo(torch.float64).eps / 2)
        loss = _relative_entropy(hit, inside) + _relative_entropy(1 - hit, 1 - inside)
    return (count * loss).sum(dim=-1) / count.sum(dim=-1)


def _relative_entropy(share: Tensor, expected: Tensor) -> Tensor:
    entropy: Tensor = torch.special.xlogy(share, share) - torch.special.xlogy(share, expected)
    return entropy


def _bins(h: Histogram) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels of each bin, classes merged, its gap and the variance of its accuracy; 0 in an empty bin."""
    count, hit, confidence = (field.sum(dim=-2).double() for field in h)
    share = hit / count.clamp(min=1)
    gap = (hit - confidence) / count.clamp(min=1)
    return count, gap, share * (1 - share) / (count - 1).clamp(min=1)


def _excess(h: Histogram) -> Float64[Tensor, "*G L R"]:
    """Return pixels times gap: |correct pixels - summed confidence|."""
    return (h.hit - h.confidence).abs()


def _gaps(h: Histogram) -> Float64[Tensor, "*G L R"]:
    """Return |accuracy - confidence| of each cell, 0 where it is empty."""
    return _excess(h) / h.pixels.clamp(min=1).double()


def _pixels(h: Histogram) -> Float64[Tensor, "*G"]:
    return h.pixels.sum(dim=(-2, -1)).double()  # a quotient of two int64 tensors would be float32


def equal_mass_error(cells: Histogram, *, bins: int) -> Float64[Tensor, ""]:
    """Return a bound of the error of ACE (tables) read from a fine histogram.

    A pixel can only be in the wrong bin if an edge cuts its cell, and then it changes two gaps by less than its weight.
    """
    counts = cells.pixels.sum(dim=0)
    cut = torch.zeros_like(counts, dtype=torch.bool)
    for nudge in (0.0, 1e-6):  # a position rounded to just below a whole rank may be that rank
        cut[edge_cells(counts.unsqueeze(0), bins, nudge).squeeze(0)] = True
    return 2 * counts[cut].sum().double() / counts.sum()


def ece_by_bins(cells: Histogram, bins: Sequence[int]) -> Array:
    """Return ECE for each number of equal bins, from a fine histogram `[L, 65536]`; NaN where there is no pixel.

    A pixel can only be in the wrong bin if an edge cuts its cell.
    """
    count, residual, place = _occupied(cells)
    if not count.size:
        return np.full(len(bins), np.nan)
    found = []
    for many in bins:
        edges = np.arange(1, many) / many  # right-closed, as everywhere
        gaps = np.bincount(np.searchsorted(edges, place, side="left"), residual, minlength=many)
        found.append(np.abs(gaps).sum() / count.sum())
    return np.array(found)


@np.errstate(under="ignore")  # a program may have numpy raise, and damped waves vanish
def smooth_ece(cells: Histogram) -> float:
    """Return the smooth calibration error of Błasiok and Nakkiran (2023), from a fine histogram `[L, 65536]`.

    The residuals (right or not, less confidence) are smoothed over the confidence by a Gaussian that is reflected at 0
    and 1, and the absolute value of the result is integrated. It falls as the width grows; the error is the width at
    which both are equal, so that there is no width to choose.
    """
    count, residual, place = _occupied(cells)
    if not count.size:
        return float("nan")
    from scipy.fft import dct, idct  # noqa: PLC0415  slow to import

    waves = dct(_on_grid(residual / count.sum(), place), norm="ortho")
    decay = (np.pi * np.arange(_GRID)) ** 2 / 2

    def error(width: float) -> float:
        # cosines are the reflected waves, and a Gaussian damps each by exp(-(pi k width)^2 / 2)
        return float(np.abs(idct(waves * np.exp(-decay * width**2), norm="ortho")).sum())

    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return (low + high) / 2


def _occupied(cells: Histogram) -> tuple[Array, Array, Array]:
    """Return pixels, correct pixels less summed confidence, and mean confidence of the cells that hold pixels."""
    count, hit, total = (field.numpy().sum(axis=0) for field in cells)
    held = np.flatnonzero(count)
    return count[held], hit[held] - total[held], total[held] / count[held]


def _on_grid(weights: Array, places: Array) -> Array:
    """Divide weights between the two nearest of the positions (j + 1/2) / G, so that their mean position stays."""
    position = np.clip(places * _GRID - 0.5, 0, _GRID - 1)
    lower = np.minimum(position.astype(np.int64), _GRID - 2)
    share = position - lower
    grid = np.bincount(lower, weights * (1 - share), minlength=_GRID)
    return grid + np.bincount(lower + 1, weights * share, minlength=_GRID)
