"""Tables of scores and maps of scores: kernels, plain PyTorch and slow loops agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from segcal.functional.scores import (
    PiecewiseMap,
    ScoreHistogram,
    apply_map,
    beta_log_probabilities,
    cell_of,
    count_scores,
    empty_scores,
    joined_maps,
    largest_of_cells,
    mapped_log_probabilities,
    mean_distances,
)
from segcal.kernels.constants import CELLS
from segcal.kernels.cpu import compiling
from segcal.kernels.dispatch import plain_only

CLASSES = 3
Engine = Callable[[], AbstractContextManager[None]]


def image(seed: int = 0, pixels: int = 1000, scale: float = 4.0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(CLASSES, pixels, generator=random)
    return logits, torch.randint(-1, CLASSES, (pixels,), generator=random)


def probabilities_of(logits: Tensor) -> np.ndarray:
    powers = np.exp(logits.double().numpy() - logits.double().numpy().max(axis=0))
    return powers / powers.sum(axis=0)


def slow_table(logits: Tensor, labels: Tensor, bins: Callable[[float], int], size: int) -> list[np.ndarray]:
    table = [np.zeros((CLASSES, size)) for _ in range(3)]
    for pixel, label in enumerate(labels.tolist()):
        if label < 0:
            continue
        for c, p in enumerate(probabilities_of(logits[:, pixel : pixel + 1])[:, 0]):
            key = bins(p)
            table[0][c, key] += 1
            table[1][c, key] += label == c
            table[2][c, key] += min(p, 1 - p)
    return table


EDGES = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)


@pytest.mark.parametrize("engine", [nullcontext, plain_only], ids=["kernel", "plain"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("edges", [None, EDGES, EDGES[:0]], ids=["cells", "edges", "no edge"])
def test_counting_is_what_the_loop_gives(edges: Tensor | None, dtype: torch.dtype, engine: Engine) -> None:
    logits, labels = image()
    logits = logits.to(dtype)
    size = CELLS if edges is None else len(edges) + 1
    table = empty_scores(CLASSES, size)
    with engine():
        totals = count_scores(logits, labels, table, edges)

    def bins(p: float) -> int:
        return int(cell_of(torch.tensor(p))) if edges is None else sum(p > edge for edge in edges.tolist())

    for found, expected in zip(table, slow_table(logits, labels, bins, size), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-15)
    valid = labels >= 0
    nll = torch.nn.functional.cross_entropy(logits[:, valid].double().T, labels[valid], reduction="sum")
    right = (logits[:, valid].argmax(0) == labels[valid]).sum()
    assert totals.tolist() == pytest.approx([int(valid.sum()), int(right), float(nll)])


def test_volumes_are_counted_like_the_same_pixels_in_a_row() -> None:
    logits, labels = image(pixels=60)
    flat, volume = empty_scores(CLASSES), empty_scores(CLASSES)
    totals = count_scores(logits, labels, flat)
    assert totals.equal(count_scores(logits.view(CLASSES, 3, 4, 5), labels.view(3, 4, 5), volume))
    assert all(torch.equal(one, other) for one, other in zip(flat, volume, strict=True))


@given(st.floats(0, 1) | st.sampled_from([0.5, 0.25, 2.0**-53, 1 - 2.0**-53]))
def test_cells_of_kernel_and_plain_form_agree_and_hold_what_they_say(p: float) -> None:
    cell = int(cell_of(torch.tensor(p, dtype=torch.float64)))
    assert compiling.cell_of(p) == cell
    ends = largest_of_cells()
    assert p <= ends[cell]
    assert cell == 0 or p > ends[cell - 1]


def test_cells_are_narrow_and_in_order() -> None:
    ends = largest_of_cells().numpy()
    assert len(ends) == CELLS
    assert (np.diff(ends) >= 0).all()
    inner = ends[(ends > 2.0**-52) & (ends < 1 - 2.0**-40)]
    assert (np.diff(inner) <= 2.0**-9 * np.minimum(inner[1:], 1 - inner[:-1]) * (1 + 1e-9)).all()


def random_map(seed: int, groups: int, breaks: int) -> PiecewiseMap:
    random = np.random.default_rng(seed)
    maps = []
    for g in range(groups):
        many = breaks + 3 * g
        at = np.sort(np.concatenate([random.random(many // 2), random.random(many - many // 2) ** 12]))
        ends = np.sort(random.random(2 * many + 2)).reshape(-1, 2)
        ends[0, :] = ends[0, 0]
        ends[-1, :] = ends[-1, 1]
        maps.append(PiecewiseMap(*(torch.from_numpy(v.copy())[None] for v in (at, ends[:, 0], ends[:, 1]))))
    return joined_maps(maps)


def slow_mapped(logits: Tensor, maps: PiecewiseMap) -> np.ndarray:
    probs = probabilities_of(logits)
    out = np.empty_like(probs)
    for (c, pixel), p in np.ndenumerate(probs):
        breaks, left, right = (field[min(c, len(field) - 1)].numpy() for field in maps)
        breaks = breaks[breaks <= 1]
        at = sum(p > b for b in breaks)
        share = (p - breaks[at - 1]) / (breaks[at] - breaks[at - 1]) if 0 < at < len(breaks) else 0.0
        out[c, pixel] = left[at] + share * (right[at] - left[at]) + 1e-9 * p
    return np.log(out / out.sum(axis=0))


@pytest.mark.parametrize("groups", [1, CLASSES])
@pytest.mark.parametrize("path", ["kernel", "eager", "exported"])
@pytest.mark.parametrize("breaks", [1, 2, 37])
def test_mapping_is_what_the_loop_gives(groups: int, path: str, breaks: int) -> None:
    maps, (logits, _) = random_map(breaks, groups, breaks), image(pixels=400)
    if path == "eager":
        found = mapped_log_probabilities(logits[None].requires_grad_(), maps).detach()
    else:
        with mock.patch("torch.compiler.is_compiling", return_value=path == "exported"):
            found = mapped_log_probabilities(logits[None], maps)
    expected = slow_mapped(logits, maps)
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-9, atol=1e-12)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(0, 5))
def test_order_survives_rounding(values: list[float], seed: int) -> None:
    maps = random_map(seed, 1, 5)
    found = apply_map(torch.tensor(sorted(values), dtype=torch.float64).view(1, 1, -1), maps).flatten()
    assert (found.diff() >= 0).all()
    assert (found > 0).all()


@pytest.mark.parametrize("path", ["kernel", "eager", "exported"])
def test_beta_maps(path: str) -> None:
    logits, _ = image(pixels=300)
    weights = torch.tensor([[0.5, 2.0, -1.0], [1.0, 1.0, 0.0], [0.0, 0.3, 1.0]], dtype=torch.float64)
    if path == "eager":
        found = beta_log_probabilities(logits[None].requires_grad_(), weights).detach()
    else:
        with mock.patch("torch.compiler.is_compiling", return_value=path == "exported"):
            found = beta_log_probabilities(logits[None], weights)
    p = np.clip(probabilities_of(logits), 2.0**-52, 1)
    rest = np.clip(1 - probabilities_of(logits), 2.0**-52, 1)
    a, b, c = weights.numpy()[:, :, np.newaxis].transpose(1, 0, 2)
    odds = p**a / rest**b * np.exp(c)
    expected = odds / (1 + odds)
    # in the loop 1 - p cancels
    np.testing.assert_allclose(found[0].exp().numpy(), expected / expected.sum(axis=0), rtol=1e-6)


def test_a_beta_map_sees_what_one_minus_p_cannot() -> None:
    """At 33 nats 1 - p is known to a few digits in float64, but the other class still says it; the bound is 2**-52."""
    weights = torch.tensor([[0.0, 1.0, -30.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    logits = torch.tensor([[[30.0, 33.0, 60.0], [0.0, 0.0, 0.0]]])
    found = beta_log_probabilities(logits, weights)[0].exp()
    first = torch.sigmoid(torch.tensor([0.0, 3.0, 52 * np.log(2) - 30], dtype=torch.float64))
    torch.testing.assert_close(found[0], first / (first + 0.5), rtol=1e-12, atol=0)


def test_maps_of_unequal_length_are_padded() -> None:
    one = PiecewiseMap(*(torch.tensor([v], dtype=torch.float64) for v in ([0.5], [0.1, 0.2], [0.1, 0.2])))
    two = PiecewiseMap(*(torch.tensor([v], dtype=torch.float64) for v in ([0.2, 0.4], [0, 0.5, 1], [0, 1, 1])))
    both = joined_maps([one, two])
    assert both.breaks.tolist() == [[0.5, 2.0], [0.2, 0.4]]
    assert both.left.tolist() == [[0.1, 0.2, 0.2], [0, 0.5, 1]]
    assert isinstance(both, PiecewiseMap)
    assert isinstance(empty_scores(2), ScoreHistogram)


def test_mean_distances_by_hand() -> None:
    """Two scores of 0.1 and 0.2 in the lower half, one of 0.9 in the upper, and an empty cell."""
    table = empty_scores(1)
    for cell, total, distance in ((7, 2, 0.1 + 0.2), (CELLS - 8, 1, 0.1)):
        table.total[0, cell], table.distance[0, cell] = total, distance
    score, rest = mean_distances(table)
    assert score[0, [7, CELLS - 8]].tolist() == pytest.approx([0.15, 0.9])
    assert rest[0, [7, CELLS - 8]].tolist() == pytest.approx([0.85, 0.1])
    assert (score + rest).isnan().sum() == CELLS - 2
