"""Folders as values: a tree maps relative paths to contents, so that mutating and comparing are pure functions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TypeAlias

Tree: TypeAlias = dict[str, bytes | None]
"""Contents by path with forward slashes; None for an empty folder. Names may hold any bytes (surrogate escapes)."""


def read_tree(root: Path, prefix: str = "") -> Tree:
    """Return all files below `root`, and its empty folders."""
    tree: Tree = {}
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            inside = read_tree(Path(entry.path), f"{name}/")
            tree.update(inside or {name: None})
        else:
            tree[name] = Path(entry.path).read_bytes()
    return tree


def write_tree(root: Path, tree: Tree) -> None:
    """Write a tree into an empty folder."""
    made = set()
    for name, content in tree.items():
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"{name!r} lies outside of the tree")
        path = root / name
        folder = path if content is None else path.parent
        if folder not in made:
            folder.mkdir(parents=True, exist_ok=True)
            made.add(folder)
        if content is not None:
            path.write_bytes(content)


def become(root: Path, now: Tree, wanted: Tree) -> None:
    """Turn the folder `root`, which holds the tree `now`, into `wanted`; rewrite only what differs."""
    gone = [
        name for name in now if name not in wanted or (None in (now[name], wanted[name]) and now[name] != wanted[name])
    ]
    for name in gone:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name in gone:
        for folder in (root / name).parents:
            if folder == root or not folder.is_dir() or any(folder.iterdir()):
                break
            folder.rmdir()
    write_tree(root, {name: content for name, content in wanted.items() if name not in now or now[name] != content})


def below(tree: Tree, prefix: str) -> Tree:
    """Return the part of a tree inside the folder `prefix` (which ends in a slash), by names relative to it.

    >>> below({"a/b": b"1", "c": b"2"}, "a/")
    {'b': b'1'}
    """
    return {name.removeprefix(prefix): content for name, content in tree.items() if name.startswith(prefix)}
