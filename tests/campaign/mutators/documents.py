"""JSON, TOML and CSV with fields dropped, added, renamed, retyped and nested."""

from __future__ import annotations

import csv
import io
import json
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2.5, -0.0, 1e300, -1e300, 10**30, -(2**63), 2**64, float("nan"), float("inf"), "",
    "nan", "1", "x", "\0", "[bold]x[/red]", "\x1b[31mred", "=cmd|' /C calc'!A0", "ü€\U0001f600", "a" * 5000, "../../x",
    [], {}, [[]], [None], {"": None}, [1, "a", None], [float("nan")] * 3, [1e300] * 3, list(range(50)),
)  # fmt: skip
CELLS = (
    "", "nan", "NaN", "inf", "-inf", "-1", "0", "1e400", "1e30", "x", "=1+1", "[red]", "\x1b[31m", "9" * 400, "3.5",
    "é", "a\nb",
    "true", "0x10", "1,5", '"', "UC", "all", "ece",
)  # fmt: skip
VALUES = (
    '"x"', "[]", "{}", "0", "-1", "3", "999999999999", "nan", "inf", "true", "2.5", '["a"]', '[""]',
    '["a", "a", "a"]', "[1, [2]]",
    "1979-05-27", "'('", "'(a+)+$'", "'.*'", '"probabilities"', '"logits"', '"../.."', "[1.0]", "[1.0, 2.0, 3.0]",
    "[0, 0]",
    '"\\u0000"', '"[bold]"', "{a1 = 1}", "[0, 255]", "255", "1e400",
)  # fmt: skip


def mutate_json(rng: Random, content: bytes) -> bytes:
    """Return a JSON document with one structural change, perhaps one that JSON does not allow."""
    kind = rng.randrange(20)
    if kind == 0:
        return b"[" * 100_000 if rng.random() < 0.5 else b'{"a":' * 20_000
    if kind == 1:
        return rng.choice((b"null", b"[]", b"{}", b"3", b'"x"', b"\xff\xfe{}", b"\xef\xbb\xbf" + content, content * 2))
    document = json.loads(content)
    _change_node(rng, document)
    return json.dumps(document, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5).encode(
        "utf-8", "replace"
    )


def _change_node(rng: Random, document: Any) -> None:
    """Change one entry somewhere in lists and objects, deeper ones as likely as outer ones."""
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = rng.choice(keys)
        inner = node[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.75:
            node = inner
            continue
        break
    if not keys or rng.random() < 0.08:
        _add(rng, node)
    elif rng.random() < 0.3:
        del node[key]
    elif isinstance(node, dict) and rng.random() < 0.15:
        node[f"{key}x"] = node.pop(key)
    elif isinstance(inner, float | int) and rng.random() < 0.3:
        node[key] = rng.choice((-inner, inner + 1, inner * 1e6, str(inner), float(inner)))
    else:
        node[key] = rng.choice(ODD)


def _add(rng: Random, node: Any) -> None:
    if isinstance(node, dict):
        node[rng.choice(("extra", "", "[red]", "format"))] = rng.choice(ODD)
    else:
        node.insert(rng.randrange(len(node) + 1), rng.choice(ODD))


def mutate_toml(rng: Random, content: bytes) -> bytes:
    """Return a TOML document with one line dropped, doubled, renamed or with another value."""
    kind = rng.randrange(12)
    if kind == 0:
        return rng.choice((b"a = " + b"[" * 50_000, b"[a" + b".a" * 20_000 + b"]", b"\xff", b"\0", b"scores = "))
    lines = content.decode().splitlines()
    at = rng.randrange(len(lines))
    name = lines[at].partition(" =")[0]
    if kind < 3:
        del lines[at]
    elif kind == 3:
        lines.insert(at, lines[at])
    elif kind == 4:
        lines[at] = f"{name}x = {rng.choice(VALUES)}"
    elif kind == 5:
        extra = ("geometry", "num_classes", "class_names", "background", "group", "spacing", "scores", "ignore_index")
        lines.insert(0, f"{rng.choice(extra)} = {rng.choice(VALUES)}")
    else:
        lines[at] = f"{name} = {rng.choice(VALUES)}"
    return "\n".join(lines).encode("utf-8", "replace")


def mutate_csv(rng: Random, content: bytes) -> bytes:
    """Return a table with a column, row or cell dropped, doubled, renamed or replaced."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    columns, kind = len(rows[0]), rng.randrange(14)
    column, row = rng.randrange(columns), rng.randrange(1, len(rows)) if len(rows) > 1 else 0
    if kind == 0:
        rows = [[cell for k, cell in enumerate(line) if k != column] for line in rows]
    elif kind == 1:
        rows[0][column] += "x"
    elif kind == 2:
        del rows[row]
    elif kind == 3:
        rows.insert(row, rows[row])
    elif kind == 4:
        rows = rows[: rng.choice((0, 1, 2))]
    elif kind == 5:
        value = rng.choice(CELLS)
        rows[1:] = [[value if k == column else cell for k, cell in enumerate(line)] for line in rows[1:]]
    elif kind == 6:
        rows[row] = rows[row][:-1] if rng.random() < 0.5 else [*rows[row], "1"]
    elif kind == 7:
        rows[0].insert(column, rows[0][column])
        for line in rows[1:]:
            line.insert(column, line[min(column, len(line) - 1)])
    elif kind == 8:
        other = rng.randrange(columns)
        for line in rows[1:]:
            line[column], line[other] = line[other], line[column]
    else:
        rows[row][column] = rng.choice(CELLS)
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    text = file.getvalue().encode()
    return (
        text
        if kind != 13
        else rng.choice((b"\xef\xbb\xbf" + text, text.replace(b",", b";"), text + b"\0\0", text.replace(b"\n", b"\r")))
    )
