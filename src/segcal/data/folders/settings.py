"""The files that describe a folder: `segcal.toml` (settings) and `splits.json` (which case belongs to which split)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from segcal.files import read_json, read_toml
from segcal.types import Activation, InputError

Scores: TypeAlias = Literal["logits", "probabilities"]
Splits: TypeAlias = dict[str, tuple[str, ...]]
Channels: TypeAlias = dict[str, int | tuple[int, ...]]
"""Name of each sigmoid channel and the labels that belong to it in a label map."""


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """The content of `segcal.toml`; None for what it does not set.

    Groups and spacings are given for all cases alike, by an expression or by one list, or in a table by case name.
    `geometry` is a folder of NIfTI files, by case name, that say where the scores of TotalSegmentator lie.
    `channels` says which labels of a label map each sigmoid channel holds; without it, labels are stored by channel.
    """

    classes: tuple[str, ...] | None = None
    ignore_index: int | tuple[int, ...] | None = None
    background: int | None = None
    scores: Scores | None = None
    activation: Activation | None = None
    channels: Channels | None = None
    group: str | dict[str, str] | None = None
    spacing: tuple[float, ...] | dict[str, tuple[float, ...]] | None = None
    geometry: str | None = None

    def geometry_folder(self, root: Path) -> Path | None:
        """Return the folder `geometry`, relative to the folder of the settings; raise if it does not exist."""
        if self.geometry is None:
            return None
        if not (root / self.geometry).is_dir():
            raise InputError(
                f"geometry in '{root / 'segcal.toml'}' must be a folder of NIfTI files, got '{self.geometry}', "
                "which does not exist; give its path relative to the data folder"
            )
        return root / self.geometry

    def group_of(self, name: str) -> str | None:
        """The group of a case, from the table or its name: group 1 of the expression, or its whole match."""
        if isinstance(self.group, dict):
            return self.group.get(name)
        match = re.search(self.group, name) if self.group is not None else None
        if match is None:
            return None
        return match[1] if match.re.groups else match[0]

    def spacing_of(self, name: str) -> tuple[float, ...] | None:
        """The spacing of a case, from the table or the one list for all."""
        found = self.spacing.get(name) if isinstance(self.spacing, dict) else self.spacing
        return None if found is None else tuple(map(float, found))  # TOML tells 2 and 2.0 apart

    def check_names(self, names: Collection[str]) -> None:
        """Raise if a table names a case that is not one of `names`."""
        for key, table in (("group", self.group), ("spacing", self.spacing)):
            stray = [name for name in table if name not in names] if isinstance(table, dict) else []
            if stray:
                raise InputError(
                    f"{key} in segcal.toml must name cases of the folder, got '{stray[0]}', which has no scores; "
                    "remove it or add its files"
                )


def read_settings(path: Path) -> FolderSettings:
    """Return what `segcal.toml` says, or empty settings if there is none."""
    table = read_toml(path) if path.exists() else {}
    if "class_names" in table and "classes" not in table:  # what the arguments of the library call them
        table["classes"] = table.pop("class_names")
    for unknown in sorted(set(table) - set(_REQUIRED)):
        near = get_close_matches(unknown, _REQUIRED, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "remove it or correct its spelling"
        raise InputError(f"'{path}' may set {', '.join(_REQUIRED)}, got '{unknown}'; {hint}")
    for key, value in table.items():
        is_right, required = _REQUIRED[key]
        if not is_right(value):
            raise InputError(f"{key} must be {required}, got {value!r} in '{path}'; correct it")
    return FolderSettings(**{key: _frozen(value) for key, value in table.items()})


def write_settings(path: Path, settings: FolderSettings) -> None:
    """Write what is not None as `segcal.toml`."""
    given = {key: value for key in _REQUIRED if (value := getattr(settings, key)) is not None}
    lines = [_entry(key, value) for key, value in given.items() if not isinstance(value, dict)]
    for key, table in given.items():
        if isinstance(table, dict):
            lines += ["", f"[{key}]", *(_entry(_toml(name), value) for name, value in table.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_splits(path: Path, names: Sequence[str]) -> Splits:
    """Read `splits.json`, which may name each of `names` once, or return no splits if there is none."""
    content = read_json(path) if path.exists() else {}
    if not _is_table_of_names(content):
        raise InputError(
            f"'{path}' must map split names to lists of case names, got something else; "
            'write it as {"fit": ["a"], "validation": ["b"], "test": ["c"]}'
        )
    split_of: dict[str, str] = {}
    known = set(names)
    for split, members in content.items():
        for name in members:
            if name not in known:
                raise InputError(
                    f"'{path}' must name cases of the folder, got '{name}' in split '{split}', "
                    "which has no scores; remove it or add its files"
                )
            if name in split_of:
                raise InputError(
                    f"'{path}' must name each case once, got '{name}' in '{split_of[name]}' and in "
                    f"'{split}'; remove one of them"
                )
            split_of[name] = split
    return {split: tuple(members) for split, members in content.items()}


def check_background(background: int | None, num_classes: int) -> int | None:
    """`background`; raise unless it is a class or None."""
    if background is not None and not 0 <= background < num_classes:
        raise InputError(
            f"background must be a class in 0..{num_classes - 1}, got {background}; leave it out where there is none"
        )
    return background


def check_scores(scores: object) -> None:
    """Raise unless `scores` is one of the two kinds."""
    if scores not in get_args(Scores):
        raise InputError(f"scores must be {_KINDS}, got {scores!r}; choose one of them")


def _entry(key: str, value: object) -> str:
    return f"{key} = {_toml(value)}"


def _toml(value: object) -> str:
    r"""A string, a number or a list of them as TOML.

    Examples:
        >>> print(_toml(('say "no"', 2.5, "ü")))
        ["say \"no\"", 2.5, "ü"]
    """
    if isinstance(value, str):
        # JSON escapes what TOML asks for, except the delete character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return repr(value)


def _frozen(value: Any) -> Any:
    """`value` with tuples for lists."""
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: object, member: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(member(entry) for entry in value)


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def _is_expression(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except re.error:
        return False


def _is_group(value: object) -> bool:
    return _is_expression(value) or (isinstance(value, dict) and all(_is_name(entry) for entry in value.values()))


def _is_length(value: object) -> bool:
    return (_is_int(value) or isinstance(value, float)) and 0 < value < math.inf  # type: ignore[operator]


def _is_lengths(value: object) -> bool:
    return _is_list(value, _is_length) and value != []


def _is_spacing(value: object) -> bool:
    return _is_lengths(value) or (isinstance(value, dict) and all(_is_lengths(entry) for entry in value.values()))


def _is_channels(value: object) -> bool:
    labels = value.values() if isinstance(value, dict) else ()
    return bool(labels) and all(_is_int(own) or (_is_list(own, _is_int) and own != []) for own in labels)


def _is_table_of_names(content: object) -> bool:
    return isinstance(content, dict) and all(_is_list(members, _is_name) for members in content.values())


_KINDS = " or ".join(f'"{kind}"' for kind in get_args(Scores))

_REQUIRED: dict[str, tuple[Callable[[object], bool], str]] = {
    "classes": (lambda value: _is_list(value, _is_name) and value != [], "a list of names"),
    "ignore_index": (
        lambda value: _is_int(value) or _is_list(value, _is_int),
        "a whole number or a list of them",
    ),
    "background": (_is_int, "a whole number"),
    "scores": (lambda value: isinstance(value, str) and value in get_args(Scores), _KINDS),
    "activation": (lambda value: isinstance(value, str) and value in get_args(Activation), '"softmax" or "sigmoid"'),
    "channels": (_is_channels, "a table of channel names and the label, or list of labels, of each"),
    "group": (_is_group, "a regular expression or a table of case names and groups"),
    "geometry": (_is_name, "the path of a folder"),
    "spacing": (_is_spacing, "a list of lengths above 0, or a table of case names and such lists"),
}
