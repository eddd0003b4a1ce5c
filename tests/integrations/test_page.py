"""The blocks of docs/guide/integrations.md that need packages run, each after the shared ones, in an empty folder.

Such a block is marked `py`, and its first line names the packages; blocks marked `python` run in `tests/test_docs.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "integrations.md"
FENCES = re.compile(r"^```(python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [(kind, code) for kind, code in FENCES.findall(PAGE.read_text(encoding="utf-8"))]
SHARED = next(code for kind, code in BLOCKS if kind == "python")
NEEDY = [code for kind, code in BLOCKS if kind == "py"]


def packages_of(code: str) -> list[str]:
    return code.splitlines()[0].removeprefix("# ").split(", ")


def test_there_are_blocks() -> None:
    assert len(NEEDY) >= 8
    assert all(code.startswith("# ") for code in NEEDY)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", NEEDY, ids=lambda code: packages_of(code)[-1])
def test_block_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in packages_of(code):
        pytest.importorskip(package, reason=f"{package} is not installed: make test-integrations")
    monkeypatch.chdir(tmp_path)
    exec(compile(f"{SHARED}\n{code}", str(PAGE), "exec"), {"__name__": "page"})
