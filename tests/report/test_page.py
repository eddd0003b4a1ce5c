"""The page's content: words and numbers that are those of the results, and text that cannot break out."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from segcal import InputError, Results, create, evaluate
from segcal.evaluation.limits import LEVELS
from segcal.evaluation.portraits import make_portraits, save_portraits
from segcal.evaluation.recommendation import recommend
from segcal.report import page_content, render, write_page, write_page_of_folder
from segcal.report.sections import SECTIONS
from segcal.report.sections.fits import choices, influences
from segcal.report.view import View, short
from segcal.tables import Presentation
from segcal.tables.numbers import number
from support.scenes import simulated

EVIL = "</script><img src=x onerror=alert(1)>&amp;\u2028$style"


@pytest.fixture(scope="module")
def found() -> tuple[Results, Any, Any]:
    cases = simulated(4, num_classes=3, size=(24, 30), temperatures=(0.5, 4.0), contrast=3.0)
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
        assert content["averages"]["pixels"][method]["all"]["ece"][:3] == pytest.approx(
            [row.value, row.low, row.high], rel=1e-4
        )
        curve = curves[(curves.method == method) & (curves.region == "all") & (curves.label == "2")]
        shown = content["curves"][method]["all"]["2"]
        assert [bin_[0] for bin_ in shown] == curve["count"].tolist()
        assert [bin_[2] for bin_ in shown] == pytest.approx(curve["confidence"].tolist(), abs=0.01)
    sizes = results.patch_sizes()
    mean = sizes[
        (sizes.method == "TS") & (sizes["size"] == 5) & (sizes.region == "local-avg") & (sizes.metric == "sce")
    ]
    assert content["sections"]["sizes"]["local-avg"]["sce"]["TS"][0] == [
        5,
        pytest.approx(mean["value"].mean(), rel=1e-4),
    ]
    assert [size for size, _ in content["sections"]["sizes"]["local-avg"]["sce"]["TS"]] == [5, 10]


def test_the_floor_is_averaged_as_the_values_above_it(found: tuple[Results, Any, Any]) -> None:
    """Local-Avg over patches: images in which patches were skipped count less, as in the table of the terminal."""
    results, cases, _ = found
    cases = [replace(case, labels=np.asarray(case.labels).copy()) for case in cases]
    cases[0].labels[:, :20] = 255
    results = evaluate(
        cases, {"UC": None}, num_classes=3, ignore_index=255, patch_size=6, patches=8, repetitions=5, floor=True
    )
    assert results.skipped()["patches"], "the averages are the same if no patch is skipped"
    shown = page_content(results)["averages"]["images"]["UC"]
    printed = results.table(floor=True).floors
    for region in ("all", "local-avg", "local-max"):
        assert number("ece", shown[region]["ece"][4]) == number("ece", printed["UC", "ece", region].mean)


def test_own_masks_are_in_the_table(found: tuple[Results, Any, Any]) -> None:
    _, cases, methods = found
    results = evaluate(cases, methods, num_classes=3, repetitions=5, regions={"sun": lambda case, labels: labels == 1})
    frame = results.to_frame()
    rows = frame[(frame.method == "TS") & (frame.region == "sun") & (frame.metric == "ece")]["value"]
    mean, _, _, std, _, best, beaten = page_content(results)["averages"]["images"]["TS"]["sun"]["ece"]
    assert (mean, std) == pytest.approx((rows.mean(), rows.std(ddof=0)), rel=1e-4)
    cell = results.table().cells[("TS", "ece", "sun")]
    assert (best, beaten) == (cell.best, cell.beaten)


def test_worst_patches_come_first(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    patches = results.patches()
    uc = patches[(patches.method == "UC") & (patches.metric == "ece")].sort_values("value", ascending=False)
    shown = page_content(results)["sections"]["worst"]["patches"]
    assert [(row["name"], row["patch"]) for row in shown] == list(zip(uc["case"], uc["patch"], strict=True))
    assert [row["values"][0] for row in shown] == pytest.approx(uc["value"].tolist(), rel=1e-4)


def test_the_page_holds_its_text_and_its_own_script_only(found: tuple[Results, Any, Any], tmp_path: Path) -> None:
    results, cases, methods = found
    write_page(results, tmp_path / "page.html", make_portraits(cases, methods, results))
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
    portraits = make_portraits(cases, methods, results)
    shown = page_content(results, portraits)["sections"]["cases"]["portraits"]
    for portrait, entry in zip(portraits, shown, strict=True):
        for layer, picture in zip(portrait.layers, entry["layers"], strict=True):
            opened = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["src"].partition(",")[2]))))
            stacked = layer.values
            if layer.kind == "image":
                assert np.abs(opened.astype(float) - stacked).mean() < 4
            else:
                assert (opened == stacked).all()


def test_a_folder_is_enough(found: tuple[Results, Any, Any], tmp_path: Path) -> None:
    results, cases, methods = found
    portraits = make_portraits(cases, methods, results)
    results.save(tmp_path / "results")
    save_portraits(portraits, tmp_path / "results")
    write_page_of_folder(tmp_path / "results", tmp_path / "page.html")
    told = embedded((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert told == json.loads(json.dumps(page_content(results, portraits)))


def test_results_of_what_is_always_measured_have_a_page_too(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    settings = {key: results.settings[key] for key in ("methods", "num_classes", "warnings")}
    content = embedded(render(page_content(replace(results, size_frame=None, redrawn=None, settings=settings))))
    assert content["floor"] is False
    assert not {"sizes", "cases", "limits"} & set(content["sections"])
    assert content["classes"] == ["0", "1", "2"]


def test_the_choice_of_reference_test_and_average_is_shown(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    for shown in (Presentation(), Presentation("TS", "wilcoxon", "pixels"), Presentation("UC")):
        content = page_content(results.presented(shown, dataset="street"))
        assert content["presentation"]["reference"] == shown.reference
        assert content["presentation"]["average"] == shown.average
        assert content["presentation"]["test"] == shown.test_sentence()
        cells = results.table(shown.reference, test=shown.test).cells
        for method in results.methods:
            entry = content["averages"]["images"][method]["all"]["ece"]
            assert entry[5:] == [cells[(method, "ece", "all")].best, cells[(method, "ece", "all")].beaten]
        summary = content["sections"]["summary"]
        assert summary["dataset"] == "street"
        assert results.settings["date"] in summary["facts"]
        assert f"segcal {results.settings['segcal']}" in summary["facts"]
        value = content["averages"][shown.average]["TS"]["all"]["ece"][0]
        own = results.table(average=shown.average).cells[("TS", "ece", "all")]
        assert number("ece", value) == number("ece", own.mean)


def test_page_and_table_have_the_same_numbers(
    found: tuple[Results, Any, Any],
) -> None:
    results, _, _ = found
    for average in ("images", "pixels"):
        shown = results.presented(Presentation(average=average))
        sentence = page_content(shown)["sections"]["summary"]["more"][0]
        cell = shown.table().cells[("UC", "ece", "all")]
        assert f"{number('ece', cell.mean)}\u00a0%" in sentence
        assert ("mean over 4 images" if average == "images" else "all pixels of 4 images") in sentence


def test_limits_are_shown_where_there_are_any(found: tuple[Results, Any, Any]) -> None:
    results, _, _ = found
    rows = [(level, metric, 0.5) for level in LEVELS for metric in ("nll", "ece")]
    limited = replace(results, limits_frame=pd.DataFrame(rows, columns=["level", "metric", "value"]))
    levels, scores = page_content(limited)["sections"]["limits"]
    assert [row[1:3] for row in levels["rows"]] == [("50.00", "0.5000")] * len(LEVELS)
    means = results.summary().query("method == 'TS' and region == 'all'").set_index("metric")["mean"]
    assert scores["rows"][1] == ("TS", number("ece", means["ece"]), number("nll", means["nll"]))


def test_segmentation_is_shown_as_the_terminal_shows_it() -> None:
    """Both 95 % distances and the background that is left out are named; structures are those of the first method."""
    cases = simulated(2, num_classes=3, size=(24, 20))
    settings = {"num_classes": 3, "background": 0, "class_names": ["ground", "a", "b"], "repetitions": 5}
    results = evaluate(cases, {"UC": None}, surfaces=True, **settings)
    methods, structures = page_content(results)["sections"]["surfaces"]
    assert "without the background 'ground'" in methods["title"]
    assert "95MD: 95 % of the distances of both directions together; HD95: of the larger direction" in methods["note"]
    assert [row[0] for row in structures["rows"]] == ["a", "b"]
    dice = results.surfaces().query("label == 'b' and metric == 'dice'")["value"]
    assert structures["rows"][1][1] == f"{number('dice', dice.mean())}({number('dice', dice.std(ddof=0))})"


def test_every_section_has_its_script() -> None:
    folder = Path(render.__code__.co_filename).parent / "sections"
    for name in SECTIONS:
        assert f"addSection('{name}'" in (folder / f"{name}.js").read_text(encoding="utf-8")
    assert {path.stem for path in folder.glob("*.js")} == set(SECTIONS)


def test_folders_that_hold_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is missing"):
        write_page_of_folder(tmp_path, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_the_page_round_to_those_of_the_terminal() -> None:
    value = 0.475451  # with five digits 0.47545, of which four decimals are 0.4754 in binary
    assert f"{short(value):.4f}" == f"{value:.4f}" == "0.4755"
    assert short(float("nan")) is None


@pytest.mark.parametrize("background", [None, 0])
def test_notes_say_whether_all_leaves_out_a_background(found: tuple[Results, Any, Any], background: int | None) -> None:
    """Without a background All holds every labelled pixel, in the table as on the page."""
    _, cases, methods = found
    results = evaluate(cases, methods, num_classes=3, background=background, patches=0, repetitions=5)
    (shown,) = [text for text in page_content(results)["sections"]["summary"]["regions"] if text.startswith("All")]
    held = "every labelled pixel" if background is None else "labelled pixels outside the background, and Boundary"
    assert shown == f"All: {held}"
    assert shown in " ".join(str(results.table()).split())


def test_the_summary_ends_in_the_recommendation_and_its_command(found: tuple[Results, Any, Any]) -> None:
    results, cases, methods = found
    content, advice = page_content(results), recommend(results)
    summary = content["sections"]["summary"]
    assert content["recommended"] == advice.method == "TS"
    assert " ".join(summary["advice"]["sentences"]) == str(advice)
    assert summary["advice"]["command"].startswith("segcal fit DATA --method ts --out ts/ && segcal apply ts/")
    options: dict[str, Any] = {"num_classes": 3, "patches": 0, "repetitions": 20}
    named = evaluate(cases, {"UC": None, "mine": methods["TS"]}, background=0, **options)
    assert page_content(named)["sections"]["summary"]["advice"]["command"] is None  # no method of ours has this name
    alone = evaluate(cases, {"UC": None}, **options)
    assert page_content(alone)["sections"]["summary"]["advice"] is None


# --------------------------------------------------------------------------------------------------------------------
# what fits say of themselves

DETAILS: dict[str, Any] = {
    "features": ["entropy", "margin", "border share"],
    "coefficients": [0.2, -0.3, 0.0],
    "coefficient_intervals": [[0.1, 0.3], [-0.5, -0.1], [-0.1, 0.1]],
    "class_offsets": [0.0, 0.5],
    "class_offset_intervals": [[-0.1, 0.1], [0.4, 0.6]],
    "words": ["More entropy raises the temperature."],
}
SCORES = {
    "ts": {"nll": 0.51234567, "error": 0.02, "difference": 0.0, "difference_error": 0.0},
    "lts": {"nll": None, "error": None, "difference": None, "difference_error": None},
}
CHOICE = {
    "chosen": "cts",
    "why": "it is better",
    "groups": 5,
    "scores": {name: {**score, "seconds": 1.5, "numbers": 3, "note": None} for name, score in SCORES.items()},
    "chosen_details": DETAILS,
}


def explained_results(**details: Any) -> Results:
    """Measured with TS under these names, whose reports say what they never found."""
    cases = simulated(2, num_classes=2, size=(16, 16))
    fitted = {name: create("ts", 2).fit(cases) for name in details}
    for name, own in details.items():
        fitted[name].fit_report_ = replace(fitted[name].fit_report_, details=own)
    options: dict[str, Any] = {"repetitions": 5, "patch_size": 8, "class_names": ("sky", "tree")}
    return evaluate(cases, {"UC": None, **fitted}, num_classes=2, **options)


def test_factors_are_exponentials_and_the_largest_comes_first() -> None:
    (found,) = influences(View(explained_results(CTS=DETAILS)))
    assert (found["method"], found["words"]) == ("CTS", DETAILS["words"])
    assert [row["name"] for row in found["features"]] == ["entropy", "border share", "margin"]
    first = found["features"][0]
    assert [first[key] for key in ("value", "low", "high")] == pytest.approx(
        [math.exp(0.2), math.exp(0.1), math.exp(0.3)], rel=1e-4
    )
    assert {row["name"]: row["value"] for row in found["classes"]} == pytest.approx({"tree": math.exp(0.5), "sky": 1})


def test_what_was_not_learned_is_not_shown() -> None:
    classwise = {**DETAILS, "features": [], "coefficients": [], "coefficient_intervals": []}
    plain = {**DETAILS, "class_offsets": [0.0, 0.0], "coefficient_intervals": None, "words": ["class 1, class 2: more"]}
    unseen = {**DETAILS, "class_shares": [0.0, 1.0]}
    results = explained_results(CLASSES=classwise, FEATURES=plain, UNSEEN=unseen, TS={"temperature": 2.0})
    one, other, last = influences(View(results))
    assert (one["features"], len(one["classes"])) == ([], 2)
    assert (len(other["features"]), other["classes"]) == (3, [])
    assert {row["low"] for row in other["features"]} == {None}
    assert other["words"] == ["'tree', class 2: more"]
    assert [row["name"] for row in last["classes"]] == ["tree"]
    assert choices(View(results)) is None


def test_the_choice_and_what_it_took_are_shown_from_a_folder_too(tmp_path: Path) -> None:
    results = explained_results(AUTO=CHOICE)
    results.save(tmp_path / "results")
    for found in (results, Results.load(tmp_path / "results")):
        content = page_content(found)["sections"]
        (choice,) = content["choice"]
        assert (choice["method"], choice["chosen"], choice["why"]) == ("AUTO", "cts", "it is better")
        assert [(row["name"], row["nll"], row["numbers"]) for row in choice["rows"]] == [
            ("ts", 0.51234567, 3),
            ("lts", None, 3),
        ]
        assert [part["method"] for part in content["influence"]] == ["AUTO"]


def test_results_without_reports_have_nothing_to_explain() -> None:
    results = explained_results(TS={"temperature": 2.0})
    older = replace(results, settings={k: v for k, v in results.settings.items() if k != "fits"})
    for found in (results, older):
        assert not {"choice", "influence"} & set(page_content(found)["sections"])
