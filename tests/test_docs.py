"""The code of README and docs runs, each page from top to bottom in an empty folder, and passes the type checker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from segcal import calibrators, create, methods
from support import commands

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RELAXED = "# mypy: allow-untyped-defs, allow-untyped-calls, allow-any-generics"
"""Examples need no annotations; how they call segcal is checked strictly."""


def code_of(page: Path) -> str:
    """The Python blocks of a page in their own lines, every other line empty, so that line numbers agree."""
    inside, lines = False, []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = line.rstrip() == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


WITH_CODE = [page for page in PAGES if code_of(page).strip()]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_readme_shows_code() -> None:
    assert ROOT / "README.md" in WITH_CODE


def test_the_readme_counts_the_methods_that_change_labels() -> None:
    every = [create(name, num_classes=3) for name in methods()]
    own = [one for one in every if type(one).__module__.startswith("segcal.")]  # other tests register theirs
    counted = f"{sum(not one.preserves_labels for one in own)} of the {len(own)} methods"
    assert counted in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("few_strengths")
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrators, "_METHODS", dict(calibrators._METHODS))  # a page registers a method of its own
    exec(compile(code_of(page), str(page), "exec"), {})


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def in_this_process(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m segcal ...` without starting Python, as the tests of commands do."""
    assert words[:3] == [sys.executable, "-m", "segcal"]
    done = commands.run(*words[3:])
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_notebooks_run(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", in_this_process)
    monkeypatch.setattr(calibrators, "_METHODS", dict(calibrators._METHODS))
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells)  # outputs are not committed
    names: dict[str, object] = {}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), names)


def type_errors(codes: dict[str, str], folder: Path) -> str:
    """What mypy reports about modules given by name; it shares the cache of `make check`, which makes it quick."""
    for name, code in codes.items():
        (folder / f"{name}.py").write_text(f"{code}\n{RELAXED}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *(str(folder / f"{name}.py") for name in codes)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_python_blocks_are_typed(tmp_path: Path) -> None:
    """All pages in one go, and one with mistakes, which must be reported."""
    codes = {re.sub(r"\W", "_", name_of(page)): code_of(page) for page in WITH_CODE}
    wrong = "import segcal\nsegcal.evaluate([], {}, num_classes='1')\nsegcal.evaluat\nsegcal.compare([], [], {}, bin=3)"
    found = type_errors({**codes, "mistakes": wrong}, tmp_path).splitlines()
    assert [line for line in found if "mistakes.py" not in line and "note:" not in line] == []
    assert len([line for line in found if "mistakes.py" in line and "error:" in line]) >= 3


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_reference_names_what_exists() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    names = re.findall(r"^::: (\S+)$", pages, flags=re.MULTILINE)
    assert len(names) > 50
    for module, _, name in (each.rpartition(".") for each in names):
        spec = find_spec(module)
        assert spec is not None, module
        source = Path(str(spec.origin)).read_text(encoding="utf-8")  # some need a package that may not be installed
        assert re.search(rf"\b{name}\b", source), f"{module} has no {name}"
