"""segcal decide as users type it: rules from held-out images, their page, and volumes of new images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from segcal.data.folders.writer import write_folder
from segcal.evaluation.decisions import decide
from segcal.report.sections.tables import decisions_content
from segcal.types import Case
from support.commands import refuse, succeed
from support.scenes import simulated


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with eleven held-out cases, a calibrator, rules and their page."""
    folder = tmp_path_factory.mktemp("home")
    cases = simulated(13, num_classes=3, size=(20, 18), contrast=2.0)
    write_folder(folder / "data", {"fit": cases[:2], "test": cases[2:]}, class_names=("sky", "road", "tree"))
    succeed("fit", folder / "data", "--method", "ts", "--split", "fit", "--out", folder / "ts")
    said = succeed(
        "decide",
        folder / "data",
        "--calibrators",
        folder / "ts",
        "--out",
        folder / "rules",
        "--page",
        folder / "p.html",
    )
    words = " ".join(said.split())
    assert "Thresholds that miss at most 10 % of each class" in words
    assert "sum of probabilities in pixels" in words
    assert f"shown in {folder / 'p.html'}" in said.replace("\n", "")
    return folder


def test_json_holds_every_table(home: Path) -> None:
    found = json.loads(succeed("decide", home / "data", "--calibrators", home / "ts", "--risk", 0.2, "--json"))
    assert {"thresholds", "curves", "selective", "intervals", "volumes", "settings"} == set(found)
    assert found["settings"]["methods"] == ["UC", "TS"]
    rows = [row for row in found["thresholds"] if row["method"] == "TS"]
    assert [row["label"] for row in rows] == ["sky", "road", "tree"]
    assert all(row["threshold"] > 0 and row["images"] == 11 and row["risk"] == 0.2 for row in rows)


def test_volumes_of_new_images_need_no_labels(home: Path, tmp_path: Path) -> None:
    (tmp_path / "new" / "logits").mkdir(parents=True)
    for path in sorted((home / "data" / "logits").iterdir())[:2]:
        (tmp_path / "new" / "logits" / f"={path.name}").write_bytes(path.read_bytes())
    arguments = ("decide", tmp_path / "new", "--rules", home / "rules", "--calibrators", home / "ts")
    said = succeed(*arguments, "--out", tmp_path / "volumes.csv")
    assert "Volumes with 90 % intervals" in " ".join(said.split())
    assert "pixels" in said
    table = pd.read_csv(tmp_path / "volumes.csv")
    assert len(table) == 2 * 3
    assert table["case"].str.startswith("'=").all(), "a name is no formula"
    assert (table["low"] <= table["expected"]).all()
    assert (table["expected"] <= table["high"]).all()
    shown = json.loads(succeed(*arguments, "--json"))["volumes"]
    assert [row["expected"] for row in shown] == pytest.approx(table["expected"].tolist())


def test_page_stands_alone_and_joins_that_of_results(home: Path, tmp_path: Path) -> None:
    page = (home / "p.html").read_text()
    assert '"sections":{"decisions":' in page
    assert "sky" in page
    succeed("evaluate", home / "data", "--out", tmp_path / "results")
    succeed("report", tmp_path / "results", "--decisions", home / "rules", "--out", tmp_path / "whole.html")
    assert '"decisions":{"channels":' in (tmp_path / "whole.html").read_text()


def test_mistakes(home: Path, tmp_path: Path) -> None:
    assert "risk must lie between 0 and 1, got 2.0" in refuse("decide", home / "data", "--risk", 2)
    assert "holds no decisions" in refuse("decide", home / "data", "--rules", home / "ts")
    assert "holds a calibrator, which decisions must not replace" in refuse(
        "decide", home / "data", "--out", home / "ts"
    )
    assert "ends in .html" in refuse("decide", home / "data", "--page", tmp_path / "page.txt")
    wrong = refuse("decide", home / "data", "--rules", home / "rules", "--out", tmp_path / "volumes")
    assert ".csv" in wrong
    both = refuse("decide", home / "data", "--rules", home / "rules", "--page", tmp_path / "page.html")
    assert "leave out --page" in both
    assert not list(tmp_path.iterdir())


def test_the_page_writes_numbers_that_can_be_used() -> None:
    """A threshold just below 1 does not read as 1, and large volumes keep the digits of their intervals."""
    random = np.random.default_rng(0)
    cases = []
    for k in range(6):
        labels = np.zeros((40, 50), np.uint8)
        labels[:4] = 1
        logits = np.stack([np.zeros(labels.shape), random.normal(1, 1, labels.shape) + np.where(labels, 2.0, -14.0)])
        cases.append(Case(f"c{k}", logits.astype(np.float32), labels, spacing=(5.0, 7.0)))
    rules = decide(cases, {"UC": None}, num_classes=2, risk=0.3, level=0.8)
    thresholds, _, volumes = (table["rows"] for table in decisions_content(rules)["tables"])
    assert rules.thresholds["threshold"][0] > 0.99999
    assert thresholds[0][2].startswith("0.99999")
    assert volumes[0][2] == f"{rules.mean_volumes()['expected'][0]:,.0f}"
    assert float(volumes[0][3].replace(",", "")) == 36 * 50 * 35
