"""Histograms and what is read from them: against loops on random and adversarial pixels, by hand, and when added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from segcal.evidence import Evidence, Form, Histogram, Pixels, PixelStore, describe, read, readings
from segcal.evidence.readings import equal_mass_error
from segcal.evidence.statistic import count_class_cells, edge_cells, empty_cells, equal_mass_bins
from segcal.functional import counting
from segcal.functional.catalogue import METRICS
from segcal.kernels.constants import CELLS
from support import references

FORMS: tuple[Form, ...] = get_args(Form)
Scene = tuple[Tensor, Tensor]
NAN = math.nan


def random_scene(classes: int, n: int, seed: int = 0, spread: float = 2.0) -> Scene:
    rng = np.random.default_rng([seed, classes, n])
    return torch.from_numpy(rng.normal(scale=spread, size=(classes, n))), torch.from_numpy(rng.integers(0, classes, n))


def tied_scene(classes: int, n: int, seed: int = 0) -> Scene:
    """k of the classes share the largest logit and the others have no chance: probabilities are 1/k and 0, exactly.

    So confidences are 1, 1/2, 1/5 and 1/10, on the edges of bins, and most pixels are tied with many others.
    """
    rng = np.random.default_rng([seed, classes, n])
    z = np.full((classes, n), -1e4)
    for pixel in range(n):
        z[rng.choice(classes, size=rng.integers(1, classes + 1), replace=False), pixel] = 1e4
    return torch.from_numpy(z), torch.from_numpy(rng.integers(0, classes, n))


SCENES: dict[str, Scene] = {
    "random": random_scene(4, 200),
    "confident": random_scene(6, 150, spread=20),
    "ties": tied_scene(10, 120),
    "two tied": tied_scene(2, 50),
    "one class": random_scene(1, 30),
    "one pixel": random_scene(5, 1),
    "one wrong pixel": (torch.tensor([[9.0], [0.0]]).double(), torch.tensor([1])),
    "one image of one value": (torch.zeros(5, 40).double(), torch.arange(40) % 5),
    "certain": (torch.tensor([[1e4, -1e4], [-1e4, 1e4]]).double(), torch.tensor([0, 0])),
    "few classes seen": (random_scene(3, 60)[0], torch.ones(60, dtype=torch.int64)),
}


def measure(scene: Scene, *regions: Tensor, bins: int = 10, form: Form = "tables") -> Evidence:
    logits, labels = scene
    return Evidence.of(
        describe(logits, labels),
        regions or [torch.arange(len(labels))],
        num_classes=len(logits),
        bins=bins,
        class_probs=torch.softmax(logits, 0) if form == "marginal" else None,
    )


@pytest.mark.parametrize("scene", SCENES)
def test_a_pixel_is_described_as_in_the_paper(scene: str) -> None:
    """The confidence is the largest probability of the softmax, the prediction the class of the largest logit."""
    logits, labels = SCENES[scene]
    pixels = describe(logits, labels)
    powers = torch.exp(logits - logits.amax(dim=0))
    torch.testing.assert_close(pixels.confidence, (powers / powers.sum(dim=0)).amax(dim=0).double())
    assert torch.equal(pixels.predicted, logits.argmax(dim=0))


def assert_readings(found: dict[str, Tensor], scene: Scene, *, at: int = 0, **options: object) -> None:
    expected = references.readings(*(part.numpy() for part in scene), **options)
    assert set(found) >= set(expected)
    for name, value in expected.items():
        assert found[name][at].item() == pytest.approx(value, abs=1e-12, rel=1e-12, nan_ok=True), name


@pytest.mark.parametrize("bins", [1, 10])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_readings_agree_with_loops(scene: Scene, form: Form, bins: int) -> None:
    found = read(measure(scene, bins=bins, form=form), form=form)
    assert all(value.dtype == (torch.int64 if name == "pixels" else torch.float64) for name, value in found.items())
    assert_readings(found, scene, bins=bins, form=form)


@given(
    classes=st.integers(1, 12),
    n=st.integers(1, 60),
    seed=st.integers(0, 10**6),
    bins=st.integers(1, 20),
    form=st.sampled_from(FORMS),
    make=st.sampled_from([random_scene, tied_scene]),
)
def test_readings_agree_with_loops_on_anything(
    classes: int, n: int, seed: int, bins: int, form: Form, make: object
) -> None:
    scene = make(classes, n, seed)
    assert_readings(read(measure(scene, bins=bins, form=form), form=form), scene, bins=bins, form=form)


@pytest.mark.parametrize("form", FORMS)
def test_regions_are_measured_apart_and_an_empty_one_is_nan(form: Form) -> None:
    logits, labels = scene = SCENES["random"]
    regions = [torch.arange(0, 200, 3), torch.arange(0), torch.arange(5, 6), torch.arange(200).flip(0)]
    found = read(measure(scene, *regions, form=form), form=form)
    for k, index in enumerate(regions):
        assert_readings(found, (logits[:, index], labels[index]), at=k, form=form)
    assert found["pixels"].tolist() == [67, 0, 1, 200]
    assert all(found[name][1].isnan() for name in METRICS)


def test_every_reading_by_hand() -> None:
    """Two classes, ten bins. Confidence 1/2 belongs to (0.4, 0.5], 3/4 to (0.7, 0.8] and 1 to (0.9, 1].

    pixel  probabilities  predicted  truth
    0      1/2 1/2        0          0
    1      1/4 3/4        1          1
    2      3/4 1/4        0          1
    3      1   0          0          0
    """
    three = math.log(3)
    scene = torch.tensor([[0, 0, three, 1e4], [0, three, 0, 0]], dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    expected = {
        # bins hold {0}, {1, 2}, {3}: gaps 1/2, 1/4, 0
        "tables": {"ece": (1 / 2 + 2 / 4 + 0) / 4, "mce": 1 / 2, "sce": (1 / 2 + 3 / 4 + 1 / 4 + 0) / 4},
        "equations": {"sce": (1 / 2 + 3 / 4 + 1 / 4 + 0) / 8},
        # class 0: 1/2, 1/4, 3/4, 1 against 1, 0, 0, 1; class 1: 1/2, 3/4, 1/4, 0 against 0, 1, 1, 0
        "marginal": {"sce": (1 / 2 + 1 / 4 + 3 / 4 + 0 + 1 / 2 + 1 / 4 + 3 / 4 + 0) / 8},
    }
    everywhere = {
        "nll": (math.log(2) + math.log(4 / 3) + math.log(4)) / 4,
        "brier": (1 / 2 + 1 / 8 + 9 / 8) / 4,
        "entropy": (math.log(2) + 2 * (math.log(4) - 3 / 4 * three)) / 4,
        "accuracy": 3 / 4,
        "miou": (2 / 3 + 1 / 2) / 2,
        "pixels": 4,
    }
    for form in FORMS:
        found = read(measure(scene, form=form), form=form)
        for name, value in {**everywhere, **expected[form]}.items():
            assert found[name].item() == pytest.approx(value, abs=1e-14), (form, name)


def test_equal_mass_bins_by_hand() -> None:
    """Confidences 0.6, 0.7, 0.8, 0.9 in two bins, cut at 0.75; the first and the last are wrong."""
    pixels = Pixels(
        confidence=torch.tensor([0.6, 0.7, 0.8, 0.9], dtype=torch.float64),
        predicted=torch.zeros(4, dtype=torch.int32),
        labels=torch.tensor([1, 0, 0, 1]),
        nll=torch.zeros(4).double(),
        brier=torch.zeros(4).double(),
        entropy=torch.zeros(4).double(),
    )
    index = torch.arange(4)
    torch.testing.assert_close(
        counting.percentile_edges(pixels.confidence, index, 2), torch.tensor([0.6, 0.75, 0.9]).double()
    )
    found = Evidence.of(pixels, [index], num_classes=2, bins=2).adaptive()
    # gaps |1/2 - 0.65| and |1/2 - 0.85|
    assert readings.ace(found).item() == pytest.approx((0.15 + 0.35) / 2)
    assert readings.ace(found, "equations").item() == pytest.approx((0.15 + 0.35) / 4)


@pytest.mark.parametrize(("classes", "cell"), [(1, 9), (2, 4), (5, 1), (10, 0)])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(classes: int, cell: int) -> None:
    found = measure((torch.full((classes, 3), 2.5), torch.zeros(3, dtype=torch.int64)))
    assert found.top.pixels[0].sum(0).nonzero().flatten().tolist() == [cell]


def test_probability_zero_belongs_to_the_first_bin() -> None:
    found = measure(SCENES["certain"], form="marginal")
    assert found.static.pixels[0].tolist() == [[1, *[0] * 8, 1]] * 2


@pytest.mark.parametrize("form", FORMS)
def test_evidence_adds_and_survives_vectors(rng: np.random.Generator, form: Form) -> None:
    """A batch added at once, image by image, and as vectors: the same counts, sums and metrics."""
    logits, labels = torch.from_numpy(rng.normal(size=(3, 4, 6, 7))), torch.from_numpy(rng.integers(-1, 4, (3, 6, 7)))
    masks, marginal = torch.from_numpy(rng.random((2, 3, 6, 7)) < 0.7), form == "marginal"
    whole = Evidence.zeros(2, 4, 10, cells=True, marginal=marginal)
    whole.add(logits, labels, masks)
    parts = []
    for k in range(3):
        parts.append(Evidence.zeros(2, 4, 10, cells=True, marginal=marginal))
        parts[-1].add(logits[k : k + 1], labels[k : k + 1], masks[:, k : k + 1])
    total = (parts[0] + parts[1] + parts[2]).tensors()
    for name, tensor in whole.tensors().items():
        torch.testing.assert_close(total[name], tensor, rtol=1e-14, atol=1e-14)
    again = Evidence.from_vectors(whole.to_vectors(), 4, marginal=marginal)
    metrics = [name for name in METRICS if name != "ace"]
    for name, values in read(whole, metrics, form).items():
        torch.testing.assert_close(read(again, metrics, form)[name], values, rtol=0, atol=0)
        torch.testing.assert_close(read(whole[1], metrics, form)[name], values[1], rtol=0, atol=0)


def test_equal_mass_bins_need_cells_or_the_pixels() -> None:
    with pytest.raises(TypeError, match="need fine histograms"):
        (measure(SCENES["random"]) + measure(SCENES["random"])).adaptive()


def test_joined_parts_are_the_whole() -> None:
    logits, labels = SCENES["random"]
    whole = describe(logits, labels)
    parts = [describe(logits[:, part], labels[part]) for part in (slice(0, 70), slice(70, 71), slice(71, 200))]
    store = PixelStore(200)
    for part in parts:
        with pytest.raises(ValueError, match="200 pixels are needed"):
            store.pixels()
        store.add(part)
    assert all(torch.equal(a, b) for a, b in zip(store.pixels(), whole, strict=True))
    single = PixelStore(200)
    single.add(whole)
    assert all(a is b for a, b in zip(single.pixels(), whole, strict=True)), "not copied"


def test_the_curve_agrees_with_loops() -> None:
    logits, labels = SCENES["random"]
    curve = readings.reliability_curve(measure((logits, labels)).top)
    _, predicted, confidence = references.confidences(logits.numpy())
    cells = references.fill(confidence, predicted == labels.numpy(), np.zeros(200), references.equal_edges(10))
    for j in range(10):
        members = cells.get((0, j), [])
        assert curve["pixels"][0, j] == len(members)
        for name, k in (("confidence", 0), ("accuracy", 1)):
            mean = sum(pixel[k] for pixel in members) / len(members) if members else math.nan
            assert curve[name][0, j].item() == pytest.approx(mean, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_the_class_table_agrees_with_loops(scene: Scene) -> None:
    table = readings.class_table(measure(scene).top, measure(scene).support)
    for c, row in enumerate(references.class_table(*(part.numpy() for part in scene))):
        assert set(table) == set(row)
        for name, value in row.items():
            assert table[name][0, c].item() == pytest.approx(value, abs=1e-12, nan_ok=True), name


# ---------------------------------------------------------------------------------------------------------------------
# equal-mass bins from a fine histogram


def cells_of(pixels: Pixels, classes: int) -> Histogram:
    table = empty_cells(classes)
    counting.count_cells(torch.arange(len(pixels.labels)), *pixels[:3], *table)
    return table


def pixels_of(confidence: Sequence[float], classes: int, seed: int = 0) -> Pixels:
    rng = np.random.default_rng(seed)
    n = len(confidence)
    zeros = torch.zeros(n, dtype=torch.float64)
    predicted, labels = (torch.from_numpy(rng.integers(0, classes, n)) for _ in range(2))
    return Pixels(torch.tensor(confidence, dtype=torch.float64), predicted.int(), labels, zeros, zeros, zeros)


def error_and_bound(pixels: Pixels, classes: int, bins: int) -> tuple[float, float]:
    """Of ACE (tables) read from cells, against the exact one from loops."""
    values, predicted = pixels.confidence.numpy(), pixels.predicted.numpy()
    edges = references.equal_mass_edges(values, bins)
    exact = references.weighted_gaps(
        references.fill(values, predicted == pixels.labels.numpy(), predicted, edges), len(values)
    )
    cells = cells_of(pixels, classes)
    found = readings.ace(equal_mass_bins(cells, bins=bins, form="tables")).item()
    return abs(found - exact), equal_mass_error(cells, bins=bins).item()


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 400),
    classes=st.integers(1, 4),
    bins=st.integers(1, 20),
    power=st.sampled_from([1, 4, 30]),
    digits=st.sampled_from([2, 3, 4, 17]),
)
def test_the_error_bound_of_cells_holds(seed: int, n: int, classes: int, bins: int, power: int, digits: int) -> None:
    values = (1 - np.random.default_rng(seed).random(n) ** power).round(digits)
    error, bound = error_and_bound(pixels_of(values, classes, seed), classes, bins)
    assert error <= bound + 1e-12


def test_the_error_bound_is_small_where_it_matters() -> None:
    rng = np.random.default_rng(0)
    error, bound = error_and_bound(pixels_of(rng.uniform(0.3, 1, 20_000), 2), 2, 10)
    assert error <= bound < 0.02


def rounded_positions() -> list[tuple[int, int, int]]:
    """Pixels, bins and rank such that the position of a percentile should be the rank but is rounded to just below."""
    found = []
    for bins in range(2, 15):
        for n in range(20 * bins**2 + 1, 20 * bins**2 + 5 * bins + 1):
            position = (n - 1) * (np.linspace(0, 100, bins + 1) / 100)
            found += [(n, bins, round(p)) for p in position[1:-1] if 0 < round(p) - p < 1e-9]
    return found


def test_the_error_bound_holds_where_a_position_is_rounded() -> None:
    """Pixels from the rank up to the next edge are tied, so the rounding decides which bin they all belong to.

    They are wrong and those below are right, so that it matters with whom they share a bin. The value below is so near
    that numpy's interpolation ends on the tied one, and yet in a cell of its own.
    """
    below, above = 0.7 - 1 / 20480 - 1e-9, 0.7 - 1 / 20480 + 1e-9  # 1 - confidence = 1229 / 4096 parts two cells
    positions = rounded_positions()
    assert len(positions) >= 12
    for n, bins, rank in positions[:: len(positions) // 12]:
        tied = n // bins - 2
        values = [*np.linspace(0.1, below, rank), *[above] * tied, *np.linspace(0.8, 0.9, n - rank - tied)]
        pixels = pixels_of(values, 1)._replace(labels=torch.tensor([0] * rank + [1] * (n - rank)))
        error, bound = error_and_bound(pixels, 1, bins)
        assert error <= bound + 1e-12, (n, bins, rank)


@pytest.mark.parametrize("bins", [1, 3, 6, 7, 10, 15])
@pytest.mark.parametrize("form", FORMS)
def test_values_in_cells_of_their_own_give_the_exact_error(form: Form, bins: int) -> None:
    """Ties at 1/k: every percentile falls onto a value or between two, never through a cell."""
    logits, labels = scene = tied_scene(5, 421)
    table = empty_cells(5)
    pixels, index = describe(logits, labels), torch.arange(421)
    if form == "marginal":
        count_class_cells(torch.softmax(logits, 0), labels, index, table)
    else:
        counting.count_cells(index, *pixels[:3], *table)
    exact = measure(scene, bins=bins, form=form).adaptive(form)
    found = equal_mass_bins(table, bins=bins, form=form)
    assert torch.equal(found.pixels, exact.pixels[0])
    assert torch.equal(found.hit, exact.hit[0])
    torch.testing.assert_close(found.confidence, exact.confidence[0], rtol=1e-13, atol=1e-14)


def test_no_pixels_leave_no_error_and_no_bound() -> None:
    cells = cells_of(pixels_of([], 3), 3)
    adaptive = equal_mass_bins(cells, bins=10, form="tables")
    assert adaptive.pixels.sum() == 0
    assert readings.ace(adaptive).isnan()
    assert equal_mass_error(cells, bins=10).isnan()


@pytest.mark.parametrize("bins", [2, 3, 10])
def test_edge_cells_hold_the_pixels_of_the_percentiles(rng: np.random.Generator, bins: int) -> None:
    """The pixel of rank (n - 1) k / R, as np.percentile counts, in a table whose pixels are laid out one by one."""
    for n in (1, 2, 7, 40):
        cells = np.sort(rng.integers(0, CELLS, n))
        counts = torch.from_numpy(np.bincount(cells, minlength=CELLS))[None]
        expected = [cells[(n - 1) * k // bins] for k in range(1, bins)]
        assert edge_cells(counts, bins, nudge=1e-9).tolist() == [expected]


def test_reliability_curves_of_several_regions_by_hand() -> None:
    """Two regions, two classes and two bins; classes are merged, and a bin without pixels has no accuracy."""
    pixels = torch.tensor([[[1, 0], [1, 2]], [[0, 3], [0, 1]]])
    hit = torch.tensor([[[1, 0], [0, 1]], [[0, 3], [0, 0]]])
    confidence = torch.tensor([[[0.4, 0.0], [0.2, 1.8]], [[0.0, 2.4], [0.0, 0.8]]], dtype=torch.float64)
    expected = {
        "confidence": [[0.3, 0.9], [NAN, 0.8]],
        "accuracy": [[0.5, 0.5], [NAN, 0.75]],
        "pixels": [[2, 2], [0, 4]],
    }
    for region in (slice(None), 0, 1):
        found = readings.reliability_curve(Histogram(pixels[region], hit[region], confidence[region]))
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], np.array(values)[region])
