"""Means with intervals, and what paired tests compare, from numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from segcal.statistics import Drawing, bootstrap_interval, clusters_of
from segcal.tables import image_means, summary, volume_bias

NAN = float("nan")
CASES, GROUPS = ["a", "b", "c", "d"], ["x", "", "x", ""]


def frame_of(values: dict[tuple[str, str], list[float]]) -> pd.DataFrame:
    rows = [
        (case, method, region, "ece", value, 0 if np.isnan(value) else 7)
        for (method, region), own in values.items()
        for case, value in zip(CASES, own, strict=True)
    ]
    return pd.DataFrame(rows, columns=["case", "method", "region", "metric", "value", "pixels"])


def patches_of(values: dict[str, list[float]]) -> pd.DataFrame:
    rows = [(case, "UC", k, "0 0", "ece", value, 7) for case, own in values.items() for k, value in enumerate(own)]
    return pd.DataFrame(rows, columns=["case", "method", "patch", "origin", "metric", "value", "pixels"])


@pytest.mark.parametrize("kind", ["percentile", "bca"])
@pytest.mark.parametrize("groups", [GROUPS, ["", "", "", ""]])
def test_means_and_their_intervals(kind: str, groups: list[str]) -> None:
    drawing = Drawing(CASES, groups, kind, 300, 5)
    frame = frame_of({("UC", "all"): [0.1, 0.4, NAN, 0.3], ("UC", "local-avg"): [9.0, 9.0, 9.0, 9.0]})
    patches = patches_of({"a": [0.1, 0.2], "b": [0.3, NAN], "c": [0.5, 0.7], "d": [NAN, NAN]})
    found = summary(frame, patches, drawing).set_index("region")
    assert list(found) == ["method", "metric", "mean", "std", "low", "high", "count"]
    images, local = found.loc["all"], found.loc["local-avg"]
    assert (images["mean"], images["std"], images["count"]) == (
        pytest.approx(0.8 / 3), pytest.approx(np.std([0.1, 0.4, 0.3])), 3,
    )  # fmt: skip
    assert (local["mean"], local["count"]) == (pytest.approx(1.8 / 5), 5)
    assert local["std"] == pytest.approx(np.std([0.1, 0.2, 0.3, 0.5, 0.7]))
    sums, counts = np.array([0.3, 0.3, 1.2, 0.0]), np.array([2, 1, 2, 0])

    def mean(weights: np.ndarray) -> np.ndarray:
        many = weights @ counts
        return np.divide(weights @ sums, many, out=np.full(len(many), np.nan), where=many > 0)

    expected = bootstrap_interval(mean, 4, kind=kind, repetitions=300, seed=5, clusters=clusters_of(groups))
    assert (local["low"], local["high"]) == pytest.approx(tuple(expected))


def test_without_patches() -> None:
    frame = frame_of({("UC", "all"): [0.1, 0.2, 0.3, 0.4]})
    found = summary(frame, frame.iloc[:0], Drawing(CASES, GROUPS))
    assert found["mean"].tolist() == [pytest.approx(0.25)]


def test_an_empty_region_has_no_mean() -> None:
    found = summary(frame_of({("UC", "all"): [NAN] * 4}), pd.DataFrame(), Drawing(CASES, GROUPS))
    assert found["count"].tolist() == [0]
    assert found[["mean", "std", "low", "high"]].isna().all(axis=None)


def test_groups_count_once_in_paired_tests() -> None:
    frame = frame_of({("UC", "all"): [0.1, 0.4, 0.3, NAN], ("TS", "all"): [0.0, 0.2, NAN, NAN]})
    means = image_means(frame, Drawing(CASES, GROUPS))
    np.testing.assert_allclose(means[("UC", "ece", "all")], [0.2, 0.4, NAN])  # a and c are one
    np.testing.assert_allclose(means[("TS", "ece", "all")], [0.0, 0.2, NAN])
    alone = image_means(frame, Drawing(CASES, [""] * 4))
    np.testing.assert_allclose(alone[("UC", "ece", "all")], [0.1, 0.4, 0.3, NAN])


def test_cases_are_told_by_name_not_by_order() -> None:
    frame = frame_of({("UC", "all"): [0.1, 0.4, 0.3, 0.2]})
    mixed = frame.iloc[::-1]
    np.testing.assert_allclose(image_means(mixed, Drawing(CASES, [""] * 4))[("UC", "ece", "all")], [0.1, 0.4, 0.3, 0.2])
    pd.testing.assert_frame_equal(
        summary(mixed, pd.DataFrame(), Drawing(CASES, GROUPS)), summary(frame, pd.DataFrame(), Drawing(CASES, GROUPS))
    )


def test_volume_bias_by_hand() -> None:
    cats, dogs = [("a", "cat", 12.0, 10), ("b", "cat", 10.0, 10)], [("a", "dog", 1.0, 0), ("b", "dog", 1.0, 0)]
    volumes = pd.DataFrame([*cats, *dogs], columns=["case", "label", "predicted", "true"]).assign(method="UC")
    cat, dog = volume_bias(volumes, Drawing(["a", "b"], ["", ""])).itertuples()
    assert (cat.predicted, cat.true, cat.bias) == (22.0, 20, pytest.approx(0.1))
    assert (cat.low, cat.high) == (pytest.approx(0.0), pytest.approx(0.2))
    assert np.isnan(dog.bias)  # it never occurs, so there is nothing to divide by
