"""The functions of `scaling_kernels` in plain PyTorch, for every device; also the readable statement of them."""

from __future__ import annotations

import torch
from torch import Tensor


def mixture(logits: Tensor, labels: Tensor, importance: Tensor, alpha: float, weights: Tensor) -> Tensor:
    """Sums that the weights of `{softmax(alpha z), softmax(z), 1 / L}` are found from: Float64[19].

    Over the labelled pixels of `[L, N]` logits, a pixel of class c counted `importance[c]` times: the NLL of the
    mixture and its gradient (4); its second derivatives (9); the products of the probabilities scaled by scaled, scaled
    by raw and raw by raw (3); the probabilities of the truth, scaled and raw (2); the count.
    """
    index = (labels >= 0).nonzero().squeeze(1)
    truth = labels[index].unsqueeze(0)
    z = logits[:, index].double()
    below = z - z.amax(dim=0)
    scaled, raw = torch.softmax(alpha * below, dim=0), torch.softmax(below, dim=0)
    share = importance[truth].squeeze(0)
    uniform = torch.full_like(share, 1 / logits.shape[0])
    parts = torch.stack([scaled.gather(0, truth).squeeze(0), raw.gather(0, truth).squeeze(0), uniform])
    mixed = weights @ parts
    ratios = parts / mixed
    pairs = ((scaled, scaled), (scaled, raw), (raw, raw))
    products = torch.stack([(one * other).sum(dim=0) @ share for one, other in pairs])
    return torch.cat(
        [
            -(mixed.log() @ share).reshape(1),
            -ratios @ share,
            ((share * ratios) @ ratios.T).reshape(-1),
            products,
            parts[:2] @ share,
            share.sum().reshape(1),
        ]
    )


def binned_likelihood(logits: Tensor, labels: Tensor, edges: Tensor, alphas: Tensor) -> Tensor:
    """As `portable.likelihood`, for pixels in bins of confidence, each with an inverse temperature: Float64[R, 6].

    Bin r holds the confidences in `(edges[r - 1], edges[r]]`.
    """
    index = (labels >= 0).nonzero().squeeze(1)
    z = logits[:, index].double()
    below = z - z.amax(dim=0)
    truth = below.gather(0, labels[index].unsqueeze(0)).squeeze(0)
    bins = torch.bucketize(1 / below.exp().sum(dim=0), edges)
    alpha = alphas[bins]
    log_probs = torch.log_softmax(alpha * below, dim=0)
    probs = log_probs.exp()
    average = (probs * below).sum(dim=0)
    curvature = ((probs * below.square()).sum(dim=0) - average.square()).clamp(min=0)
    nll = torch.logsumexp(alpha * below, dim=0) - alpha * truth
    terms = torch.stack(
        [torch.ones_like(truth), nll, average - truth, curvature, below.mean(dim=0) - truth, -truth], dim=1
    )
    return terms.new_zeros(len(alphas), 6).index_add_(0, bins, terms)


def attended_likelihood(logits: Tensor, labels: Tensor, threshold: float, alpha: float) -> Tensor:
    """As `portable.likelihood`, of the attended loss; the last sum is the number of borrowed terms: Float64[7].

    To `-log S_y` each class k that is not the truth, and whose raw probability is at least `threshold`, adds
    `-log(1 - S_k)`, with `S = softmax(alpha z)`.
    """
    index = (labels >= 0).nonzero().squeeze(1)
    truth = labels[index]
    z = logits[:, index].double()
    below = z - z.amax(dim=0)
    own = below.gather(0, truth.unsqueeze(0)).squeeze(0)
    log_total, mean, variance = _moments(below, alpha)
    total = torch.stack(
        [
            torch.ones_like(own).sum(),
            (log_total - alpha * own).sum(),
            (mean - own).sum(),
            variance.sum(),
            (below.mean(dim=0) - own).sum(),
            -own.sum(),
            own.new_zeros(()),
        ]
    )
    raw = torch.softmax(below, dim=0)
    for k in range(logits.shape[0] if logits.shape[0] > 1 else 0):
        chosen = (raw[k] >= threshold) & (truth != k)
        others = torch.cat([below[:k, chosen], below[k + 1 :, chosen]])
        rest_total, rest_mean, rest_variance = _moments(others, alpha)
        total += torch.stack(
            [
                own.new_zeros(()),
                (log_total[chosen] - rest_total).sum(),
                (mean[chosen] - rest_mean).sum(),
                (variance[chosen] - rest_variance).sum(),
                (below[:, chosen].mean(dim=0) - others.mean(dim=0)).sum(),
                -others.amax(dim=0).sum() if others.numel() else own.new_zeros(()),
                chosen.sum().double(),
            ]
        )
    return total


def _moments(z: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithm of the summed exponentials of `alpha z`, and mean and variance of `z` under their shares."""
    probs = torch.softmax(alpha * z, dim=0)
    mean = (probs * z).sum(dim=0)
    return torch.logsumexp(alpha * z, dim=0), mean, (probs * (z - mean).square()).sum(dim=0)
