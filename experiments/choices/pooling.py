"""Variants of `pool`: passes over simulated brains of the network of the brain sample, pooled in other ways.

Every variant is fitted on some brains and measured on others, with one temperature after pooling, against temperature
scaling of the first pass. Weights are pulled towards equal ones with a fixed strength.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.beside_paper import lines
from experiments.passes.sets import SETS
from experiments.passes.views import ORIGINAL, seen
from segcal.data.sample import BRAIN_WEIGHTS, brain_network
from segcal.data.sample.brain import simulate_brain
from segcal.functional.pooling import lifted, mixture_weights
from segcal.functional.temperature import likelihood, optimal_inverse_temperature
from segcal.types import Array

_FIT, _TEST = range(8), range(8, 18)
_EVERY = 5  # voxels of a row that are used
_SHOWN = ("mirror", "mirror, scales", "3 mirrors", "all views")
_STRENGTH = 1e-3
_STEPS = 100


class Voxels(NamedTuple):
    """Logits of every member, the first pass first, and labels."""

    logits: Float[Tensor, "M L N"]
    labels: Int64[Tensor, " N"]


Pool = Callable[[Float[Tensor, "M L N"]], Float[Tensor, "L N"]]
"""From the logits of all members to pooled logits, which keep the labels of the first member."""


def measure(_: argparse.Namespace) -> pd.DataFrame:
    """Return the NLL of each variant with each set of passes, and that of temperature scaling."""
    names = list(dict.fromkeys(view for shown in _SHOWN for view in SETS[3][shown]))
    fit, test = (_voxels(numbers, (ORIGINAL, *names)) for numbers in (_FIT, _TEST))
    base = _nll_after(lambda logits: logits[0], fit, test)
    rows = [{"passes": "", "variant": "ts", "nll": round(base, 6)}]
    for shown in _SHOWN:
        members = [0, *(1 + names.index(view) for view in SETS[3][shown])]
        own, others = (Voxels(voxels.logits[members], voxels.labels) for voxels in (fit, test))
        for variant, pool in _variants(own):
            rows.append({"passes": shown, "variant": variant, "nll": round(_nll_after(pool, own, others), 6)})
            print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def table(rows: pd.DataFrame) -> str:
    """Return the change of the NLL from temperature scaling as Markdown."""
    (base,) = rows[rows["variant"] == "ts"]["nll"]
    changes = rows[rows["variant"] != "ts"].pivot_table(index="variant", columns="passes", values="nll", sort=False)
    shown = 100 * (changes / base - 1)
    body = [[str(variant), *(f"{value:+.1f} %" for value in row)] for variant, row in shown.iterrows()]
    return lines(["NLL, % of `ts`", *map(str, shown.columns)], body)


def _voxels(numbers: Sequence[int], views: Sequence[str]) -> Voxels:
    network = brain_network()
    network.load_state_dict(load_file(BRAIN_WEIGHTS))
    network.eval()
    logits, labels = [], []
    for number in numbers:
        subject = simulate_brain(number)
        image = torch.from_numpy(subject.image)[None, None]
        with torch.inference_mode():
            members = torch.stack([seen(network, image, view)[0].flatten(1)[:, ::_EVERY] for view in views])
        logits.append(members.clone())
        labels.append(torch.from_numpy(subject.labels).flatten()[::_EVERY].long())
    return Voxels(torch.cat(logits, dim=2), torch.cat(labels))


def _variants(fit: Voxels) -> Iterator[tuple[str, Pool]]:
    """Yield the variants by name, fitted."""
    members = len(fit.logits)
    one, equal = torch.ones(members, 1, 1), torch.full((members, 1, 1), 1 / members)
    common = one * _temperature(fit.logits[0], fit.labels)
    each = torch.tensor([_temperature(logits, fit.labels) for logits in fit.logits]).view(-1, 1, 1)
    yield "equal weights", lambda logits: _lifted(_mean(logits, equal, one), logits)
    for name, warm in (("learned weights", one), ("and members at T0", common), ("and a T for each member", each)):
        weights = _weights(fit, warm)
        yield name, lambda logits, w=weights, t=warm: _lifted(_mean(logits, w, t), logits)  # type: ignore[misc]
    weights = _weights(fit, common)
    yield "weight capped per pixel instead of lifting", lambda logits: _capped(logits, weights, common)
    powers = _powers(fit)
    yield "geometric, learned", lambda logits: _lifted((powers * logits).sum(dim=0), logits)


def _temperature(logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> float:
    root = optimal_inverse_temperature(lambda alpha: likelihood(logits, labels, alpha))
    return 1 / root.inverse_temperature


def _nll_after(pool: Pool, fit: Voxels, test: Voxels) -> float:
    """Return the mean NLL on `test` with the temperature that is best on `fit`."""
    found = likelihood(pool(test.logits), test.labels, 1 / _temperature(pool(fit.logits), fit.labels))
    return float(found.nll / found.pixels)


def _weights(fit: Voxels, warm: Tensor) -> Tensor:
    truth = (fit.logits / warm).softmax(dim=1).gather(1, fit.labels.expand(len(fit.logits), 1, -1))[:, 0]
    weights: Array = mixture_weights(truth.double().numpy(), _STRENGTH)
    return torch.from_numpy(weights.astype(np.float32)).view(-1, 1, 1)


def _mean(logits: Tensor, weights: Tensor, warm: Tensor) -> Tensor:
    return (weights * (logits / warm).softmax(dim=1)).sum(dim=0).clamp(min=torch.finfo(torch.float32).tiny).log()


def _lifted(pooled: Float[Tensor, "L N"], logits: Float[Tensor, "M L N"]) -> Float[Tensor, "L N"]:
    return lifted(pooled[None], logits[:1])[0]


def _capped(logits: Tensor, weights: Tensor, warm: Tensor) -> Tensor:
    """Return the mean with as much of the other members as leaves the label of the first one the largest."""
    first, pooled = (logits[0] / warm[0]).softmax(dim=0), _mean(logits, weights, warm).exp()
    label = first.argmax(dim=0, keepdim=True)
    lead, change = first.gather(0, label) - first, pooled.gather(0, label) - pooled
    limit = torch.where(change < 0, lead / (lead - change).clamp(min=1e-12), torch.ones_like(lead)).amin(dim=0)
    return ((1 - limit) * first + limit * pooled).clamp(min=torch.finfo(torch.float32).tiny).log()


def _powers(fit: Voxels) -> Tensor:
    """Return the exponents of least NLL of the product of the members' probabilities."""
    free = torch.full((len(fit.logits), 1, 1), 1 / len(fit.logits)).log().requires_grad_()
    optimiser = torch.optim.LBFGS([free], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = F.cross_entropy((free.exp() * fit.logits).sum(dim=0).T, fit.labels)
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return free.detach().exp()
