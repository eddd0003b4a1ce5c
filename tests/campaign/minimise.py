"""The smallest damage that still shows a defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import SequenceMatcher

from tests.campaign.mutants import Mutant
from tests.campaign.trees import Tree

_LARGE = 20_000
"""Bytes beyond which contents are compared as a whole."""

_ATTEMPTS = 150
"""Smaller mutants that are tried."""

Same = Callable[[Mutant], bool]


def minimised(found: Mutant, same: Same) -> Mutant:
    """Return a mutant with fewer changed files and bytes for which `same` still holds."""
    pristine, same = found.subject.tree, _limited(same)
    smallest = found
    for name in sorted(_changed(found.tree, pristine)):
        tried = replace(smallest, tree=_restored(smallest.tree, pristine, name))
        if same(tried):
            smallest = tried
    for name in sorted(_changed(smallest.tree, pristine)):
        smallest = _fewer_hunks(smallest, name, same)
    return smallest


def _limited(same: Same) -> Same:
    """Return `same`, which gives up after some attempts."""
    left = iter(range(_ATTEMPTS))
    return lambda tried: next(left, None) is not None and same(tried)


def described(found: Mutant) -> list[str]:
    """Return one line for each file that a mutant changed."""
    pristine = found.subject.tree
    return [_difference(name, found.tree.get(name), pristine.get(name)) for name in _changed(found.tree, pristine)]


def _changed(tree: Tree, pristine: Tree) -> list[str]:
    missing = object()
    return [n for n in {**pristine, **tree} if tree.get(n, missing) != pristine.get(n, missing)]  # type: ignore[arg-type]


def _restored(tree: Tree, pristine: Tree, name: str) -> Tree:
    others = {other: content for other, content in tree.items() if other != name}
    return {**others, name: pristine[name]} if name in pristine else others


def _hunks(old: bytes, new: bytes) -> list[tuple[int, int, bytes]]:
    """Return replacements of old[start:stop] by bytes that turn `old` into `new`."""
    if len(old) == len(new):
        return [(k, k + 1, new[k : k + 1]) for k in range(len(old)) if old[k] != new[k]]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [(a, b, new[c:d]) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]


def _applied(old: bytes, hunks: list[tuple[int, int, bytes]]) -> bytes:
    parts, at = [], 0
    for start, stop, content in hunks:
        parts += [old[at:start], content]
        at = stop
    return b"".join([*parts, old[at:]])


def _fewer_hunks(found: Mutant, name: str, same: Same) -> Mutant:
    """Restore parts of one file, large parts first."""
    old, new = found.subject.tree.get(name), found.tree.get(name)
    if old is None or new is None or max(len(old), len(new)) > _LARGE:
        return found
    hunks = _hunks(old, new)
    size = len(hunks) // 2
    while size:
        at = 0
        while at < len(hunks):
            fewer = hunks[:at] + hunks[at + size :]
            tried = replace(found, tree={**found.tree, name: _applied(old, fewer)})
            if same(tried):
                hunks, found = fewer, tried
            else:
                at += size
        size //= 2
    return found


def _difference(name: str, new: bytes | None, old: bytes | None) -> str:
    if new is None:
        return f"{name!r}: removed or a folder"
    if old is None:
        return f"{name!r}: added, {len(new)} bytes {new[:60]!r}"
    if max(len(old), len(new)) > _LARGE:
        return f"{name!r}: {len(old)} -> {len(new)} bytes, {new[:60]!r} ..."
    hunks = _hunks(old, new)
    shown = "; ".join(f"at {a}: {old[a:b][:60]!r} -> {content[:60]!r}" for a, b, content in hunks[:4])
    return f"{name!r}: {shown}{' ...' if len(hunks) > 4 else ''}"
