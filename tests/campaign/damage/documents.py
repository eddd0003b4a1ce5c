"""JSON, TOML and CSV with fields dropped, added, renamed, retyped and nested."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

ODD = st.sampled_from((
    None, True, False, 0, 1, -1, 3, 2.5, -0.0, 1e300, -1e300, 10**30, -(2**63), 2**64, float("nan"), float("inf"), "",
    "nan", "1", "x", "\0", "[bold]x[/red]", "\x1b[31mred", "=cmd|' /C calc'!A0", "ü€\U0001f600", "a" * 5000, "../../x",
    [], {}, [[]], [None], {"": None}, [1, "a", None], [float("nan")] * 3, [1e300] * 3, list(range(50)),
)) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
CELLS = st.sampled_from((
    "", "nan", "NaN", "inf", "-inf", "-1", "0", "1e400", "1e30", "x", "=1+1", "[red]", "\x1b[31m", "9" * 400, "3.5",
    "é", "a\nb", "true", "0x10", "1,5", '"', "UC", "all", "ece",
))  # fmt: skip
VALUES = st.sampled_from((
    '"x"', "[]", "{}", "0", "-1", "3", "999999999999", "nan", "inf", "true", "2.5", '["a"]', '[""]', '["a", "a", "a"]',
    "[1, [2]]", "1979-05-27", "'('", "'(a+)+$'", "'.*'", '"probabilities"', '"logits"', '"../.."', "[1.0]",
    "[1.0, 2.0, 3.0]", "[0, 0]", '"\\u0000"', '"[bold]"', "{a1 = 1}", "[0, 255]", "255", "1e400",
))  # fmt: skip
SETTINGS = ("geometry", "num_classes", "class_names", "background", "group", "spacing", "scores", "ignore_index")


def damage_json(draw: DrawFn, content: bytes) -> bytes:
    """Return a JSON document with one structural change, perhaps one that JSON does not allow."""
    kind = draw(st.integers(0, 19))
    if kind == 19:
        whole = (b"null", b"[]", b"{}", b"3", b'"x"', b"\xff\xfe{}", b"\xef\xbb\xbf" + content, content * 2)
        return draw(st.sampled_from((*whole, b"[" * 100_000, b'{"a":' * 20_000)))
    document = json.loads(content)
    if kind == 18 and isinstance(document, dict) and document:  # a key twice, of which Python takes the last value
        key, value = json.dumps(draw(st.sampled_from(list(document)))), json.dumps(draw(ODD))
        return content.replace(b"{", f"{{{key}: {value}, ".encode("utf-8", "replace"), 1)
    damage_node(draw, document)
    text = json.dumps(document, indent=draw(st.sampled_from((None, 1))), ensure_ascii=draw(st.booleans()))
    return text.encode("utf-8", "replace")


def damage_node(draw: DrawFn, node: Any) -> None:
    """Change one entry somewhere in lists and objects, deeper ones as likely as outer ones."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    if not keys:
        return _add(draw, node)
    key = draw(st.sampled_from(keys))
    inner = node[key]
    if isinstance(inner, dict | list) and inner and draw(st.integers(0, 3)):
        return damage_node(draw, inner)
    kinds = ("replace", "replace", "remove", "add", *(["rename"] if isinstance(node, dict) else []))
    if isinstance(inner, float | int):
        kinds += ("alter", "alter")
    kind = draw(st.sampled_from(kinds))
    if kind == "add":
        _add(draw, node)
    elif kind == "remove":
        del node[key]
    elif kind == "rename":
        node[f"{key}x"] = node.pop(key)
    elif kind == "alter":
        node[key] = draw(st.sampled_from((-inner, inner + 1, inner * 1e6, str(inner), float(inner))))
    else:
        node[key] = draw(ODD)
    return None


def _add(draw: DrawFn, node: Any) -> None:
    if isinstance(node, dict):
        node[draw(st.sampled_from(("extra", "", "[red]", "format")))] = draw(ODD)
    else:
        node.insert(draw(st.integers(0, len(node))), draw(ODD))


def damage_toml(draw: DrawFn, content: bytes) -> bytes:
    """Return a TOML document with one line dropped, doubled, renamed or with another value."""
    kind = draw(st.sampled_from(("value",) * 6 + ("drop", "drop", "double", "rename", "add", "whole")))
    if kind == "whole":
        whole = (b"a = " + b"[" * 50_000, b"[a" + b".a" * 20_000 + b"]", b"\xff", b"\0", b"scores = ")
        return draw(st.sampled_from(whole))
    lines = content.decode().splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    name = lines[at].partition(" =")[0]
    if kind == "drop":
        del lines[at]
    elif kind == "double":
        lines.insert(at, lines[at])
    elif kind == "add":
        lines.insert(0, f"{draw(st.sampled_from(SETTINGS))} = {draw(VALUES)}")
    else:
        lines[at] = f"{name}{'x' * (kind == 'rename')} = {draw(VALUES)}"
    return "\n".join(lines).encode("utf-8", "replace")


_TABLE = ("cell",) * 4 + ("drop column", "rename column", "double column", "fill column", "swap columns", "drop row")
_TABLE += ("double row", "few rows", "ragged row", "encoding")


def damage_csv(draw: DrawFn, content: bytes) -> bytes:
    """Return a table with a column, row or cell dropped, doubled, renamed or replaced."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    kind, column = draw(st.sampled_from(_TABLE)), draw(st.integers(0, len(rows[0]) - 1))
    row = draw(st.integers(min(1, len(rows) - 1), len(rows) - 1))
    if kind == "drop column":
        rows = [[cell for k, cell in enumerate(line) if k != column] for line in rows]
    elif kind == "rename column":
        rows[0][column] += "x"
    elif kind == "double column":
        rows = [[*line[: column + 1], *line[column:]] for line in rows]
    elif kind == "fill column":
        value = draw(CELLS)
        rows[1:] = [[value if k == column else cell for k, cell in enumerate(line)] for line in rows[1:]]
    elif kind == "swap columns":
        other = draw(st.integers(0, len(rows[0]) - 1))
        for line in rows[1:]:
            line[column], line[other] = line[other], line[column]
    elif kind == "drop row":
        del rows[row]
    elif kind == "double row":
        rows.insert(row, rows[row])
    elif kind == "few rows":
        rows = rows[: draw(st.integers(0, 2))]
    elif kind == "ragged row":
        rows[row] = rows[row][:-1] if draw(st.booleans()) else [*rows[row], "1"]
    elif kind == "cell":
        rows[row][column] = draw(CELLS)
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    text = file.getvalue().encode()
    encoded = (b"\xef\xbb\xbf" + text, text.replace(b",", b";"), text + b"\0\0", text.replace(b"\n", b"\r"))
    return draw(st.sampled_from(encoded)) if kind == "encoding" else text
