"""The page's content: words and numbers that are those of the results, and text that cannot break out."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from segcal import InputError, Results, create, evaluate
from segcal.data.datasets.simulate import simulate
from segcal.evaluation.portraits import portray, save_portraits
from segcal.report import render, write_page, write_page_of_folder
from segcal.report.content import page_content
from segcal.report.words import best_method, headline

EVIL = "</script><img src=x onerror=alert(1)>&amp;\u2028$style"


@pytest.fixture(scope="module")
def found() -> tuple[Results, Any, Any]:
    cases = [scene.case for scene in simulate(4, num_classes=3, size=(24, 30), temperatures=(0.5, 4.0), contrast=3.0)]
    cases[1] = replace(cases[1], name=EVIL)
    methods = {"UC": None, "TS": create("ts", num_classes=3).fit(cases)}
    results = evaluate(cases, methods, num_classes=3, patch_size=10, patches=3, patch_sizes=(5, 10), floor=True)
    return results, cases, methods


def embedded(page: str) -> Any:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text, parse_constant=pytest.fail)


def test_numbers_are_those_of_the_results(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    content = page_content(results)
    frame, pooled, curves = results.to_frame(), results.pooled(), results.curves()
    for method in results.methods:
        rows = frame[(frame.method == method) & (frame.region == "boundary") & (frame.metric == "mce")]
        assert content["values"][method]["boundary"]["mce"] == pytest.approx(rows["value"].tolist(), rel=1e-4)
        row = pooled[(pooled.method == method) & (pooled.region == "all") & (pooled.metric == "ece")].iloc[0]
        assert content["pooled"][method]["all"]["ece"] == pytest.approx([row.value, row.low, row.high], rel=1e-4)
        curve = curves[(curves.method == method) & (curves.region == "all") & (curves.label == "2")]
        shown = content["curves"][method]["all"]["2"]
        assert [bin_[0] for bin_ in shown] == curve["count"].tolist()
        assert [bin_[2] for bin_ in shown] == pytest.approx(curve["confidence"].tolist(), abs=0.01)
    sizes = results.patch_sizes()
    mean = sizes[
        (sizes.method == "TS") & (sizes["size"] == 5) & (sizes.region == "local-avg") & (sizes.metric == "sce")
    ]
    assert content["sizes"]["local-avg"]["sce"]["TS"][0] == [5, pytest.approx(mean["value"].mean(), rel=1e-4)]
    assert [size for size, _ in content["sizes"]["local-avg"]["sce"]["TS"]] == [5, 10]
    floor = results.floor()
    rows = floor[(floor.method == "TS") & (floor.region == "all") & (floor.metric == "ece")]
    assert content["floor"]["TS"]["all"]["ece"] == pytest.approx(rows["value"].tolist(), rel=1e-4)


def test_own_masks_are_in_the_table(found: tuple[Results, Any, Any]) -> None:
    _, cases, methods = found
    results = evaluate(cases, methods, num_classes=3, repetitions=5, regions={"sun": lambda case, labels: labels == 1})
    frame = results.to_frame()
    rows = frame[(frame.method == "TS") & (frame.region == "sun") & (frame.metric == "ece")]["value"]
    mean, std, best, beaten = page_content(results)["table"]["TS"]["sun"]["ece"]
    assert (mean, std) == pytest.approx((rows.mean(), rows.std(ddof=0)), rel=1e-4)
    cell = results.table(reference=page_content(results)["best"], test="wilcoxon").cells[("TS", "ece", "sun")]
    assert (best, beaten) == (cell.best, cell.beaten)


def test_worst_patches_come_first(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    patches = results.patches()
    uc = patches[(patches.method == "UC") & (patches.metric == "ece")].sort_values("value", ascending=False)
    shown = page_content(results)["patches"]
    assert [(row["case"], row["patch"]) for row in shown] == list(zip(uc["case"], uc["patch"], strict=True))
    assert [row["values"][0] for row in shown] == pytest.approx(uc["value"].tolist(), rel=1e-4)


def test_the_page_holds_its_text_and_its_own_script_only(found: tuple[Results, Any, Any], tmp_path: Path) -> None:
    results, cases, methods = found
    write_page(results, tmp_path / "page.html", portray(cases, methods, results))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert page.count("</script>") == 2
    content = embedded(page)
    assert EVIL in content["cases"]
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "http://" not in script.replace("http://www.w3.org/2000/svg", "")
    assert "innerHTML" not in script
    for pattern in (r"<link[^>]+href=(?!\"data:)", r"@import", r"url\(", r"<script[^>]+src"):
        assert not re.search(pattern, page)


def test_pictures_come_back_byte_for_byte(found: tuple[Results, Any, Any]) -> None:
    results, cases, methods = found
    portraits = portray(cases, methods, results)
    shown = page_content(results, portraits)["portraits"]
    for portrait, entry in zip(portraits, shown, strict=True):
        for layer, picture in zip(portrait.layers, entry["layers"], strict=True):
            opened = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["src"].partition(",")[2]))))
            stacked = layer.values.reshape(-1, *layer.values.shape[2:])
            if layer.kind == "image":
                assert np.abs(opened.astype(float) - stacked).mean() < 4
            else:
                assert (opened == stacked).all()


def test_a_folder_is_enough(found: tuple[Results, Any, Any], tmp_path: Path) -> None:
    results, cases, methods = found
    portraits = portray(cases, methods, results)
    results.save(tmp_path / "results")
    save_portraits(portraits, tmp_path / "results")
    write_page_of_folder(tmp_path / "results", tmp_path / "page.html")
    told = embedded((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert told == json.loads(json.dumps(page_content(results, portraits)))


def test_results_without_later_tables_have_a_page_too(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    old = replace(
        results,
        curve_frame=None,
        sensitivity_frame=None,
        volume_frame=None,
        case_frame=None,
        size_frame=None,
        redrawn=None,
        settings={key: results.settings[key] for key in ("methods", "num_classes", "warnings")},
    )
    content = embedded(render(page_content(old)))
    assert (content["curves"], content["sizes"], content["volumes"], content["floor"]) == ({}, None, None, None)
    assert content["classes"] == ["0", "1", "2"]


def with_curve(results: Results, bins: list[tuple[int, int, float]], ece: tuple[float, float] = (0.1, 0.02)) -> Results:
    """Results whose baseline has this reliability diagram, and whose methods have these pooled errors."""
    curve = pd.DataFrame(bins, columns=["count", "hit", "confidence"]).assign(method="UC", region="all", label="")
    rows = [
        (method, "all", "ece", value, value - 0.01, value + 0.01, 4, 100)
        for method, value in zip(("UC", "TS"), ece, strict=True)
    ]
    columns = ["method", "region", "metric", "value", "low", "high", "images", "pixels"]
    pooled = pd.DataFrame(rows, columns=columns)
    return replace(results, curve_frame=curve, pooled_frame=pooled, redrawn=None)


def test_the_headline_in_words(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    over = with_curve(results, [(100, 81, 90.0), (0, 0, 0.0), (10, 5, 5.0)])
    assert headline(over)[0] == "The network is overconfident: where it says 0.90 it is right 0.81 of the time."
    first, gain, local = headline(over)
    assert gain.startswith("TS cuts its ECE in All from 10.0\u00a0% [9.0, 11.0] to 2.0\u00a0% [1.0, 3.0], ")
    assert "worst patch" in local
    under = with_curve(results, [(100, 95, 60.0)])
    assert headline(under)[0] == "The network is underconfident: where it says 0.60 it is right 0.95 of the time."
    balanced = with_curve(results, [(100, 40, 50.0), (100, 90, 80.0)], ece=(0.05, 0.06))
    first, gain, local = headline(balanced)
    assert first.startswith("The network is balanced on the whole, but where it says 0.50 it is right 0.40")
    assert gain == "No method here betters its ECE in All, 5.0\u00a0% [4.0, 6.0]."
    assert (best_method(over), best_method(balanced)) == ("TS", "UC")
    assert local.endswith("on average.")


def test_significance_is_that_of_the_table(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    told = " ".join(headline(results))
    sure = results.table(reference="TS", test="wilcoxon").cells[("UC", "ece", "all")].beaten
    assert ("not significantly" in told) is not sure
    assert "If the probabilities of TS were exactly right" in told


def test_folders_that_hold_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is missing"):
        write_page_of_folder(tmp_path, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
