"""Results -> one self-contained HTML page that opens in any browser and loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from segcal.evaluation.portraits import Portrait, load_portraits
from segcal.evaluation.results import Results
from segcal.files import staged_file
from segcal.report.content import page_content

_SCRIPTS = ("dom.js", "charts.js", "tables.js", "maps.js", "page.js")


def write_page(results: Results, path: str | Path, portraits: Sequence[Portrait] = ()) -> None:
    """Write the page of an evaluation; it appears whole or not at all."""
    page = render(page_content(results, portraits))
    with staged_file(path) as staging:
        staging.write_text(page, encoding="utf-8")


def write_page_of_folder(folder: str | Path, path: str | Path) -> None:
    """Write the page of results that were saved, with the portraits saved beside them."""
    write_page(Results.load(folder), path, load_portraits(folder))


def render(content: dict[str, Any]) -> str:
    """The page as text. Its policy lets it run its own script, by hash, and load nothing."""
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return Template(_asset("page.html")).substitute(
        policy=policy, style=_asset("page.css"), script=script, data=_embedded(content)
    )


def _embedded(content: Any) -> str:
    """JSON in which no text can end the element that holds it."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
