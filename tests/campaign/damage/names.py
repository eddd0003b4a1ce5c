"""Files that are missing, doubled, renamed, exchanged, or folders."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.campaign.trees import Tree

STEMS = st.sampled_from((
    "[bold]x[/red]", "a b", "-x", "ü", "u\u0308", "x" * 200, "a\nb", "\x1b[31mred", "=cmd", "\udcff\udcfe", ".hidden",
    "a.b", "%s%n", "A1", "segcal", "\u202egpj",
))  # fmt: skip
ENDINGS = st.sampled_from((
    ".npy", ".npz", ".nii", ".nii.gz", ".png", ".jpg", ".NPY", ".txt", "", ".npy.partial", ".webp",
))  # fmt: skip
EXTRA = st.sampled_from((
    "logits/extra.npy", "extra.npz", "labels/extra.png", "images/x.npy", "a/b/c", ".DS_Store", "Thumbs.db",
))  # fmt: skip
_KINDS = ("remove", "remove", "rename case", "rename", "other ending", "double", "folder", "exchange", "empty", "add")


def damage_names(draw: DrawFn, tree: Tree, prefix: str, files: list[str]) -> Tree:
    """Return the tree with one of the files, or its folder, moved, removed, doubled or replaced."""
    path, kind, changed = draw(st.sampled_from(files)), draw(st.sampled_from(_KINDS)), dict(tree)
    folder, slash, name = path.rpartition("/")
    stem, dot, end = name.partition(".")
    content, beside = changed[path], f"{folder}{slash}"
    if kind in ("remove", "rename", "other ending", "folder"):
        del changed[path]
    if kind == "rename case":  # every file of a case, or of a kind, gets another name
        other = draw(STEMS)
        changed = {_renamed(n, prefix, stem, other): c for n, c in changed.items()}
    elif kind == "rename":
        changed[f"{beside}{draw(STEMS)}{dot}{end}"] = content
    elif kind in ("other ending", "double"):
        changed[f"{beside}{stem}{draw(ENDINGS)}"] = content
    elif kind == "folder":
        changed[f"{path}/inside"] = b"x"
    elif kind == "exchange":
        other = draw(st.sampled_from(files))
        changed[path], changed[other] = changed[other], changed[path]
    elif kind == "empty" and folder:
        changed = {n: c for n, c in changed.items() if not n.startswith(f"{folder}/")}
        changed[folder] = draw(st.sampled_from((None, b"a file")))
    elif kind == "add":
        changed[f"{prefix}{draw(EXTRA)}"] = content
    return _without_conflicts(changed)


def _renamed(path: str, prefix: str, stem: str, other: str) -> str:
    folder, slash, name = path.rpartition("/")
    first, dot, end = name.partition(".")
    return f"{folder}{slash}{other}{dot}{end}" if path.startswith(prefix) and first == stem else path


def _without_conflicts(tree: Tree) -> Tree:
    """Return the tree without files that would lie inside another file."""
    files = {name for name, content in tree.items() if content is not None}
    return {
        name: content
        for name, content in tree.items()
        if not any(name[:k] in files for k in range(len(name)) if name[k] == "/")
        and not (content is None and any(other.startswith(f"{name}/") for other in tree))
    }
