"""The catalogue of metrics: complete, consistent with what is read, and shown as it says."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from segcal.evidence import Evidence, describe, read
from segcal.evidence.readings import FURTHER
from segcal.functional import catalogue
from segcal.functional.catalogue import CATALOGUE, METRICS, POOLED_METRICS, Better, Metric, Unit


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(3, 40, generator=random), torch.randint(0, 3, (40,), generator=random)
    return Evidence.of(describe(logits, labels), [torch.arange(40), torch.arange(0)], num_classes=3)


def test_every_metric_is_read(evidence: Evidence) -> None:
    assert set(read(evidence)) == {*METRICS, "pixels"}
    found = read(evidence, (*METRICS, *FURTHER))
    assert {*POOLED_METRICS} - {*found} == {"ece-smooth"}  # read from the fine histogram
    for name, values in found.items():
        assert values.shape == (2,), name
        assert name == "pixels" or bool(values[1].isnan()), name  # a region without pixels has no value


def test_a_metric_read_alone_is_that_of_all(evidence: Evidence) -> None:
    for name, values in read(evidence, (*METRICS, *FURTHER)).items():
        if name != "pixels":
            torch.testing.assert_close(read(evidence, (name,))[name], values, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=CATALOGUE)
def test_entries_are_complete(metric: Metric) -> None:
    assert metric.title
    assert metric.unit in get_args(Unit)
    assert metric.better in get_args(Better)
    if metric.section:  # the paper's table is made of single images, and has a best in each column
        assert not metric.pooled_only
        assert metric.better in ("lower", "higher")


def test_titles_and_names_are_different() -> None:
    assert len({metric.title for metric in CATALOGUE.values()}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("name", "heading", "shown"),
    [
        ("ece", "ECE(%)↓", "12.35"),
        ("miou", "mIoU(%)↑", "12.35"),
        ("nll", "NLL↓", "0.1235"),
        ("entropy", "Entropy", "0.1235"),
        ("brier-resolution", "Brier resolution↑", "0.1235"),
        ("nll-uncertainty", "NLL uncertainty", "0.1235"),
        ("volume-bias", "Volume bias(%)", "12.35"),
    ],
)
def test_headings_and_numbers(name: str, heading: str, shown: str) -> None:
    assert CATALOGUE[name].heading == heading
    assert CATALOGUE[name].number(0.12345) == shown


def test_the_sections_are_those_of_the_paper() -> None:
    assert catalogue.CALIBRATION[:4] == ("ece", "mce", "sce", "ace")
    assert catalogue.QUALITY[:4] == ("accuracy", "miou", "nll", "brier")
    assert {"accuracy", "miou"} <= catalogue.HIGHER_IS_BETTER
    assert {"ace", "ece-smooth"} == catalogue.WITHOUT_INTERVAL
