"""Files that are missing, doubled, renamed, exchanged, or folders."""

from __future__ import annotations

from random import Random

from tests.campaign.trees import Tree

STEMS = (
    "[bold]x[/red]", "a b", "-x", "ü", "u\u0308", "x" * 200, "a\nb", "\x1b[31mred", "=cmd", "\udcff\udcfe",
    ".hidden", "a.b", "%s%n",
    "A1", "segcal", "\u202egpj",
)  # fmt: skip
ENDINGS = (".npy", ".npz", ".nii", ".nii.gz", ".png", ".jpg", ".NPY", ".txt", "", ".npy.partial", ".webp")


def mutate_names(rng: Random, tree: Tree, prefix: str) -> Tree:
    """Return the tree with one file or folder moved, removed, doubled or replaced."""
    files = sorted(name for name, content in tree.items() if name.startswith(prefix) and content is not None)
    if not files:
        return tree
    path, kind = rng.choice(files), rng.randrange(10)
    changed = dict(tree)
    folder, slash, name = path.rpartition("/")
    stem, dot, end = name.partition(".")
    content, beside = changed[path], f"{folder}{slash}"
    if kind < 2:
        del changed[path]
    elif kind == 2:  # every file of a case, or of a kind, gets another name
        other = rng.choice(STEMS)
        changed = {_renamed(n, prefix, stem, other): c for n, c in changed.items()}
    elif kind == 3:
        changed[f"{beside}{rng.choice(STEMS)}{dot}{end}"] = changed.pop(path)
    elif kind == 4:
        del changed[path]
        changed[f"{beside}{stem}{rng.choice(ENDINGS)}"] = content
    elif kind == 5:
        changed[f"{beside}{stem}{rng.choice(ENDINGS)}"] = content
    elif kind == 6:
        del changed[path]
        changed[f"{path}/inside"] = b"x"
    elif kind == 7:
        other = rng.choice(files)
        changed[path], changed[other] = changed[other], changed[path]
    elif kind == 8 and folder:
        changed = {n: c for n, c in changed.items() if not n.startswith(f"{folder}/")}
        changed[folder] = None if rng.random() < 0.5 else b"a file"
    else:
        extra = rng.choice(
            ("logits/extra.npy", "extra.npz", "labels/extra.png", "images/x.npy", "a/b/c", ".DS_Store", "Thumbs.db")
        )
        changed[f"{prefix}{extra}"] = content
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
        and not (content is None and _holds(tree, name))
    }


def _holds(tree: Tree, folder: str) -> bool:
    return any(other.startswith(f"{folder}/") for other in tree)
