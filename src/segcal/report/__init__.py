"""Results -> one self-contained HTML page that opens in any browser and loads nothing from elsewhere.

The page is `script/page.html` with its style, its scripts and the values of its sections (`sections/`) as JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

from segcal.evaluation.decisions import Decisions
from segcal.evaluation.portraits import Portrait, load_portraits
from segcal.evaluation.results import Results
from segcal.files import signed_file
from segcal.report.colours import method_colours
from segcal.report.sections import SECTIONS, section_contents
from segcal.report.sections.tables import decisions_content
from segcal.report.view import View, shared_content

_HERE = Path(__file__).parent


def write_page(
    results: Results, path: str | Path, portraits: Sequence[Portrait] = (), decisions: Decisions | None = None
) -> None:
    """Write the page of an evaluation; the file appears whole or not at all."""
    _write(render(page_content(results, portraits, decisions)), path)


def write_page_of_folder(folder: str | Path, path: str | Path) -> None:
    """Write the page of results that were saved, with the portraits saved beside them."""
    write_page(Results.load(folder), path, load_portraits(folder))


def write_decisions_page(decisions: Decisions, path: str | Path) -> None:
    """Write a page with decisions alone; the file appears whole or not at all."""
    methods = list(decisions.methods)
    shared = {
        "methods": methods,
        "baseline": methods[0],
        "colours": method_colours(methods, methods[0]),
        "regions": [],
        "sections": {"decisions": decisions_content(decisions)},
    }
    _write(render(shared), path)


def page_content(
    results: Results, portraits: Sequence[Portrait] = (), decisions: Decisions | None = None
) -> dict[str, Any]:
    """Return everything that the page shows: values that sections share, and those of each section."""
    view = View(results, portraits, decisions)
    return {**shared_content(view), "sections": section_contents(view)}


def render(content: dict[str, Any]) -> str:
    """Return the page as text. Its policy allows its own script, by hash, and loads nothing."""
    script = "\n".join(path.read_text(encoding="utf-8") for path in _scripts())
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    page, style = ((_HERE / "script" / name).read_text(encoding="utf-8") for name in ("page.html", "page.css"))
    return Template(page).substitute(policy=policy, style=style, script=script, data=_embedded(content))


def _write(page: str, path: str | Path) -> None:
    with signed_file(path) as staging:
        staging.write_text(page, encoding="utf-8")


def _scripts() -> Iterator[Path]:
    """Yield helpers, then charts, then sections, and last what puts the page together."""
    yield from (_HERE / "script" / f"{name}.js" for name in ("dom", "downloads", "tables", "pictures", "viewer"))
    yield from sorted((_HERE / "charts").glob("*.js"))
    yield from (_HERE / "sections" / f"{name}.js" for name in SECTIONS)
    yield _HERE / "script" / "page.js"


def _embedded(content: Any) -> str:
    """Return JSON in which no text can end the element that holds it."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
