"""Damage to saved files, drawn by hypothesis: by bytes, by the structure of each format, and by names of files.

Every function takes the `draw` of a composite strategy, so that hypothesis finds the smallest damage with a defect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.campaign.damage import arrays, documents, headers, names, raw
from tests.campaign.trees import Tree

Damage: TypeAlias = Callable[[DrawFn, bytes], bytes]

_BY_ENDING: dict[str, Damage] = {
    ".npy": arrays.damage_npy,
    ".npz": arrays.damage_npz,
    ".nii": headers.damage_nifti,
    ".nii.gz": headers.damage_packed,
    ".png": headers.damage_png,
    ".json": documents.damage_json,
    ".toml": documents.damage_toml,
    ".csv": documents.damage_csv,
    ".safetensors": headers.damage_safetensors,
}


class Damaged:
    """A tree after the damage, how it was damaged, and the tree before; shown as the files that differ."""

    def __init__(self, tree: Tree, how: str, whole: Tree) -> None:
        self.tree, self.how, self.whole = tree, how, whole

    def __repr__(self) -> str:
        missing = object()
        changed = [
            name
            for name in {**self.whole, **self.tree}
            if self.tree.get(name, missing) != self.whole.get(name, missing)  # type: ignore[arg-type]
        ]
        lines = [f"{name!r}: {_difference(self.whole.get(name), self.tree.get(name))}" for name in changed]
        return "\n  ".join([f"{self.how}:", *lines])


def _difference(old: bytes | None, new: bytes | None) -> str:
    if new is None:
        return "removed, or a folder"
    if old is None:
        return f"added, {len(new)} bytes {new[:60]!r}"
    at = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return f"{len(old)} -> {len(new)} bytes, at {at}: {old[at : at + 60]!r} -> {new[at : at + 60]!r}"


@st.composite
def damaged(draw: DrawFn, tree: Tree, prefix: str) -> Damaged:
    """Return a strategy of trees with one to three changes below `prefix`."""
    changed, used = dict(tree), set()
    for _ in range(draw(st.sampled_from((1, 1, 1, 1, 2, 2, 3)))):
        family = draw(st.sampled_from(("structure",) * 5 + ("bytes",) * 3 + ("names",)))
        used.add(family)
        changed = _damaged_once(draw, changed, prefix, family)
    return Damaged(changed, "+".join(sorted(used)), tree)


def _damaged_once(draw: DrawFn, tree: Tree, prefix: str, family: str) -> Tree:
    files = sorted(name for name, content in tree.items() if name.startswith(prefix) and content is not None)
    if not files:
        return tree
    if family == "names":
        return names.damage_names(draw, tree, prefix, files)
    path = _favouring_documents(draw, files)
    content = tree[path] or b""
    damage = damage_of(path) if family == "structure" else raw.damage_bytes
    try:
        return {**tree, path: damage(draw, content)}
    except Exception:  # an earlier change left something that this format cannot parse: damage its bytes instead
        return {**tree, path: raw.damage_bytes(draw, content)}


def damage_of(path: str) -> Damage:
    """Return the damage that knows the format of a file; by bytes where there is none."""
    if ".zarr/" in path and path.rpartition("/")[2].isdigit():
        return arrays.damage_chunk
    found = [end for end in _BY_ENDING if path.lower().endswith(end)]
    return _BY_ENDING[max(found, key=len)] if found else raw.damage_bytes


def _favouring_documents(draw: DrawFn, files: list[str]) -> str:
    """Return one file; the few documents of a folder are chosen as often as its many arrays."""
    few = [name for name in files if name.endswith((".json", ".toml", ".safetensors"))]
    return draw(st.sampled_from(few if few and draw(st.integers(0, 9)) < 4 else files))
