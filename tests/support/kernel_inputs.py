"""Inputs for every accelerated operation, and the comparison of two results: what kernels are tested with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from segcal.functional.context import FEATURES
from segcal.functional.counting import Totals
from segcal.functional.division import NO_FLOOR, Floor
from segcal.functional.scores import PiecewiseMap, ScoreHistogram
from segcal.kernels.constants import CELLS
from segcal.kernels.dispatch import DECLINED, OPERATIONS, Engine, plain_only

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
LOOSE = {"rtol": 1e-10, "atol": 1e-6}  # differences of squares of logits up to 20,000
SINGLE = {"rtol": 3e-5, "atol": 5e-6}  # kernels that compute in float32


@dataclass(frozen=True)
class Scene:
    """Two images of one size; ties, huge logits and ignored pixels among them."""

    size: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    classes: int = 5
    strided: bool = False

    def __str__(self) -> str:
        layout = "-strided" if self.strided else ""
        return f"{self.classes}x{'x'.join(map(str, self.size))}-{str(self.dtype)[6:]}{layout}"

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self.classes, *self.size])

    def laid(self, values: Tensor) -> Tensor:
        """The same values, in another order of memory where the scene asks for it."""
        return values.transpose(0, -1).contiguous().transpose(0, -1) if self.strided else values

    @property
    def moderate(self) -> Tensor:
        """Logits of the scale that networks produce: [2, L, *S]."""
        return self.laid(torch.from_numpy(4 * self.random.normal(size=(2, self.classes, *self.size))).to(self.dtype))

    @property
    def logits(self) -> Tensor:
        z = self.moderate.clone()
        z[..., ::3] = z[..., ::3].round()
        z[..., ::7] *= 1000
        return self.laid(z)

    @property
    def labels(self) -> Tensor:
        labels = self.random.integers(0, self.classes, (2, *self.size))
        labels[..., ::10] = -1
        return self.laid(torch.from_numpy(labels))

    @property
    def flat(self) -> tuple[Tensor, Tensor]:
        """Logits [L, N] and labels [N] of the first image."""
        return self.logits[0].reshape(self.classes, -1), self.labels[0].reshape(-1)

    @property
    def pixels(self) -> tuple[Tensor, ...]:
        z, y = self.flat
        confidence, predicted, nll, brier, entropy = OPERATIONS["pixels.pixel_statistics"].plain(z, y)
        return confidence, predicted, y, nll, brier, entropy

    @property
    def index(self) -> Tensor:
        return (self.flat[1] >= 0).nonzero().squeeze(1)

    def numbers(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.random.normal(size=shape))


def halves(scene: Scene) -> Tensor:
    edges = torch.arange(11, dtype=torch.float64) / 10
    return torch.stack([edges, edges.sqrt()])


def tables(classes: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tables that hold something already, so that adding differs from writing."""
    whole = torch.ones(classes, size, dtype=torch.int64)
    return whole, whole.clone(), torch.ones(classes, size, dtype=torch.float64)


def totals(regions: int, scene: Scene) -> Totals:
    binned, cells = ([torch.stack([t] * regions) for t in tables(scene.classes, size)] for size in (10, CELLS))
    support, sums = torch.zeros(regions, scene.classes).long(), torch.zeros(regions, 3).double()
    return Totals(*binned, support, sums, *cells)


def maps(classes: int) -> PiecewiseMap:
    breaks = torch.tensor([[0.1, 0.4, 0.8]], dtype=torch.float64).repeat(classes, 1)
    left = torch.tensor([[0.0, 0.1, 0.5, 0.9]], dtype=torch.float64).repeat(classes, 1)
    return PiecewiseMap(breaks, left, left + 0.05)


def convolution(scene: Scene, out: int, channels: int) -> tuple[Tensor, Tensor]:
    width = (5,) * len(scene.size)
    return 0.02 * scene.numbers(out, channels, *width).float(), 0.1 * scene.numbers(out).float()


Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def of_tree(scene: Scene) -> list[Call]:
    image = scene.numbers(2, 3, *scene.size).float()
    alone = call(scene.moderate, None, convolution(scene, 7, scene.classes), None, 1.0, least=1e-8)
    return [alone, call(scene.moderate, image, convolution(scene, 8, scene.classes), convolution(scene, 1, 3), 2.0)]


def of_weight_gradient(scene: Scene) -> list[Call]:
    padded = scene.numbers(2, scene.classes, *(length + 8 for length in scene.size)).float()
    return [call(padded, scene.numbers(2, nodes, *scene.size).float()) for nodes in (1, 7)]


def of_scores(scene: Scene) -> list[Call]:
    standardisation = of_standardising(scene)[0][0][1:]
    return [call(args[0], standardisation, *args[1:], **kwargs) for args, kwargs in of_tree(scene)]


def of_context(scene: Scene) -> list[Call]:
    weights, offsets = 0.05 * scene.numbers(len(FEATURES)), 0.1 * scene.numbers(scene.classes)
    number = torch.tensor(0.3, dtype=torch.float64)
    settings = ((0.5, 3.0, 0.6, 0.0), (0.5, 3.0, 0.0, 0.0), (0.05, 100.0, 1.1, 0.05), (0.5, 1.2, 1.5, 0.3))
    return [
        call(scene.moderate, weights, number, offsets, (low, high), 0 * number + floor, 0 * number + softness)
        for low, high, floor, softness in settings
    ]


def of_batches(scene: Scene) -> list[Call]:
    """Two batches into one region and into two, with invalid labels and scores in the second."""
    edges, nothing = halves(scene)[0], torch.zeros(2, dtype=torch.int64)
    masks = torch.stack([scene.labels > -2, scene.labels > 1])
    odd, strange = scene.labels.clone().int(), scene.moderate.clone()
    odd[..., 3::5], strange[:, -1, ..., 1::6] = scene.classes, torch.nan
    strange[:, 0, ..., 2::7] = -torch.inf
    return [
        call(scene.moderate, scene.labels, None, torch.tensor([-1]), edges, totals(1, scene), nothing, 1),
        call(strange, odd, masks, torch.tensor([-1, 0]), edges, totals(2, scene), nothing.clone(), 3),
    ]


def of_regions(scene: Scene) -> list[Call]:
    """Several regions, one of them empty, with one set of edges and with two."""
    regions = [scene.index, scene.index[:0], scene.index[::3]]
    edges = halves(scene).expand(len(regions), 2, -1)
    return [call(regions, scene.pixels, edges[:, :sets], scene.classes) for sets in (1, 2)]


def of_standardising(scene: Scene) -> list[Call]:
    mean, deviation = scene.numbers(scene.classes).float(), 0.5 + scene.numbers(scene.classes).abs().float()
    impossible = scene.moderate.clone()
    impossible[:, 1:, ..., ::4] = -torch.inf
    return [
        call(z, torch.tensor(scale, dtype=torch.float64), mean, deviation)
        for z, scale in ((scene.moderate, 0.7), (scene.logits, 1.0), (impossible, 2.0))
    ]


def of_divisions(scene: Scene) -> list[Call]:
    heat = 0.05 + 4 * scene.numbers(2, 1, *scene.size).abs().to(scene.dtype)
    image = heat.flatten(1)[:, :1].view(2, 1, *(1 for _ in scene.size)).expand(heat.shape) if heat.numel() else heat
    return [call(scene.moderate, heat), call(scene.moderate, image)]


def of_scaled_loss(scene: Scene) -> list[Call]:
    heat = 0.3 + 4 * scene.numbers(2, 1, *scene.size).abs().to(scene.dtype)
    return [call(scene.moderate, scene.labels, heat), call(scene.moderate.float(), scene.labels, heat.float())]


def of_loss(scene: Scene) -> list[Call]:
    z, y = scene.moderate[0].reshape(scene.classes, -1), scene.flat[1]
    features, point = scene.numbers(3, y.numel()).float(), 0.1 * scene.numbers(1 + 3 + scene.classes).numpy()
    return [
        call(z, y, features, point, bounds, floor=floor, brier=brier, curvature=curvature)
        for floor in (NO_FLOOR, Floor(0.95, 0.1))
        for bounds, brier, curvature in (((0.05, 100.0), 0.0, False), ((0.9, 1.2), 0.7, True))
    ]


INPUTS: dict[str, tuple[Callable[[Scene], Call | list[Call]], dict[str, float]]] = {
    "affine.affine_sums": (
        lambda s: [
            call(*s.flat, s.numbers(s.flat[1].numel()).abs(), s.numbers(rows, width), s.numbers(rows), of_log=of_log)
            for rows, width, of_log in (
                *product((s.classes,), (1, s.classes), (False, True)),
                (s.classes + 1, s.classes, False),
            )
        ],
        {"rtol": 1e-10, "atol": 1e-8},
    ),
    "affine.mapped_scores": (
        lambda s: [
            call(
                s.moderate.flatten(2), *(values.to(s.dtype) for values in (s.numbers(rows, s.classes), s.numbers(rows)))
            )
            for rows in (1, s.classes, 7)
        ],
        SINGLE,
    ),
    "context.context_features": (lambda s: call(s.moderate), SINGLE),
    "context.context_temperature": (of_context, SINGLE),
    "counting.count_cells": (lambda s: call(s.index, *s.pixels[:3], *tables(s.classes, CELLS)), CLOSE),
    "counting.add_unchecked_batch": (of_batches, CLOSE),
    "counting.count_regions": (of_regions, CLOSE),
    "division.scaled_logits": (of_divisions, {"rtol": 1e-6, "atol": 1e-6}),
    "division.scaled_probabilities": (of_divisions, SINGLE),
    "log_linear.loss_sums": (of_loss, {"rtol": 1e-9, "atol": 1e-8}),
    "pixels.likelihood_sums": (lambda s: [call(*s.flat, alpha) for alpha in (0.0, 0.7, 3.0)], LOOSE),
    "pixels.pixel_statistics": (lambda s: call(s.flat[0], s.flat[1].clamp(min=0)), CLOSE),
    "division.scaled_nll": (of_scaled_loss, {"rtol": 2e-5, "atol": 2e-5}),
    "scaling.attended_sums": (lambda s: call(*s.flat, 0.05, 0.7), LOOSE),
    "pixels.binned_sums": (
        lambda s: call(*s.flat, torch.tensor([0.3, 0.9]).double(), torch.tensor([0.5, 1.0, 2.0]).double()),
        LOOSE,
    ),
    "scaling.mixed_logits": (
        lambda s: call(s.moderate, torch.tensor(1.7).double(), torch.tensor([0.6, 0.3, 0.1]).double()),
        SINGLE,
    ),
    "scaling.mixture_sums": (
        lambda s: call(*s.flat, s.numbers(s.classes).abs(), 0.6, torch.tensor([0.5, 0.3, 0.2]).double()),
        {"rtol": 1e-10, "atol": 1e-9},
    ),
    "scores.beta_log_probabilities": (
        lambda s: call(s.moderate, s.numbers(s.classes, 3).abs()),
        {"rtol": 1e-9, "atol": 1e-9},
    ),
    "scores.mapped_log_probabilities": (lambda s: call(s.logits, maps(s.classes)), {"rtol": 1e-9, "atol": 1e-9}),
    "scores.count_scores": (
        lambda s: [
            call(*s.flat, ScoreHistogram(*tables(s.classes, CELLS))),
            call(*s.flat, ScoreHistogram(*tables(s.classes, 10)), halves(s)[0, 1:-1]),
        ],
        CLOSE,
    ),
    "division.standardised_log_probabilities": (of_standardising, SINGLE),
    "tree.root_of_scores": (of_scores, {"rtol": 1e-4, "atol": 2e-4}),
    "tree_training.weight_gradient": (of_weight_gradient, {"rtol": 1e-4, "atol": 1e-3}),
    "tree.tree_root": (of_tree, {"rtol": 1e-4, "atol": 2e-4}),
}
EMPTY = Scene((0, 4))
SCENES = [
    Scene((13, 21)),
    Scene((13, 21), torch.float16, classes=2),
    Scene((30, 41), torch.bfloat16),
    Scene((17, 40), torch.float64, classes=1),
    Scene((6, 7, 9), classes=3),
    Scene((5, 8, 6), torch.float64, strided=True),
    Scene((19, 23), strided=True),
    EMPTY,
]
NEED_PIXELS = (
    "context.context_features",
    "context.context_temperature",
    "tree.root_of_scores",
    "tree.tree_root",
)


def calls_of(name: str, scene: Scene) -> list[Call]:
    """Return the arguments with which an operation is called on a scene."""
    calls = INPUTS[name][0](scene)
    return calls if isinstance(calls, list) else [calls]


def agree(
    name: str, scene: Scene, engine: Engine, *, moved: Callable[[Any], Any] = lambda values: values, least: float = 0.0
) -> None:
    """Check that a kernel gives what the plain form does, on the device that `moved` moves to, to at least `least`."""
    operation, kernel = OPERATIONS[name], OPERATIONS[name].kernel(engine)
    assert kernel is not None
    tolerance = {key: max(value, least) for key, value in INPUTS[name][1].items()}
    for call in calls_of(name, scene):
        own, other = moved(copy.deepcopy(call)), moved(copy.deepcopy(call))
        found = kernel(*own[0], **own[1])
        if found is not DECLINED:
            with plain_only():  # a plain form may call others, which have kernels
                same(found, operation.plain(*other[0], **other[1]), tolerance)
            same(own[0], other[0], tolerance)  # tables that are filled in place


def same(found: Any, expected: Any, tolerance: dict[str, float]) -> None:
    if isinstance(expected, Tensor):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, tolerance)
    elif isinstance(expected, dict):
        same((*found, *found.values()), (*expected, *expected.values()), tolerance)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, **tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance["rtol"], abs=tolerance["atol"], nan_ok=True)
    else:
        assert found == expected
