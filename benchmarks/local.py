"""Local temperature scaling against the paper's nine convolutions; `lts` and `cts` applied, against a softmax pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.timing import console, milliseconds, scene, table
from segcal import Case
from segcal.calibrators import ContextualTemperatureScaling, LocalTemperatureScaling, TemperatureCalibrator
from segcal.calibrators.shared.local_training import summed_loss
from segcal.calibrators.shared.tree import TemperatureTree
from segcal.functional.context import context_features


class NineConvolutions(nn.Module):
    """The published form: nine convolutions of one channel each, padded one by one."""

    def __init__(self, classes: int, dims: int, channels: int) -> None:
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        self.leaves = nn.ModuleList([conv(classes, 1, 5, dilation=2) for _ in range(4)])
        self.gates = nn.ModuleList([conv(classes, 1, 5, dilation=2) for _ in range(4)])
        self.image_leaf = conv(channels, 1, 5, dilation=2)
        self.padding = [4] * (2 * dims)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The temperature of each pixel."""

        def padded(values: Tensor) -> Tensor:
            return F.pad(values, self.padding, mode="reflect")

        v1, v2, v3, v4 = (leaf(padded(x)) + 1 for leaf in self.leaves)
        c5, c6, c7, c8 = (torch.sigmoid(gate(padded(x))) for gate in self.gates)
        left, right = c5 * v1 + (1 - c5) * v2, c6 * v3 + (1 - c6) * v4
        logits_value = c7 * left + (1 - c7) * right
        result: Tensor = torch.relu(c8 * (self.image_leaf(padded(y)) + 1) + (1 - c8) * logits_value) + 1e-8
        return result


def published_loss(logits: Tensor, labels: Tensor, temperature: Tensor) -> Tensor:
    """The loss of the published code."""
    return F.cross_entropy(logits / temperature, labels)


def own_loss(logits: Tensor, labels: Tensor, temperature: Tensor) -> Tensor:
    """The loss that segcal trains with."""
    nll, pixels = summed_loss(logits, labels, temperature)
    return nll / pixels


def step(
    module: nn.Module, loss: Callable[[Tensor, Tensor, Tensor], Tensor], logits: Tensor, image: Tensor, labels: Tensor
) -> Callable[[], Any]:
    """One training step: forward, loss, backward, Adam."""
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-6)

    def run() -> None:
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss(logits, labels, module(logits, image)))
        optimiser.step()

    return run


def against_nine_convolutions() -> None:
    """Print forward and training step of both forms."""
    shapes = {
        "11 x 360 x 480, batch 4": (4, 11, 3, (360, 480)),
        "3 x 64^3": (1, 3, 1, (64, 64, 64)),
        "57 x 48^3": (1, 57, 1, (48, 48, 48)),
    }
    shown = table("local temperature scaling, ms", "data", "nine convolutions", "segcal", "ratio", "flop/s, segcal")
    for title, (batch, classes, channels, size) in shapes.items():
        logits, labels = scene(classes, size, batch)
        image = torch.rand(batch, channels, *size)
        ours, theirs = TemperatureTree(classes, len(size), channels), NineConvolutions(classes, len(size), channels)
        with torch.no_grad():
            slow = milliseconds(partial(theirs, logits, image), repetitions=3, warm_up=1)
            fast = milliseconds(partial(ours, logits, image), repetitions=9)
        pixels = labels.numel()
        flops = 2 * pixels * 5 ** len(size) * (8 * classes + channels)
        shown.add_row(
            f"{title}, forward", f"{slow:.1f}", f"{fast:.1f}", f"{slow / fast:.1f}", f"{flops / fast * 1e3:.2g}"
        )
        slow = milliseconds(step(theirs, published_loss, logits, image, labels), repetitions=2, warm_up=1)
        fast = milliseconds(step(ours, own_loss, logits, image, labels), repetitions=5)
        shown.add_row(f"{title}, training step", f"{slow:.1f}", f"{fast:.1f}", f"{slow / fast:.1f}", "")
    console.print(shown)


def applying() -> None:
    """Print how many softmax+max passes the application of LTS and of contextual temperature scaling takes."""
    for title, classes, size in (
        ("11 x 360 x 480", 11, (360, 480)),
        ("21 x 360 x 480", 21, (360, 480)),
        ("3 x 64^3", 3, (64, 64, 64)),
    ):
        logits, labels = scene(classes, size, batch=2)
        one = logits[:1].contiguous()
        unit = milliseconds(partial(_pass, one))  # before the fit, which leaves memory in pieces
        parts: dict[str, Callable[[], Any]] = {"all features of cts, as for a fit": partial(context_features, one)}
        for calibrator in _fitted(classes, len(size), [Case(f"{k}", logits[k], labels[k]) for k in range(2)]):
            parts[f"{calibrator.method}: temperature"] = partial(calibrator.temperature, one)
            parts[f"{calibrator.method}: probabilities, labels guarded"] = partial(calibrator.predict_proba, one)
        shown = table(f"apply to one image, {title}", "what", "ms", "softmax+max passes")
        shown.add_row("softmax + max", f"{unit:.2f}", "1.00")
        with torch.no_grad():
            for name, function in parts.items():
                time = milliseconds(function)
                shown.add_row(name, f"{time:.2f}", f"{time / unit:.2f}")
        console.print(shown)


def _pass(logits: Tensor) -> Any:
    return torch.softmax(logits, dim=1).max(dim=1)


def _fitted(classes: int, dims: int, cases: Sequence[Case]) -> Iterator[TemperatureCalibrator]:
    """Yield `lts` with random weights, whose time does not depend on them, and a fitted `cts`."""
    lts = LocalTemperatureScaling(classes, spatial_dims=dims)
    lts.tree.reset(torch.Generator().manual_seed(0))
    lts.fitted.fill_(True)
    yield lts
    yield ContextualTemperatureScaling(classes, spatial_dims=dims).fit(cases)
