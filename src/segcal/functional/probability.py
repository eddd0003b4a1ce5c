"""Probabilities from logits, and what is read from them at each pixel (Sec. 3.1 of the paper).

Half-precision logits are computed in float32; float32 and float64 in their own precision. Every function is stable for
logits of any finite size, because the largest logit of a pixel is subtracted before the exponential.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY, least_gap
from segcal.kernels.dispatch import with_denormals
from segcal.types import InputError, Labels

_SMALLEST = torch.finfo(torch.float32).tiny


def at_least_float32(values: Float[Tensor, "*A"]) -> Float[Tensor, "*A"]:
    """Widen half precision, leave the rest alone."""
    return values.to(at_least_float32_dtype(values.dtype))


def at_least_float32_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision that `at_least_float32` gives to values of another."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def log_probabilities(logits: Float[Tensor, "B L *S"]) -> Float[Tensor, "B L *S"]:
    """Logarithm of the softmax over classes."""
    return torch.log_softmax(at_least_float32(logits), dim=1)


def probabilities(logits: Float[Tensor, "B L *S"]) -> Float[Tensor, "B L *S"]:
    """Softmax over classes.

    Examples:
        >>> probabilities(torch.tensor([[1e4, -1e4]], dtype=torch.float16))
        tensor([[1., 0.]])
    """
    return torch.softmax(at_least_float32(logits), dim=1)


def logits_from_probabilities(probs: Float[Tensor, "B L *S"]) -> Float[Tensor, "B L *S"]:
    """Return logits with the argmax of `probs`, whose softmax gives `probs` back.

    A probability of 0 becomes the logarithm of the smallest float32. Logarithms of neighbouring numbers can be equal
    after rounding, and argmax would then return another class; they are computed in float64 and kept apart.

    Examples:
        >>> logits_from_probabilities(torch.tensor([[1.0, 0.0]]))
        tensor([[  0.0000, -87.3365]])
    """
    wide = at_least_float32(probs)
    logits = probs.double().clamp(min=_SMALLEST).log()
    if wide.dtype == torch.float64:  # only here can the logarithms be in the wrong order, by one rounding
        logits = torch.minimum(logits, logits.gather(1, predicted_labels(wide).unsqueeze(1)))
    return keep_labels(logits.to(wide.dtype), wide)


def possible_logits(logits: Tensor, top: Tensor) -> Tensor:
    """Return logits with a finite number instead of minus infinity; `top` holds the largest of each pixel.

    It is 87.3 nats below the largest: that of the probability that `logits_from_probabilities` gives to 0.
    """
    limits, wide = torch.finfo(logits.dtype), at_least_float32(top)  # half precision is rounded once, at the end
    # where logits are so large that 87.3 is lost in rounding, a few units in the last place instead
    below = (4 * limits.eps * wide.abs()).clamp(min=-SMALLEST_LOG_PROBABILITY)
    return torch.where(torch.isneginf(logits), (wide - below).clamp(min=limits.min).to(logits.dtype), logits)


def logits_from_sigmoid(probs: Float[Tensor, "*A"]) -> Float[Tensor, "*A"]:
    """Logits whose sigmoid gives `probs` back; 0 and 1 become the logarithm of the smallest float32 and its opposite.

    Examples:
        >>> logits_from_sigmoid(torch.tensor([0.5, 1.0, 0.0]))
        tensor([  0.0000,  87.3365, -87.3365])
    """
    wide = at_least_float32(probs)
    return wide.clamp(min=_SMALLEST).log() - (1 - wide).clamp(min=_SMALLEST).log()


def logits_from_scores(scores: Float[Tensor, "B L *S"]) -> Float[Tensor, "B L *S"]:
    """Logits whose softmax is `scores` divided by their sum over the classes, with the argmax of `scores`.

    Some networks return nonnegative class scores that do not sum to 1. Mask2Former and MaskFormer add up, over their
    queries, the class probability times the mask probability; the sum of that over the classes is below 1 where no mask
    covers a pixel and can exceed 1 where several do. The logits are the logarithms of the scores. Scores that differ in
    the last bit may have the same logarithm, so the runner-up is then moved down by one bit: labels never change.
    A score below the smallest normal float32 counts as that number, and a pixel whose scores are all 0 becomes uniform.

    Examples:
        >>> probabilities(logits_from_scores(torch.tensor([[0.5, 0.25, 0.05]])))
        tensor([[0.6250, 0.3125, 0.0625]])
    """
    if not (scores >= 0).all() or not torch.isfinite(scores).all():  # NaN is not >= 0
        raise InputError(
            f"scores must be finite and at least 0, got values from {scores.min().item():.4g} to "
            f"{scores.max().item():.4g}; scores that can be negative are logits, which need no conversion"
        )
    return logits_from_probabilities(scores)


def two_class_logits(logits: Float[Tensor, "B 1 *S"]) -> Float[Tensor, "B 2 *S"]:
    """Return the logits `[0, z]` of both classes of a one-logit head, whose softmax is `[1 - sigmoid(z), sigmoid(z)]`.

    Examples:
        >>> two_class_logits(torch.tensor([[3.0]]))
        tensor([[0., 3.]])
    """
    return torch.cat([torch.zeros_like(logits), logits], dim=1)


def log_odds(logits: Float[Tensor, "B 2 *S"]) -> Float[Tensor, "B 1 *S"]:
    """Return the one logit whose sigmoid is the probability of class 1, finite in its precision.

    Examples:
        >>> log_odds(torch.tensor([[1.0, 3.0]]))
        tensor([[2.]])
    """
    largest = torch.finfo(logits.dtype).max
    return (logits[:, 1:] - logits[:, :1]).clamp(-largest, largest)


def entropy(logits: Float[Tensor, "B L *S"]) -> Float[Tensor, "B *S"]:
    """Entropy of the probabilities at each pixel, in nats.

    Examples:
        >>> entropy(torch.zeros(1, 4, 1)).exp()
        tensor([[4.]])
    """
    log_probs = log_probabilities(logits)
    # xlogy-like: a probability that underflows to 0 adds 0, although its logarithm stays finite
    return -(log_probs.exp() * log_probs).sum(dim=1)


def predicted_labels(scores: Float[Tensor, "B L *S"]) -> Labels:
    """The first class of the largest score; on a CPU in a fourth of the time of `argmax`, which finds the same.

    Examples:
        >>> predicted_labels(torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0]]))
        tensor([1, 0])
    """
    return scores.max(dim=1).indices


@with_denormals
def keep_labels(scores: Float[Tensor, "B L *S"], logits: Float[Tensor, "B L *S"]) -> Float[Tensor, "B L *S"]:
    """Scores whose argmax is that of `logits`, in the scores' own precision.

    `scores` must be a monotone function of `logits` at each pixel, up to rounding. Rounding can make a rival reach the
    winner's score (adjacent logits, high temperatures, half precision), or exceed it by a few units in the last place,
    and then argmax returns another class. Such rivals are moved to one unit below it. A rival further above is not of
    rounding but of a method that changes labels; it stays, so that a check of the labels finds it.

    Examples:
        >>> logits = torch.tensor([[1.0, 1.0 + 2**-23]])
        >>> tied = (logits / 100).to(torch.float16)
        >>> tied.argmax(1), keep_labels(tied, logits).argmax(1)
        (tensor([0]), tensor([1]))
    """
    lower = logits < logits.amax(dim=1, keepdim=True)
    graph = torch.compiler.is_compiling()  # an exported graph knows neither branches on data nor the bits of a number
    tied = 2 * least_gap(scores.dtype)  # two denormal numbers may compare as equal
    if not graph and not ((scores.amax(dim=1, keepdim=True) - scores < tied) & lower).any():
        return scores
    own, limits = scores.masked_fill(lower, -torch.inf).amax(dim=1, keepdim=True), torch.finfo(scores.dtype)
    below = own - (4 * limits.eps * own.abs() + limits.tiny) if graph else next_below(own)
    # logarithms of probabilities near 1 are near 0, with the absolute error of numbers near 1
    rounding = 8 * limits.eps * own.abs() + 8 * torch.finfo(at_least_float32_dtype(scores.dtype)).eps
    return torch.where(lower & (scores <= own + rounding), torch.minimum(scores, below), scores)


def keep_sides(probs: Float[Tensor, "*A"], logits: Float[Tensor, "*A"]) -> Float[Tensor, "*A"]:
    """Sigmoid probabilities that are above 0.5 exactly where `logits` are above 0, in their own precision.

    `probs` must be a monotone function of `logits` with 0.5 at 0. Rounding can give 0.5 to a small positive logit.

    Examples:
        >>> keep_sides(torch.tensor([0.5, 0.5]), torch.tensor([1e-9, -1e-9])) > 0.5
        tensor([ True, False])
    """
    half = 0.5 * torch.ones_like(probs)
    above = torch.where(probs > half, probs, half + torch.finfo(probs.dtype).eps / 2)
    return torch.where(logits > 0, above, torch.minimum(probs, half))


def next_below(values: Float[Tensor, "*A"]) -> Float[Tensor, "*A"]:
    """The largest number below each finite value in its own precision that a comparison tells from it.

    `torch.nextafter` lacks half precision, and its denormal numbers may compare as 0.
    """
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    bits, gap = values.view(width), least_gap(values.dtype)
    below = torch.where(bits > 0, bits - 1, bits + 1).view(values.dtype)
    return torch.where(values.abs() < gap, -gap, below)
