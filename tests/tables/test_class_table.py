"""The table of classes: ECE by predicted class, errors of volumes, and segmentation where it was measured."""

from __future__ import annotations

import numpy as np
import pytest

import segcal
from segcal import Case, Results
from segcal.tables import class_errors


@pytest.fixture(scope="module")
def results() -> Results:
    """Two structures on a background; VECTOR may change labels, TS keeps them."""

    def case(seed: int) -> Case:
        random = np.random.default_rng(seed)
        labels = np.zeros((24, 24), np.uint8)
        labels[3:11, 3:11], labels[13:21, 13:21] = 1, 2
        logits = 3.0 * np.eye(3)[labels].transpose(2, 0, 1) + 2 * random.normal(size=(3, 24, 24))
        return Case(f"case-{seed}", (3 * logits).astype(np.float32), labels, spacing=(2.0, 2.0))

    methods = {"UC": None, **{n.upper(): segcal.create(n, num_classes=3).fit([case(9)]) for n in ("ts", "vector")}}
    names = ("background", "anterior", "posterior")
    return segcal.evaluate(
        [case(k) for k in range(3)], methods, num_classes=3, patch_size=8, class_names=names, surfaces=True
    )


def test_rows_and_columns(results: Results) -> None:
    table = results.structure_table(["UC", "TS"])
    columns = ["UC ECE(%)↓", "TS ECE(%)↓", "UC volume(%)", "TS volume(%)", "Dice(%)↑", "ASD(mm)↓"]
    assert list(table.headings) == ["Class", *columns]
    assert [row[0] for row in table.rows] == ["background", "anterior", "posterior"]
    assert table.rows[0][-2:] == ("-", "-"), "the background has no Dice"
    every = results.structure_table()
    assert "VECTOR Dice(%)↑" in every.headings, "a method that changes labels has its own"
    assert every.title in {other.title for other in results._further_tables()}, "in LaTeX and Markdown too"


def test_numbers_are_those_of_the_results(results: Results) -> None:
    _, row, _ = results.structure_table(["UC"]).rows
    curves = results.curves().query("method == 'UC' and region == 'all' and label == 'anterior'")
    error = (curves.hit - curves.confidence).abs().sum() / curves["count"].sum()
    assert class_errors(results.curves(), "UC")["anterior"] == pytest.approx(error)
    volumes = results.volumes().query("method == 'UC' and label == 'anterior'")
    bias = volumes.predicted.sum() / volumes.true.sum() - 1
    quality = results.surfaces().query("method == 'UC' and label == 'anterior'").groupby("metric").value.mean()
    assert row == (
        "anterior",
        f"{100 * error:.2f}",
        f"{100 * bias:+.1f}",
        f"{100 * quality['dice']:.2f}",
        f"{quality['asd']:.3f}",
    )
