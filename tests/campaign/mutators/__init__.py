"""Mutations of a tree: by bytes, by the structure of each format, and by names of files.

Every mutation is a pure function of a `random.Random` and contents, so that a seed gives the same mutant everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from tests.campaign.mutators import arrays, documents, names, nifti, pictures, raw, tensors
from tests.campaign.trees import Tree

Mutator: TypeAlias = Callable[[Random, bytes], bytes]

_BY_ENDING: dict[str, Mutator] = {
    ".npy": arrays.mutate_npy,
    ".npz": arrays.mutate_npz,
    ".nii": nifti.mutate_nifti,
    ".nii.gz": nifti.mutate_packed,
    ".png": pictures.mutate_png,
    ".json": documents.mutate_json,
    ".toml": documents.mutate_toml,
    ".csv": documents.mutate_csv,
    ".safetensors": tensors.mutate_safetensors,
}

FAMILIES = ("structure", "bytes", "names")


def mutate_tree(rng: Random, tree: Tree, prefix: str) -> tuple[Tree, str]:
    """Return a tree with one to three changes below `prefix`, and the families that they belong to."""
    changed, used = dict(tree), set()
    for _ in range(rng.choices((1, 2, 3), (7, 2, 1))[0]):
        (family,) = rng.choices(FAMILIES, (5, 3, 1))
        used.add(family)
        changed = _mutated_once(rng, changed, prefix, family)
    return changed, "+".join(sorted(used))


def _mutated_once(rng: Random, tree: Tree, prefix: str, family: str) -> Tree:
    if family == "names":
        return names.mutate_names(rng, tree, prefix)
    files = sorted(name for name, content in tree.items() if name.startswith(prefix) and content is not None)
    if not files:
        return tree
    path = _favouring_documents(rng, files)
    content = tree[path] or b""
    mutator = mutator_of(path) if family == "structure" else raw.mutate_bytes
    try:
        return {**tree, path: mutator(rng, content)}
    except Exception:  # an earlier change left something that this format cannot parse: damage its bytes instead
        return {**tree, path: raw.mutate_bytes(rng, content)}


def mutator_of(path: str) -> Mutator:
    """Return the mutator for the format of a file; by bytes where there is none."""
    found = [end for end in _BY_ENDING if path.lower().endswith(end)]
    return _BY_ENDING[max(found, key=len)] if found else raw.mutate_bytes


def _favouring_documents(rng: Random, files: list[str]) -> str:
    """Return one file; the few documents of a folder are chosen as often as its many arrays."""
    documents_ = [name for name in files if name.endswith((".json", ".toml", ".safetensors"))]
    return rng.choice(documents_ if documents_ and rng.random() < 0.4 else files)
