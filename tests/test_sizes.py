"""Limits that keep the code lean: short modules, few parameters, one class per name, openings of docstrings."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import segcal

ROOT = Path(segcal.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
LINES, PARAMETERS = 430, 10
OPENINGS = re.compile(r"(What|How|Whether|Where|Of|That|Which|Whence)\b")


def nodes(module: str) -> Iterator[ast.AST]:
    yield from ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8")))


def given(arguments: ast.arguments) -> list[str]:
    return [each.arg for each in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]


def test_modules_are_short() -> None:
    lengths = {module: len((ROOT / module).read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {module: length for module, length in lengths.items() if length > LINES} == {}


def test_functions_have_few_parameters() -> None:
    """Those that a caller gives. Kernels are left out: compiled code takes arrays one by one."""
    many = {
        f"{module}: {node.name}"
        for module in MODULES
        if not module.startswith("kernels/")
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef)
        and len([each for each in given(node.args) if each not in ("self", "cls")]) > PARAMETERS
    }
    assert many == set()


def test_every_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in nodes(module):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    """The strings below variables and attributes as well."""
    wrong = [
        f"{module}:{node.lineno}: {text.splitlines()[0]}"
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(text := node.value.value, str)
        and OPENINGS.match(text)
    ]
    assert wrong == []
