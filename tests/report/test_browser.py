"""The page in a real browser, opened from a file: quiet, offline, and every control does what it says."""

from __future__ import annotations

import copy
import csv
import importlib.util
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from segcal import Case, create, evaluate
from segcal.calibrators import Calibrator
from segcal.data.sample.scenes import simulate
from segcal.evaluation.decisions import decide
from segcal.evaluation.portraits import make_portraits
from segcal.report import write_decisions_page, write_page
from support.fits import pool_of_passes
from support.scenes import several_passes, simulated

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
EVIL_CASE = "<img src=x onerror=alert(1)>"
EVIL_CLASS = "</script><script>alert(2)</script>"
EVIL_METHOD = "<b onmouseover=alert(3)>TS</b>"

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("playwright"), reason="no playwright: make test-browser"),
    pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install chromium"),
]


class Opened(NamedTuple):
    """A page whose sections are unfolded, and how many were folded."""

    page: Any
    folded: int


@contextmanager
def opening(browser: Any, path: Path, width: int = 1200, scheme: Any = "light") -> Iterator[Any]:
    """A page that must not fail, ask, or fetch anything."""
    size = {"width": width, "height": 900}
    page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    wrong: list[str] = []
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("data:", path.as_uri())) or wrong.append(request.url))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    yield page
    assert wrong == []
    page.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of some images with names that try to break out of it, of some volumes, and of fits that explain."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for kind, size in (("images", (40, 48)), ("volumes", (12, 20, 24))):
        cases = simulated(4, num_classes=3, size=size, temperatures=(0.5, 4.0), contrast=3.0)
        if kind == "volumes":
            cases[1:] = [replace(case, orientation="SPL", spacing=(40.0, 1.0, 1.0)) for case in cases[1:]]
        cases[0] = replace(cases[0], name=EVIL_CASE)
        methods = {"UC": None, EVIL_METHOD: create("ts", num_classes=3).fit(cases)}
        names = ("sky", EVIL_CLASS, "<i>&amp;</i>")
        options = {"patch_size": 12, "patches": 4, "patch_sizes": (6, 12), "class_names": names, "floor": True}
        results = evaluate(cases, methods, num_classes=3, repetitions=20, **options)
        made[kind] = folder / f"{kind}.html"
        named = [EVIL_CASE, "scene-001"] if kind == "images" else ()
        write_page(results, made[kind], make_portraits(cases, methods, results, named))
    names = ("sky", EVIL_CLASS, "water")
    explained = explaining(methods[EVIL_METHOD])
    results = evaluate(cases, {"UC": None, "AUTO": explained}, num_classes=3, repetitions=5, class_names=names)
    made["explained"] = folder / "explained.html"
    write_page(results, made["explained"], make_portraits(cases, {"UC": None, "AUTO": explained}, results))
    made["channels"] = folder / "channels.html"
    write_channels(made["channels"])
    made["passes"] = folder / "passes.html"
    write_passes(made["passes"])
    return made


def write_passes(path: Path) -> None:
    """The page of cases with two further passes, which a method uses."""
    cases, methods = several_passes(6), {"UC": None, "POOL": pool_of_passes()}
    results = evaluate(cases, methods, num_classes=3, repetitions=5, patch_size=8, patches=2)
    write_page(results, path, make_portraits(cases, methods, results, ["case 0"]))


def write_channels(path: Path) -> None:
    """The page of a sigmoid head with two channels, of which one has an evil name."""
    scenes = simulate(2, num_classes=2, size=(20, 24), contrast=3.0)
    cases = [replace(s.case, labels=np.stack([s.case.labels, 1 - s.case.labels])) for s in scenes]
    methods = {"UC": None, "TS": create("ts", 2, activation="sigmoid").fit(cases)}
    options: dict[str, Any] = {"class_names": ["whole", EVIL_CLASS], "repetitions": 5, "patch_size": 8, "patches": 2}
    results = evaluate(cases, methods, num_classes=2, activation="sigmoid", **options)
    write_page(results, path, make_portraits(cases, methods, results, ["scene-000"]))


def explaining(fitted: Calibrator) -> Calibrator:
    """The calibrator with the report of a choice that took features and classes."""
    none = dict.fromkeys(("nll", "error", "difference", "difference_error"))
    scores = {
        "ts": {"nll": 0.5, "error": 0.02, "difference": 0.0, "difference_error": 0.0, "note": None},
        "cts": {"nll": 0.4, "error": 0.02, "difference": -0.1, "difference_error": 0.01, "note": None},
        "lts": {**none, "note": "given up"},
    }
    own = {
        "features": ["entropy", "margin", EVIL_CLASS],
        "coefficients": [0.2, -0.3, 0.0],
        "coefficient_intervals": [[0.1, 0.3], [-0.5, -0.1], [-0.1, 0.1]],
        "class_offsets": [0.0, 0.5, -0.1],
        "class_offset_intervals": [[-0.1, 0.1], [0.4, 0.6], [-0.2, -0.05]],
        "words": ["More entropy raises the temperature.", EVIL_METHOD],
    }
    told = {name: {**score, "seconds": 1.5, "numbers": 3} for name, score in scores.items()}
    details = {"chosen": "cts", "why": "it is better", "groups": 4, "scores": told, "chosen_details": own}
    explained = copy.deepcopy(fitted)
    explained.fit_report_ = replace(fitted.fit_report_, details=details)
    return explained


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, written: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opening(browser, written[getattr(request, "param", "images")]) as page:
        page.wait_for_selector("#cases canvas", state="attached")
        folded = page.locator("details.folded:not([open])").count()
        page.evaluate("document.querySelectorAll('details.folded').forEach(one => { one.open = true; })")
        yield Opened(page, folded)


def column(page: Any, place: str, number: int) -> list[float]:
    """The numbers that the cells of a column begin with."""
    cells = page.locator(f"{place} tbody tr:not(.floor) td:nth-child({number})").all_inner_texts()
    return [float(re.match(r"[\d.]+", text).group()) for text in cells]


def point_at(page: Any, place: Any) -> None:
    place.scroll_into_view_if_needed()
    page.wait_for_timeout(100)  # the page hides what it tells when it is scrolled
    place.hover()


@pytest.mark.parametrize("opened", ["images", "volumes"], indirect=True)
def test_the_whole_page_is_there_and_nothing_is_fetched(opened: Opened) -> None:
    sections = opened.page.locator("main > section").evaluate_all("all => all.map(one => one.id)")
    expected = ["summary", "table", "reliability", "cases", "variation", "worst", "sizes", "likelihood", "trust", "how"]
    assert sections == expected
    assert opened.page.locator("h1").inner_text().startswith("The network is")
    assert opened.page.locator("#nav a").count() == len(sections)
    assert opened.folded == len(sections) - 3
    assert opened.page.locator(".reliability").count() >= 2 * (1 + 4)  # for each method: all images, a case, 3 patches


@pytest.mark.parametrize("opened", ["channels"], indirect=True)
def test_channels_are_shown_one_by_one(opened: Opened) -> None:
    page = opened.page
    rows = page.locator("#channels tbody tr")
    assert [text.split("\t")[0] for text in rows.all_inner_texts()] == ["whole", EVIL_CLASS, "mean"]
    page.locator("#channels").get_by_role("button", name="NLL").click()
    values = [
        [float(re.match(r"[\d.]+", cell).group()) for cell in row.split("\t")[1:]] for row in rows.all_inner_texts()
    ]
    assert values[2] == pytest.approx([(a + b) / 2 for a, b in zip(*values[:2], strict=True)], abs=2e-4)
    chips = page.locator("#cases .chips button").all_inner_texts()
    assert [chip.splitlines()[0] for chip in chips] == ["scene-000, whole", f"scene-000, {EVIL_CLASS}"]
    assert page.locator("#cases .legend").first.inner_text().splitlines() == ["not whole", "whole"]
    assert "By channel" in page.locator("#classes h3").inner_text()


@pytest.mark.parametrize("opened", ["explained"], indirect=True)
def test_a_fit_explains_itself(opened: Opened) -> None:
    page = opened.page
    choice, influence = page.locator("#choice"), page.locator("#influence")
    assert "it is better." in choice.inner_text()
    assert "lts: given up." in choice.inner_text()
    assert choice.locator("td.best").inner_text() == "cts"
    assert choice.locator("tbody tr").nth(1).inner_text().split("\t")[2].startswith("\u22120.1000")
    assert "More entropy raises the temperature." in influence.inner_text()
    assert influence.locator("svg[role=img]").count() == 2
    names = influence.locator("svg[role=img]").first.locator(".column text:first-of-type").all_text_contents()
    assert names[::2] == ["entropy", "margin"]  # from the largest factor to the least
    middle, grey = influence.locator("svg[role=img]").first.locator(".column circle").nth(1), "var(--faint)"
    assert middle.get_attribute("fill") == grey  # its interval holds 1
    point_at(page, influence.locator("svg[role=img]").nth(1).locator(".column").first)
    told = page.locator("#tip").inner_text()
    assert EVIL_CLASS in told
    assert "\u00d71.649" in told


def test_no_name_becomes_markup(opened: Opened) -> None:
    page = opened.page
    assert page.locator("main img, main b[onmouseover], main i").count() == 0
    assert page.locator("script").count() == 2
    assert page.get_by_role("button", name=EVIL_CASE).first.is_visible()
    assert EVIL_CLASS in page.locator("#classes").inner_text()
    assert EVIL_METHOD in page.locator("#table").inner_text()
    page.locator("#reliability select").select_option(EVIL_CLASS)
    for text in page.get_by_text(EVIL_METHOD).all():
        if text.is_visible():
            text.hover(timeout=2000)
    page.locator("#reliability .column").last.hover()


def test_tables_sort_both_ways(opened: Opened) -> None:
    page = opened.page
    head = page.locator("#worst table").first.locator("th").nth(1)
    before = column(page, "#worst .folded > .card", 2)
    assert before == sorted(before, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, "#worst .folded > .card", 2) == sorted(before)
    page.locator("#table th").nth(2).get_by_role("button").click()
    values = column(page, "#table > .card", 3)
    assert values == sorted(values)
    assert page.locator("#table > .card tr.floor").count() == 1


def test_metric_region_and_class_can_be_chosen(opened: Opened) -> None:
    page = opened.page
    assert "MCE" not in page.locator("#table > .card th").nth(1).inner_text()
    page.locator("#table").get_by_role("button", name="MCE").click()
    assert "MCE" in page.locator("#table > .card th").nth(1).inner_text()
    page.locator("#table").get_by_role("button", name="pixels", exact=True).click()
    assert "[" in page.locator("#table > .card td").nth(1).inner_text()
    whole = page.locator("#reliability h4").first.inner_text()
    assert "floor" in page.locator("#reliability .diagram").first.inner_text()
    page.locator("#reliability").get_by_role("button", name="Boundary").click()
    near = page.locator("#reliability h4").first.inner_text()
    page.locator("#reliability select").select_option("sky")
    assert len({whole, near, page.locator("#reliability h4").first.inner_text()}) == 3


def test_values_are_told_to_mouse_and_keyboard(opened: Opened) -> None:
    page, tip = opened.page, opened.page.locator("#tip")
    assert not tip.is_visible()
    point_at(page, page.locator("#reliability .column").last)
    assert tip.is_visible()
    told = tip.inner_text()
    assert "mean confidence" in told
    assert "95 % interval" in told
    page.mouse.move(2, 2)
    assert not tip.is_visible()
    page.locator("#reliability select").focus()
    page.keyboard.press("Tab")  # the first diagram is the next stop
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() != first
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_pixel_tells_its_value_in_every_map(opened: Opened) -> None:
    page = opened.page
    readouts = page.locator("#cases .maps output")
    assert set(readouts.all_inner_texts()) == {""}
    point_at(page, page.locator("#cases canvas[aria-label=truth]"))
    assert "" not in page.locator("#cases .maps.four output").all_inner_texts()[1:]  # an image has no value to tell
    told = page.locator("#cases .maps.three output").all_inner_texts()
    assert len(told) == 2 * 2 + 1  # confidence and gap of both methods, the temperature of one
    assert all(float(text) for text in told)
    heat = float(told[3])
    assert f"{heat:.2f}" == told[3]
    assert 1.0 < heat < 4.0  # temperature scaling, the same at every pixel, of scenes made with 0.5 to 4


DISAGREEMENT = "#cases canvas[aria-label='disagreement of passes']"


@pytest.mark.parametrize("opened", ["passes"], indirect=True)
def test_disagreement_of_passes_is_shown_in_nats_beside_the_best_temperature(opened: Opened) -> None:
    page = opened.page
    page.wait_for_selector(DISAGREEMENT)
    titles = page.locator("#cases .maps.five figcaption span").all_inner_texts()
    assert titles[2:4] == ["best temperature nearby", "disagreement of passes"]
    shown = page.locator("#cases .maps.five > div").nth(3)
    ends = shown.locator(".ramp span").all_inner_texts()
    assert ends[0] == "0"
    assert re.fullmatch(r"[01]\.\d\d nats", ends[1])
    point_at(page, page.locator(DISAGREEMENT))
    told = shown.locator("output").inner_text()
    assert re.fullmatch(r"[01]\.\d\d nats", told)
    assert 0 <= float(told.split()[0]) <= float(ends[1].split()[0]) <= 1.10  # the logarithm of 3 passes


def test_a_page_without_passes_has_no_map_of_disagreement(opened: Opened) -> None:
    opened.page.wait_for_selector("#cases canvas[aria-label^='best temperature nearby']")
    assert not opened.page.locator(DISAGREEMENT).count()


LOW_CONTRAST = """() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = colour => {
    const [r, g, b] = parse(colour).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = one => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor, parts = parse(colour);
      if (parts.length < 4 || parts[3] === 1) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const words = one => [...one.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
  const shown = [...document.querySelectorAll('main *')].filter(one => words(one) && one.getClientRects().length);
  return shown.filter(one => !one.closest('.frame')).map(one => {
    const style = getComputedStyle(one), colour = one instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(colour), light(ground(one))].sort((x, y) => y - x);
    return [`${one.tagName} ${one.textContent.slice(0, 30)}`, (a + .05) / (b + .05)];
  }).filter(([, ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(browser: Any, written: dict[str, Path], scheme: Any) -> None:
    with opening(browser, written["images"], scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        page.wait_for_selector("#cases canvas")
        assert page.evaluate(LOW_CONTRAST) == []


@pytest.mark.parametrize("opened", ["images", "volumes", "explained", "passes"], indirect=True)
def test_every_figure_has_a_name(opened: Opened) -> None:
    kinds = ("svg:not([aria-hidden])", "canvas:not([aria-hidden])", "table")
    nameless = ", ".join([*(f"main {kind}:not([aria-label])" for kind in kinds), "main [aria-label='']"])
    assert opened.page.locator(nameless).count() == 0
    names = opened.page.locator("#cases canvas[role=img]").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert "confidence, UC" in names


def test_figures_and_tables_can_be_downloaded(opened: Opened) -> None:
    page = opened.page
    chart = page.locator("#reliability .chart").first
    chart.hover()
    with page.expect_download() as download:
        chart.get_by_role("button", name="as SVG").click()
    drawing = Path(download.value.path()).read_text()
    assert download.value.suggested_filename == "uc.svg"
    assert drawing.startswith("<svg")
    assert "var(--" not in drawing  # colours are written out
    with page.expect_download() as download:
        chart.get_by_role("button", name="as CSV").click()
    assert Path(download.value.path()).read_text().splitlines()[0].startswith(",mean confidence,accuracy,")
    table = page.locator("#worst .scroll").first
    table.hover()
    with page.expect_download() as download:
        table.get_by_role("button", name="as CSV").click()
    rows = list(csv.reader(Path(download.value.path()).read_text().splitlines()))
    assert rows[0] == ["Image", "UC", EVIL_METHOD]
    assert {row[0] for row in rows[1:]} == {EVIL_CASE, "scene-001", "scene-002", "scene-003"}
    assert all(0 <= float(row[1]) <= 1 for row in rows[1:])


def test_the_page_opens_with_two_sentences_and_ends_its_summary_in_advice(opened: Opened) -> None:
    page = opened.page
    assert page.locator("#summary .opening > div").first.locator("h1, p").count() == 2
    assert page.locator("#summary .before-after svg[role=img]").count() == 2
    advice = page.locator("#summary > *").last
    assert advice.locator("h3").inner_text() == "Recommendation"


def test_maps_lie_over_the_image(opened: Opened) -> None:
    page = opened.page
    picture = "document.querySelector('#cases canvas[aria-label=\"confidence, UC\"]').toDataURL()"
    image = "document.querySelector('#cases canvas[aria-label=image]').toDataURL()"
    before = page.evaluate(picture)
    slider = page.get_by_label("Opacity of the maps")
    slider.fill("50")
    assert page.evaluate(picture) != before
    slider.fill("0")
    assert page.evaluate(picture) == page.evaluate(image)
    slider.fill("100")
    assert page.evaluate(picture) == before


def test_worst_images_lead_to_their_portraits(opened: Opened) -> None:
    page = opened.page
    chips = page.locator("#cases .chips button")
    assert [chip.get_attribute("aria-pressed") for chip in chips.all()] == ["true", "false"]
    page.locator("#worst .link", has_text="scene-001").first.click()
    assert [chip.get_attribute("aria-pressed") for chip in chips.all()] == ["false", "true"]
    page.wait_for_function("document.querySelector('#cases').getBoundingClientRect().top < 200")


PLANE = "document.querySelector('#cases canvas[aria-label=\"axis %d slice\"]').toDataURL()"


@pytest.mark.parametrize("opened", ["volumes"], indirect=True)
def test_sliders_move_through_slices_along_three_axes(opened: Opened) -> None:
    page = opened.page
    page.locator("#cases .chips button", has_text=EVIL_CASE).click()  # of unknown orientation
    size = page.evaluate("[...document.querySelectorAll('#cases .planes canvas')].map(c => [c.height, c.width])")
    assert size == [[20, 24], [12, 24], [12, 20]]
    labels = page.locator("#cases output.slice")
    assert labels.all_inner_texts() == ["axis 1: 7 of 12", "axis 2: 11 of 20", "axis 3: 13 of 24"]
    for axis in (1, 2, 3):
        slider = page.locator("#cases .planes").get_by_role("slider", name=f"axis {axis} slice")
        before, picture = labels.nth(axis - 1).inner_text(), page.evaluate(PLANE % axis)
        slider.press("ArrowRight")
        assert labels.nth(axis - 1).inner_text() != before
        assert page.evaluate(PLANE % axis) != picture
        slider.press("ArrowLeft")
        assert (labels.nth(axis - 1).inner_text(), page.evaluate(PLANE % axis)) == (before, picture)


@pytest.mark.parametrize("opened", ["volumes"], indirect=True)
def test_a_volume_lies_as_radiologists_read_it(opened: Opened) -> None:
    """Axes count to superior, posterior and left: the first is flipped, the others are not."""
    page = opened.page
    page.locator("#cases .chips button", has_text="scene-").first.click()
    labels = page.locator("#cases output.slice")
    assert labels.all_inner_texts() == ["axial: 7 of 12", "coronal: 11 of 20", "sagittal: 13 of 24"]
    letters = page.locator("#cases .planes .frame").evaluate_all(
        "all => all.map(one => [...one.querySelectorAll('.letter')].map(letter => letter.textContent).join(''))"
    )
    assert letters == ["RLAP", "RLSI", "APSI"]  # left, right, top and bottom of each slice
    coronal = page.locator("#cases .planes canvas").nth(1)
    box = coronal.bounding_box()
    assert 0.3 < box["width"] / box["height"] < 3.1  # however thick the slices are
    heights = page.locator("#cases .planes .letter").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert min(heights) > 8  # pixels on the screen: no letter is squeezed with its slice
    coronal.click(position={"x": 2, "y": 2})
    assert labels.all_inner_texts() == ["axial: 12 of 12", "coronal: 11 of 20", "sagittal: 1 of 24"]
    coronal.focus()
    page.keyboard.press("ArrowDown")
    assert labels.nth(0).inner_text() == "axial: 11 of 12"


@pytest.mark.parametrize("opened", ["volumes"], indirect=True)
def test_keys_and_clicks_move_through_a_volume(opened: Opened) -> None:
    page, labels = opened.page, opened.page.locator("#cases output.slice")
    page.locator("#cases .chips button", has_text=EVIL_CASE).click()  # of unknown orientation
    first = page.locator("#cases .planes canvas").first
    first.focus()
    page.keyboard.press("PageUp")
    assert labels.nth(0).inner_text() == "axis 1: 8 of 12"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert labels.all_inner_texts() == ["axis 1: 8 of 12", "axis 2: 12 of 20", "axis 3: 12 of 24"]
    box = first.bounding_box()
    first.click(position={"x": 2, "y": box["height"] - 2})
    assert labels.all_inner_texts() == ["axis 1: 8 of 12", "axis 2: 20 of 20", "axis 3: 1 of 24"]
    before = page.evaluate(PLANE % 2)
    page.get_by_label("Show").select_option("truth")
    assert page.evaluate(PLANE % 2) != before
    below = "[...document.querySelectorAll('#cases .maps.four canvas')].map(c => [c.height, c.width])[0]"
    assert page.evaluate(below) == [20, 24]
    page.locator("#cases .controls").get_by_role("button", name="axis 3").click()
    assert page.evaluate(below) == [12, 20]


def test_the_menu_of_a_phone_holds_every_section(browser: Any, written: dict[str, Path]) -> None:
    with opening(browser, written["images"], width=400) as page:
        links = page.locator("#nav a")
        assert not links.first.is_visible()
        page.locator("#menu").click()
        for link in links.all():
            box = link.bounding_box()
            assert 0 <= box["x"] < box["x"] + box["width"] <= 400
        links.last.click()
        page.wait_for_function("Math.abs(document.querySelector('#how').getBoundingClientRect().top) < 800")
        assert not links.first.is_visible()


@pytest.mark.parametrize("opened", ["explained"], indirect=True)
def test_the_axis_of_many_factors_stays_in_sight(opened: Opened) -> None:
    page = opened.page
    page.evaluate("document.querySelector('#influence .tall').style.maxHeight = '60px'")
    page.locator("#influence .tall").scroll_into_view_if_needed()
    for at in (0, 1000):
        page.evaluate(f"document.querySelector('#influence .tall').scrollTop = {at}")
        places = ("#influence .tall", "#influence .tall .axisrow")
        inside, axis = (page.locator(place).bounding_box() for place in places)
        assert axis["y"] + axis["height"] <= inside["y"] + inside["height"] + 1
        assert axis["y"] >= inside["y"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_system_and_the_button(browser: Any, written: dict[str, Path], scheme: Any) -> None:
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] < 128 ? 'dark' : 'light'"
    with opening(browser, written["images"], width=400, scheme=scheme) as page:
        assert page.evaluate(shade) == scheme
        page.locator("#theme").click()
        assert page.evaluate(shade) != scheme
        assert page.evaluate("document.documentElement.scrollWidth") == 400  # nothing sticks out on a phone


def test_decisions_on_a_page_of_their_own(browser: Any, tmp_path: Path) -> None:
    """Names are text, numbers those of the tables, and too few images say how many are needed."""
    cases = simulated(11, num_classes=3, size=(16, 18), contrast=2.0)
    methods = {"UC": None, EVIL_METHOD: create("ts", num_classes=3).fit(cases[:2])}
    names = ("sky", EVIL_CLASS, "tree")
    for many in (len(cases), 4):
        rules = decide(cases[:many], methods, num_classes=3, class_names=names)
        write_decisions_page(rules, tmp_path / f"{many}.html")
        with opening(browser, tmp_path / f"{many}.html") as page:
            shown = page.locator("#decisions")
            assert EVIL_CLASS in shown.inner_text()
            assert shown.locator("svg[role=img]").count() == 2
            assert ("needs 9 images" in shown.inner_text()) == (many == 4)
            tables = shown.locator("table")
            assert tables.count() == 3
            assert tables.first.locator("tbody tr").count() == 6
            if many > 4:
                first = float(tables.first.locator("tbody tr td:nth-child(3)").first.inner_text())
                assert first == pytest.approx(rules.thresholds["threshold"][0], rel=1e-2)
                point_at(page, shown.locator("svg[role=img] .column").last)  # the one on top, where methods agree
                assert "kept" in page.locator("#tip").inner_text()


def test_decisions_about_sigmoid_channels(browser: Any, tmp_path: Path) -> None:
    """Each channel has its two curves under its own name."""
    random = np.random.default_rng(0)
    logits = random.normal(scale=3, size=(4, 2, 12, 12)).astype(np.float32)
    masks = (logits + random.logistic(size=logits.shape) > 0).astype(np.uint8)
    cases = [Case(str(k), logits[k], masks[k]) for k in range(4)]
    rules = decide(cases, {"UC": None}, num_classes=2, activation="sigmoid", class_names=("core", EVIL_CLASS))
    write_decisions_page(rules, tmp_path / "page.html")
    with opening(browser, tmp_path / "page.html") as page:
        shown = page.locator("#decisions")
        assert shown.locator("svg[role=img]").count() == 4
        assert shown.locator("table").first.locator("tbody tr").count() == 2
        headings = shown.locator("h3").all_inner_texts()
        assert [text.partition(": ")[0] for text in headings[1:5]] == ["core", "core", EVIL_CLASS, EVIL_CLASS]
