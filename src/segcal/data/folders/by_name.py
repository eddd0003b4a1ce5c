"""Which files belong to which case: by name, one file of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from segcal.data.io.formats import extension_of
from segcal.text import is_utf8
from segcal.types import InputError


def existing(path: Path, what: str) -> Path:
    """Return `path`; raise unless it is a folder."""
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing"
        raise InputError(f"the {what} folder '{path}' must exist, got {got} there; give the right {what} folder")
    return path


def by_name(folder: Path, extensions: Sequence[str]) -> dict[str, list[Path]]:
    """Return files with one of `extensions` by their name without it; hidden ones are left out."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        extension = extension_of(path, extensions)
        if extension and path.is_file() and not path.name.startswith("."):
            if not is_utf8(path.name):
                raise InputError(f"names of files must be UTF-8, got '{path}'; rename it")
            found.setdefault(path.name[: -len(extension)], []).append(path)
    return found


def only(name: str, found: Mapping[str, list[Path]], what: str, folder: Path, extensions: Sequence[str]) -> Path:
    """Return the one file of a case; raise if there is none or more than one."""
    paths = found.get(name, [])
    if not paths:
        near = get_close_matches(name, found, n=1)
        hint = f"did you mean '{found[near[0]][0].name}'? rename it" if near else "add it, or remove the case"
        raise InputError(
            f"case '{name}' must have one {what} file, got none at '{folder / name}{extensions[0]}' "
            f"(or {'|'.join(extensions[1:])}); {hint}"
        )
    if len(paths) > 1:
        got = " and ".join(f"'{path}'" for path in paths)
        raise InputError(f"case '{name}' must have one {what} file, got {got}; remove one")
    return paths[0]
