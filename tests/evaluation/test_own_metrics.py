"""Metrics of a user: values worked by hand, saved with the results, in the tables, refused in one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal
from torch import Tensor

import segcal
from segcal.functional.catalogue import CATALOGUE, METRICS
from segcal.report import page_content
from segcal.types import Case, InputError
from support.scenes import simulated

ROWS = ["case", "method", "region", "metric"]


def log(probs: list[float]) -> np.ndarray[Any, Any]:
    return np.log(np.array(probs, np.float32))


def by_hand(ignored: int = 9) -> Case:
    """Four pixels in a row with labels 1, 0, 1 and ignored; probabilities of class 1 of 0.9, 0.4, 0.6 and 0.5."""
    logits = np.stack([log([0.1, 0.6, 0.4, 0.5]), log([0.9, 0.4, 0.6, 0.5])])[:, None]
    return Case("four", logits, np.array([[1, 0, 1, ignored]]))


def mean_of_ones(probs: Tensor, labels: Tensor) -> float:
    """Mean probability of class 1 where the label is 1."""
    return float(probs[1][labels == 1].mean())


def true_class(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean probability of the true class, as a tensor without axes."""
    inside = labels >= 0
    return probs.movedim(0, -1)[inside].gather(1, labels[inside][:, None]).double().mean()


def squared(logits: Tensor) -> Tensor:
    return 2 * logits


def test_values_by_hand() -> None:
    regions = {"first": lambda case, labels: torch.tensor([[[True, True, False, False]]])}
    results = segcal.evaluate(
        [by_hand()],
        {"UC": None, "squared": squared},
        num_classes=2,
        ignore_index=9,
        patches=2,
        patch_size=1,
        regions=regions,
        metrics={"ones": mean_of_ones},
    )
    rows = results.to_frame().query("metric == 'ones'").set_index(["method", "region"])
    assert set(rows.index) == {
        (method, region) for method in ("UC", "squared") for region in ("all", "boundary", "first")
    }
    squares = [0.81 / (0.81 + 0.01), 0.36 / (0.36 + 0.16)]
    assert rows.value["UC", "all"] == pytest.approx((0.9 + 0.6) / 2, abs=1e-6)
    assert rows.value["UC", "first"] == pytest.approx(0.9, abs=1e-6)
    assert rows.value["squared", "all"] == pytest.approx(sum(squares) / 2, abs=1e-6)
    assert rows.value["squared", "first"] == pytest.approx(squares[0], abs=1e-6)
    assert [rows.pixels["UC", region] for region in ("all", "first")] == [3, 2]
    assert set(results.patches().metric) == set(METRICS) == set(results.to_frame().metric) - {"ones"}


@pytest.mark.parametrize("size", [(16, 20), (6, 9, 10)], ids=["2d", "3d"])
def test_functions_are_given_the_calibrated_case(size: tuple[int, ...]) -> None:
    cases = simulated(2, num_classes=3, size=size)
    ts = segcal.create("ts", num_classes=3, spatial_dims=len(size)).fit(cases)
    seen = []

    def keep(probs: Tensor, labels: Tensor) -> float:
        seen.append((probs.clone(), labels.clone()))
        labels.fill_(0)  # each call has labels of its own
        return 0.0

    found = segcal.evaluate(
        cases, {"TS": ts}, num_classes=3, background=0, patch_size=4, metrics={"a": keep, "b": keep}
    )
    pixels = found.to_frame().query("metric == 'a'").pixels.tolist()
    assert [int((labels >= 0).sum()) for _, labels in seen[::2]] == pixels
    for case, (probs, labels), (_, again) in zip(cases, seen[::4], seen[1::4], strict=True):
        assert (probs.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert torch.equal(labels, again)
        expected = ts.predict_proba(torch.as_tensor(np.asarray(case.logits))[None])[0]
        torch.testing.assert_close(probs, expected.float(), atol=1e-6, rtol=1e-5)
        inside = labels >= 0
        assert torch.equal(labels[inside], torch.as_tensor(np.asarray(case.labels)).long()[inside])


def test_other_metrics_stay_the_same() -> None:
    cases = simulated(2, num_classes=3, size=(16, 20))
    options: dict[str, Any] = {"num_classes": 3, "patch_size": 6, "repetitions": 5}
    plain = segcal.evaluate(cases, {"UC": None}, **options)
    asked = segcal.evaluate(cases, {"UC": None}, **options, metrics={"true": true_class})
    assert_frame_equal(plain.to_frame(), asked.to_frame().query("metric != 'true'").reset_index(drop=True))
    assert_frame_equal(plain.pooled(), asked.pooled())
    assert_frame_equal(plain.patches(), asked.patches())
    cells = asked.table(reference="UC").cells
    assert {key: cell for key, cell in cells.items() if key[1] in CATALOGUE} == plain.table(reference="UC").cells


def test_tables_and_saved_results(tmp_path: Path) -> None:
    cases = simulated(3, num_classes=3, size=(16, 20))
    ts = segcal.create("ts", num_classes=3).fit(cases)
    options: dict[str, Any] = {"num_classes": 3, "patch_size": 6, "repetitions": 20, "floor": True}
    results = segcal.evaluate(cases, {"UC": None, "TS": ts}, metrics={"p_true & co": true_class}, **options)
    results.save(tmp_path / "results")
    again = segcal.Results.load(tmp_path / "results")
    assert_frame_equal(again.to_frame(), results.to_frame())
    assert str(again.table("TS", floor=True)) == str(results.table("TS", floor=True))

    rows = again.to_frame().query("metric == 'p_true & co' and region == 'all'")
    means = rows.groupby("method").value.mean()
    table = again.table(reference="TS")
    for method in ("UC", "TS"):
        cell = table.cells[method, "p_true & co", "all"]
        assert cell.mean == pytest.approx(means[method])
        assert (cell.best, cell.beaten) == (False, False)
    for average in ("images", "pixels"):
        text = " ".join(str(again.table(average=average)).split())
        assert f"{means['TS']:.4f}(" in text
        assert "p_true & co: mean(std) over images, without marks" in text
    assert set(again.summary().query("metric == 'p_true & co'").region) == {"all", "boundary"}
    assert set(table.only("p_true & co").columns(["p_true & co"])) == {
        ("p_true & co", "all"),
        ("p_true & co", "boundary"),
    }
    for suffix, heading in ((".md", r"| p\_true \& co |"), (".tex", r"p\_true \& co \\")):
        again.export(tmp_path / f"table{suffix}")
        assert heading in (tmp_path / f"table{suffix}").read_text()
    assert page_content(again)["metrics"]["p_true & co"]["title"] == "p_true & co"


def test_the_floor_is_of_drawn_labels() -> None:
    """With labels drawn from probabilities near certainty, the true class has nearly all of the probability."""
    logits = np.zeros((2, 8, 8), np.float32)
    logits[0] = 20
    case = Case("sure", logits, np.ones((8, 8), np.int64))
    results = segcal.evaluate(
        [case], {"UC": None}, num_classes=2, patch_size=4, repetitions=5, floor=True, metrics={"true": true_class}
    )
    wanted = "metric == 'true' and region == 'all'"
    assert results.to_frame().query(wanted).value.item() == pytest.approx(0, abs=1e-6)
    assert results.floor().query(wanted).value.item() == pytest.approx(1, abs=1e-6)


def test_sigmoid_channels_are_problems_of_two_classes() -> None:
    z = np.log(np.array([[[9.0, 1.0]], [[4.0, 0.25]]]))  # probabilities 0.9 0.5 and 0.8 0.2
    case = Case("two", z, np.array([[[1, 0]], [[1, 1]]]))
    results = segcal.evaluate(
        [case], {"UC": None}, num_classes=2, activation="sigmoid", patch_size=1, metrics={"ones": mean_of_ones}
    )
    wanted = "metric == 'ones' and region == 'all'"
    each = [own.to_frame().query(wanted).value.item() for own in results.channels.values()]
    assert each == pytest.approx([0.9, (0.8 + 0.2) / 2], abs=1e-6)
    assert results.to_frame().query(wanted).value.item() == pytest.approx(sum(each) / 2)


def test_a_region_without_pixels_has_no_value() -> None:
    regions = {"nowhere": lambda case, labels: torch.zeros(1, 1, 4, dtype=torch.bool)}
    results = segcal.evaluate(
        [by_hand()], {"UC": None}, num_classes=2, ignore_index=9, regions=regions, metrics={"ones": mean_of_ones}
    )
    row = results.to_frame().query("metric == 'ones' and region == 'nowhere'")
    assert math.isnan(row.value.item())
    assert row.pixels.item() == 0


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"ece": mean_of_ones}, "a metric cannot be called 'ece', which segcal defines; choose another name"),
        ({"mIoU": mean_of_ones}, "a metric cannot be called 'mIoU'"),
        ({"Dice": mean_of_ones}, "a metric cannot be called 'Dice'"),
        ({"a": 3}, "a metric must be a function of probabilities and labels, got int for 'a'"),
        ({" ": mean_of_ones}, "the name of a metric must be text that can be printed, got ' '; rename it"),
        ({3: mean_of_ones}, "the name of a metric must be text that can be printed, got 3; rename it"),
        ([mean_of_ones], "metrics must be a mapping from names to functions, got list"),
    ],
)
def test_wrong_metrics_are_refused(metrics: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        segcal.evaluate([by_hand()], {"UC": None}, num_classes=2, ignore_index=9, metrics=metrics)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda probs, labels: math.nan, "nan"),
        (lambda probs, labels: math.inf, "inf"),
        (lambda probs, labels: probs, "Tensor"),
        (lambda probs, labels: probs.numpy(), "ndarray"),
        (lambda probs, labels: None, "NoneType"),
    ],
)
def test_values_that_are_not_finite_numbers_are_refused(function: Callable[..., Any], got: str) -> None:
    message = f"metric 'mine' must return a finite number, got {got} for case 'four' in region 'all'; return"
    with pytest.raises(InputError, match=message):
        segcal.evaluate([by_hand()], {"UC": None}, num_classes=2, ignore_index=9, metrics={"mine": function})
