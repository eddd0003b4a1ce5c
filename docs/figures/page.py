"""Draws `page.png`, the picture of the page: `python docs/figures/page.py` (needs playwright and chromium)."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from segcal import create, evaluate, load_sample
from segcal.evaluation.portraits import make_portraits
from segcal.report import write_page
from segcal.tables import Presentation

VIEWS = (("light", "#summary", -64), ("dark", "#cases", -64))
WIDTH, HEIGHT = 1180, 1230


def main() -> None:
    """Evaluate the sample, write its page, and put two screenshots of it side by side."""
    sample = load_sample()
    ts = create("ts", num_classes=5).fit(sample["fit"])
    lts = create("lts", num_classes=5, image_channels=1)
    lts.fit(sample["fit"], validation=sample["validation"], epochs=60, learning_rate=3e-3, flips=True)
    methods = {"UC": None, "TS": ts, "LTS": lts}
    names = ("field", "road", "water", "forest", "town")
    results = evaluate(
        sample["test"],
        methods,
        num_classes=5,
        patch_size=48,
        patch_sizes=(12, 24, 48, 96),
        floor=True,
        class_names=names,
    ).presented(Presentation("LTS"), dataset="simulated scenes")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        write_page(results, page, make_portraits(sample["test"], methods, results))
        views = screenshots(page)
    both = Image.new("RGB", (2 * WIDTH, HEIGHT))
    for k, view in enumerate(views):
        both.paste(view, (k * WIDTH, 0))
    small = both.resize((1480, round(1480 * HEIGHT / (2 * WIDTH))), Image.Resampling.LANCZOS)
    few = small.quantize(256, Image.Quantize.MAXCOVERAGE)  # keeps the colours of single marks
    few.save(Path(__file__).with_suffix(".png"), optimize=True)


def screenshots(page: Path) -> list[Any]:
    """The views, each in its colour scheme."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    views = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme, place, above in VIEWS:
            tab = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
            )
            tab.goto(page.as_uri())
            tab.evaluate("reveal('cases')")
            tab.wait_for_selector("#cases canvas")
            tab.evaluate(f"scrollTo(0, document.querySelector('{place}').offsetTop + {above})")
            tab.wait_for_timeout(300)
            views.append(Image.open(io.BytesIO(tab.screenshot())))
        browser.close()
    return views


if __name__ == "__main__":
    main()
