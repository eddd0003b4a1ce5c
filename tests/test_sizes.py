"""Limits that keep the code lean: short modules, few parameters, one class per name, openings of docstrings."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import segcal

ROOT = Path(segcal.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
LINES, PARAMETERS = 430, 10
OPENINGS = re.compile(r"(What|How|Whether|Where|Of|That|Which|Whence)\b")

MANY_PARAMETERS = {"calibrators/contextual.py: __init__", "calibrators/local.py: __init__"}
"""Functions that have more; none may be added."""

SHARED_NAMES = {
    "CalibratedSlab", "Difference", "Metric", "Output", "Pixels", "Region", "Selection", "State", "Totals",
}  # fmt: skip
"""Names of several classes; none may be added."""

DOCSTRINGS = 60
"""Docstrings that still begin otherwise."""


def nodes(module: str) -> Iterator[ast.AST]:
    yield from ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8")))


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_short(module: str) -> None:
    assert len((ROOT / module).read_text(encoding="utf-8").splitlines()) <= LINES


def test_functions_have_few_parameters() -> None:
    """Kernels are left out: compiled code takes arrays one by one."""
    many = {
        f"{module}: {node.name}"
        for module in MODULES
        if not module.startswith("kernels/")
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef)
        and len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) > PARAMETERS
    }
    assert many <= MANY_PARAMETERS


def test_every_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in nodes(module):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name for name, where in places.items() if len(where) > 1} <= SHARED_NAMES


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    wrong = [
        f"{module}: {text.splitlines()[0]}"
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (text := ast.get_docstring(node)) is not None
        and OPENINGS.match(text)
    ]
    assert len(wrong) <= DOCSTRINGS, "\n".join(wrong)
