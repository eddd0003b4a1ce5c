"""segcal report, figure, evaluate --page and diagnose --maps as users type them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from segcal.data.folders.folder import open_folder
from segcal.evaluation.portraits import load_portraits
from segcal.evaluation.results import Results
from segcal.functional.probability import entropy
from support.commands import refuse, succeed


def test_evaluate_keeps_results_portraits_and_page(made: Path) -> None:
    assert {portrait.why for portrait in load_portraits(made / "results")} == {"worst", "second worst"}
    assert sorted(set(Results.load(made / "results").patch_sizes()["size"])) == [4, 6]


def test_report_makes_the_same_page_from_the_folder_alone(made: Path, tmp_path: Path) -> None:
    told = json.loads(succeed("report", made / "results", "--out", tmp_path / "again.html", "--json"))
    assert told == {"out": str(tmp_path / "again.html"), "bytes": (made / "page.html").stat().st_size}
    assert (tmp_path / "again.html").read_bytes() == (made / "page.html").read_bytes()


def test_reference_test_and_average_are_chosen_once_and_shown_everywhere(made: Path, tmp_path: Path) -> None:
    options = ["--reference", "TS", "--test", "wilcoxon", "--average", "pixels", "--patch-size", 6]
    shown = ["--out", tmp_path / "results", "--page", tmp_path / "page.html"]
    told = succeed("evaluate", made / "data", "--calibrators", made / "ts", *options, *shown)
    words = "paired Wilcoxon over images or groups"
    assert words in " ".join(told.split())
    assert words in " ".join(succeed("table", tmp_path / "results", "--out", tmp_path / "table.md").split())
    assert words in (tmp_path / "table.md").read_text()
    page = (tmp_path / "page.html").read_text()
    assert words in page
    assert '"reference":"TS"' in page
    assert '"average":"pixels"' in page
    assert '"dataset":"data"' in page
    succeed("report", tmp_path / "results", "--average", "images", "--out", tmp_path / "other.html")
    assert '"average":"images"' in (tmp_path / "other.html").read_text()
    assert "got 'patients'" in refuse(
        "report", tmp_path / "results", "--average", "patients", "--out", tmp_path / "x.html"
    )
    assert "got 'LTS'" in refuse("table", tmp_path / "results", "--reference", "LTS")


def test_every_command_takes_the_reference_in_any_case(made: Path, tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "page.html"
    succeed("evaluate", made / "data", "--calibrators", made / "ts", "--reference", "ts", "--out", results)
    assert Results.load(results).presentation.reference == "TS"
    assert "the reference TS is" in " ".join(succeed("table", made / "results", "--reference", "Ts").split())
    succeed("report", made / "results", "--reference", "ts", "--out", page)
    assert '"reference":"TS"' in page.read_text()
    succeed("figure", "reliability", made / "results", "--methods", "ts", "--out", tmp_path / "figure.png")


def test_named_cases_are_portrayed_in_their_order(made: Path, tmp_path: Path) -> None:
    named = ["scene-001", "scene-002"]
    succeed("evaluate", made / "data", "--patch-size", 6, "--cases", *named, "--out", tmp_path / "results")
    assert [portrait.name for portrait in load_portraits(tmp_path / "results")] == named


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("reliability", ["--class", "1", "--methods", "TS", "UC"]),
        ("temperature", ["--case", "scene-002"]),
        ("patch-size", ["--region", "local-max"]),
    ],
)
def test_figures(made: Path, tmp_path: Path, kind: str, options: list[Any]) -> None:
    told = succeed("figure", kind, made / "results", "--out", tmp_path / "figure.png", *options)
    assert "written to" in told
    with Image.open(tmp_path / "figure.png") as picture:
        assert picture.size[0] > 300


def test_mistakes_are_told_before_anything_is_measured_or_written(made: Path, tmp_path: Path) -> None:
    data, results = made / "data", made / "results"
    assert "'nobody'" in refuse("evaluate", data, "--cases", "nobody", "--out", tmp_path / "r")
    assert "is a folder" in refuse("evaluate", data, "--page", tmp_path)
    assert "is missing" in refuse("report", made, "--out", tmp_path / "page.html")
    assert "holds no results" in refuse("report", made / "ts", "--out", tmp_path / "page.html")
    assert "is a folder" in refuse("report", results, "--out", tmp_path)
    assert "one of reliability" in refuse("figure", "pie", results, "--out", tmp_path / "a.pdf")
    assert "ends in .pdf" in refuse("figure", "regions", results, "--out", tmp_path / "a.bmp")
    assert "cannot be written to" in refuse("diagnose", data, "--maps", data)
    assert list(tmp_path.iterdir()) == []


def test_maps_of_overconfidence(made: Path, tmp_path: Path) -> None:
    succeed("diagnose", made / "data", "--split", "test", "--maps", tmp_path / "maps")
    for case in open_folder(made / "data", split="test"):
        found = np.load(tmp_path / "maps" / f"{case.name}.npy")
        logits, labels = (np.array(array) for array in (case.logits, case.labels))
        z, y = torch.from_numpy(logits)[None].double(), torch.from_numpy(labels)[None].long()
        expected = (torch.nn.functional.cross_entropy(z, y, reduction="none") - entropy(z))[0].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)
        picture = np.asarray(Image.open(tmp_path / "maps" / f"{case.name}.png")).astype(int)
        over, under = expected > 0.1, expected < -0.1
        assert (picture[over][:, 0] > picture[over][:, 2]).all()  # orange
        assert (picture[under][:, 2] > picture[under][:, 0]).all()  # blue
    assert (tmp_path / "maps" / "segcal.json").exists()
