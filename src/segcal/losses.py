"""Losses that train a network to be calibrated: focal loss and MMCE (paragraph "Joint Prediction and Calibration").

Each is an ordinary loss, `loss(logits, labels)`, the mean over the labelled pixels. `sum_and_weight` gives it as a
sum with its number of pixels, which is what an objective of `segcal.training.loop.train` returns: batches of unequal
size, and the shares of several processes, then count by their pixels. MMCE is one number of a batch, not a sum over
pixels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from segcal.functional.checks import check_labels, check_same_space
from segcal.functional.probability import log_probabilities
from segcal.types import IgnoreIndex, InputError, Labels, Logits, check_weight

FLSD_53 = "flsd-53"
_WIDTH = 0.4  # of MMCE's kernel
_SMALLEST = 1e-12  # a squared MMCE below is rounding, and its root has no gradient


class PixelLoss(nn.Module, ABC):
    """The mean of a loss over the labelled pixels of a batch, computed in at least float32.

    Args:
        ignore_index: Label, or labels, that have no part in the loss.
    """

    def __init__(self, *, ignore_index: IgnoreIndex = None) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    @abstractmethod
    def of_pixels(self, log_probs: Float[Tensor, "N L"], labels: Int64[Tensor, " N"]) -> Float[Tensor, ""]:
        """The mean over N labelled pixels, of which there is at least one."""

    def forward(self, logits: Logits, labels: Labels) -> Float[Tensor, ""]:
        """The mean over the labelled pixels; 0 where there is none."""
        total, weight = self.sum_and_weight(logits, labels)
        return total / weight.clamp(min=1)

    def sum_and_weight(self, logits: Logits, labels: Labels) -> tuple[Float[Tensor, ""], Int64[Tensor, ""]]:
        """The mean times the number of labelled pixels, and that number."""
        check_same_space(logits, labels, class_axis=1)
        classes = logits.shape[1]
        truth = check_labels(labels, classes, self.ignore_index).reshape(-1)
        log_probs = log_probabilities(logits).movedim(1, -1).reshape(-1, classes)
        labelled = truth >= 0
        weight = labelled.sum()
        if not weight:
            return 0.0 * log_probs.sum(), weight  # so that backward still finds its way
        return weight * self.of_pixels(log_probs[labelled], truth[labelled]), weight


class FocalLoss(PixelLoss):
    """Focal loss `-(1 - p)**gamma log p` of the true class's probability p (Lin et al. 2017; Mukhoti et al. 2020).

    Args:
        gamma: How little pixels that are right already count; 0 is cross-entropy. "flsd-53" takes 5 for pixels whose
            true class has a probability below 0.2, and 3 for the others. The paper does not state its gamma: 3 is our
            choice, after Mukhoti et al., and 1 is the default of the code that the paper cites.
        ignore_index: Label, or labels, that have no part in the loss.

    Examples:
        >>> half = torch.zeros(1, 2, 1, 1)  # p = 1/2
        >>> loss = FocalLoss()(half, torch.zeros(1, 1, 1, dtype=torch.long))
        >>> round(float(loss / torch.tensor(2.0).log()), 6)
        0.125
    """

    def __init__(self, gamma: float | Literal["flsd-53"] = 3.0, *, ignore_index: IgnoreIndex = None) -> None:
        super().__init__(ignore_index=ignore_index)
        if isinstance(gamma, str) and gamma != FLSD_53:
            raise InputError(f"gamma must be a number or '{FLSD_53}', got '{gamma}'")
        self.gamma = gamma if isinstance(gamma, str) else check_weight("gamma", gamma)

    def of_pixels(self, log_probs: Float[Tensor, "N L"], labels: Int64[Tensor, " N"]) -> Float[Tensor, ""]:
        """Their mean focal loss."""
        return focal(log_probs.gather(1, labels.unsqueeze(1)).squeeze(1), self.gamma).mean()


class MMCELoss(PixelLoss):
    """Cross-entropy plus `strength` times the maximum mean calibration error (Kumar et al. 2018).

    The defaults are ours: the root, as in the equation of Kumar et al., and a lambda of 2. The code that the paper
    cites takes no root of the unweighted error and a lambda of 1: `MMCELoss(1.0, squared=True)`.

    Args:
        strength: Lambda.
        squared: Whether the square of the calibration error is added.
        weighted: Whether right and wrong pixels count the same however few the wrong ones are. Off by default: a
            calibrated network does not have a weighted error of 0, and a large lambda then costs labels.
        pixels: How many pixels of a batch, drawn at random, the calibration error is taken over; None takes all. Time
            grows as n log n and memory as n, so that a sample is rarely needed.
        seed: Seed of that draw in evaluation mode. In training mode the draw is PyTorch's own, which
            `torch.manual_seed` and segcal's training loop set.
        ignore_index: Label, or labels, that have no part in the loss.
    """

    def __init__(
        self,
        strength: float = 2.0,
        *,
        squared: bool = False,
        weighted: bool = False,
        pixels: int | None = None,
        seed: int = 0,
        ignore_index: IgnoreIndex = None,
    ) -> None:
        super().__init__(ignore_index=ignore_index)
        if pixels is not None and pixels < 1:
            raise InputError(f"pixels must be at least 1, or None for all, got {pixels}")
        self.strength, self.squared, self.weighted = check_weight("strength", strength), squared, weighted
        self.pixels, self.seed = pixels, seed

    def of_pixels(self, log_probs: Float[Tensor, "N L"], labels: Int64[Tensor, " N"]) -> Float[Tensor, ""]:
        """Cross-entropy of all pixels plus the calibration error of the sample."""
        cross_entropy = nn.functional.nll_loss(log_probs, labels)
        if self.pixels is not None and self.pixels < len(labels):
            chosen = self._draw(len(labels), self.pixels).to(labels.device)
            log_probs, labels = log_probs[chosen], labels[chosen]
        largest, predicted = log_probs.max(dim=1)
        error = mmce(largest.exp(), predicted == labels, weighted=self.weighted, squared=self.squared)
        return cross_entropy + self.strength * error

    def _draw(self, many: int, few: int) -> Int64[Tensor, " few"]:
        generator = None if self.training else torch.Generator().manual_seed(self.seed)
        return torch.randperm(many, generator=generator)[:few]


def focal(log_probs: Float[Tensor, "*A"], gamma: float | Literal["flsd-53"] = 3.0) -> Float[Tensor, "*A"]:
    """Focal loss from the logarithm of the true class's probability."""
    # the power of 0 has no finite slope for gamma < 1, hence the bound
    rest = (-torch.expm1(log_probs)).clamp(min=torch.finfo(log_probs.dtype).tiny)
    if isinstance(gamma, str):
        return -log_probs * rest ** torch.where(log_probs.detach().exp() < 0.2, 5.0, 3.0).to(rest.dtype)
    return -log_probs * rest**gamma


def mmce(
    confidence: Float[Tensor, " N"], right: Bool[Tensor, " N"], *, weighted: bool = False, squared: bool = False
) -> Float[Tensor, ""]:
    """Maximum mean calibration error: how far right pixels' doubt and wrong pixels' confidence are from each other.

    The root of `sum over i, j of a_i a_j exp(-|r_i - r_j| / 0.4)` with confidences r, `a = (right - r) / N`, or
    weighted `a = (1 - r) / #right` for right pixels and `-r / #wrong` for wrong ones (Kumar et al. 2018). Where
    all are right, or all wrong, the weighted form has nothing to compare and is 0, as in the published code. That code
    divides by the number of pairs twice; this does once, as the equations do. With `squared` the root is not taken.
    """
    wide = confidence.double()
    if weighted:
        hits = right.sum()
        misses = len(right) - hits
        if not hits or not misses:
            return 0.0 * confidence.sum()
        share = torch.where(right, (1 - wide) / hits, -wide / misses)
    else:
        share = (right.double() - wide) / len(right)
    square = _laplacian_form(wide, share)
    if squared:
        return square.to(confidence.dtype)
    return torch.where(square > _SMALLEST, square.clamp(min=_SMALLEST).sqrt(), 0.0).to(confidence.dtype)


def _laplacian_form(at: Float[Tensor, " N"], weight: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    """`sum over i, j of weight_i weight_j exp(-|at_i - at_j| / 0.4)` for `at` in 0..1, without the N x N pairs.

    In ascending order the kernel of a pair is a product, `exp(-at_i / 0.4) exp(at_j / 0.4)` for i after j, so the sum
    over all j before i is a running one. Its terms are within a factor of exp(2.5) of each other: nothing is lost.
    """
    ordered, order = at.sort()
    heavy = weight[order] * (ordered / _WIDTH).exp()
    light = weight[order] * (-ordered / _WIDTH).exp()
    before = heavy.cumsum(0) - heavy
    return 2 * (light * before).sum() + weight.square().sum()
