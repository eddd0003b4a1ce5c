"""Small changes of Python code: each is a slip that somebody could make and that a test should notice."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_METHODS = {
    "sum": "mean", "mean": "sum", "min": "max", "max": "min", "amax": "amin", "amin": "amax", "floor": "ceil",
    "ceil": "floor",
    "any": "all", "all": "any", "argmax": "argmin", "exp": "log", "log": "exp", "abs": "neg", "nanmean": "nansum",
    "cumsum": "cumprod",
}  # fmt: skip


@dataclass(frozen=True)
class Slip:
    """One change.

    Args:
        text: The line in which it lies.
        function: The function in which it lies.
        before: The expression.
        after: What becomes of it.
        line: Number of the line.
        source: The whole module with the change.
    """

    text: str
    function: str
    before: str
    after: str
    line: int
    source: str

    def __str__(self) -> str:
        return f"line {self.line}, {self.function}: {self.before}  ->  {self.after}"


def slips(source: str) -> Iterator[Slip]:
    """Yield every change of a module, in the order of its text."""
    tree, lines = ast.parse(source), source.splitlines()
    for function, place in _places(tree):
        for changed in _changes(place):
            text = lines[place.lineno - 1].strip()
            whole = ast.unparse(_replaced(tree, place, changed))
            yield Slip(text, function, ast.unparse(place), ast.unparse(changed), place.lineno, whole)


def described(source: str) -> set[tuple[str, str]]:
    """Return the line and the expression after every change of a module; quicker than `slips`, which writes it out."""
    lines = source.splitlines()
    return {
        (lines[place.lineno - 1].strip(), ast.unparse(changed))
        for _, place in _places(ast.parse(source))
        for changed in _changes(place)
    }


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions that run, with the function around them: no annotations, decorators or messages."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr]]:
        if isinstance(node, ast.FunctionDef):
            for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
                yield from visit(default, node.name)
            for statement in node.body:
                yield from visit(statement, node.name)
            return
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr):
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from visit(node.value, function)
            return
        if isinstance(node, ast.expr):
            yield function, node
        for name, child in ast.iter_fields(node):
            if name == "decorator_list":
                continue
            for inner in child if isinstance(child, list) else [child]:
                if isinstance(inner, ast.AST):
                    yield from visit(inner, function)

    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from visit(statement, "module")


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.BinOp) and type(changed.op) in _BINARY:
        changed.op = _BINARY[type(changed.op)]()
        yield changed
    elif isinstance(changed, ast.Compare) and type(changed.ops[0]) in _COMPARE:
        changed.ops[0] = _COMPARE[type(changed.ops[0])]()
        yield changed
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        yield changed
    elif isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not | ast.USub):
        yield changed.operand
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, bool):
        changed.value = not changed.value
        yield changed
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, int | float) and abs(changed.value) < 1e6:
        changed.value = changed.value + 1 if isinstance(changed.value, int) else 2 * changed.value + 1
        yield changed
    elif isinstance(changed, ast.Attribute) and changed.attr in _METHODS:
        changed.attr = _METHODS[changed.attr]
        yield changed
    elif isinstance(changed, ast.IfExp):
        changed.body, changed.orelse = changed.orelse, changed.body
        yield changed


def _replaced(tree: ast.Module, place: ast.expr, changed: ast.expr) -> ast.Module:
    """Return a copy of the module in which one expression is another."""
    whole = _Copier(place, changed).visit(tree)
    assert isinstance(whole, ast.Module)
    return ast.fix_missing_locations(whole)


class _Copier(ast.NodeTransformer):
    """Rebuild the path from the root to one node, and share the rest."""

    def __init__(self, place: ast.expr, changed: ast.expr) -> None:
        self.place, self.changed = place, changed

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node, or a copy of it if something inside was exchanged."""
        if node is self.place:
            return self.changed
        fields, touched = {}, False
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                new = [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
                touched |= any(a is not b for a, b in zip(new, value, strict=True))
            else:
                new = self.visit(value) if isinstance(value, ast.AST) else value
                touched |= new is not value
            fields[name] = new
        if not touched:
            return node
        found = type(node)(**fields)
        return ast.copy_location(found, node) if hasattr(node, "lineno") else found
