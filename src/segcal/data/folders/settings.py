"""The files that describe a folder: `segcal.toml` (settings, such as its classes or channels) and `splits.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from segcal.data.io.base import Shape
from segcal.files import read_json, read_toml
from segcal.files.reading import NUMBER, TEXT, WHOLE, Kind, any_of, list_of, not_empty, one_of, problem, table_of
from segcal.functional.channels import channel_labels
from segcal.functional.checks import IGNORED
from segcal.text import suggestion
from segcal.types import Activation, Array, InputError

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

    def overridden(self, **values: Any) -> FolderSettings:
        """Return these settings with other values; None leaves a setting as it is."""
        return replace(self, **{key: value for key, value in values.items() if value is not None})

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


@dataclass(frozen=True, slots=True)
class Classes:
    """Declared classes or channels, and how stored labels become masks of the channels.

    Args:
        activation: Softmax for classes, sigmoid for channels.
        count: Their number, if it is known.
        names: Their names, if they are known; two may name both classes of a single channel.
        ignored: Labels that are ignored in the files.
        members: The labels of each channel in a label map `[*S]`; None if masks are stored, as `[C, *S]` or, for a
            single channel, as `[*S]`.
    """

    activation: Activation
    count: int | None
    names: tuple[str, ...] | None
    ignored: tuple[int, ...]
    members: Channels | None = None

    @property
    def ignored_in_cases(self) -> tuple[int, ...]:
        """Labels that are ignored in the cases: -1 in masks that are made from a label map."""
        return self.ignored if self.members is None or not self.ignored else (IGNORED,)

    def masks_of(self, labels: Array) -> Array:
        """Return labels as stored, or the masks of a label map."""
        return labels if self.members is None else channel_labels(labels, list(self.members.values()), self.ignored)

    def are_by_channel(self, shape: Shape, scores: Shape, path: Path) -> bool:
        """Return whether labels of this shape have a channel axis, given the shape of the scores as stored.

        Three axes beside three are C channels of images, or one channel of volumes without its axis: which of them must
        be declared.
        """
        if self.members is not None or len(shape) < 3 or (len(shape), len(scores)) == (3, 4):
            return False
        if len(shape) == 4 or shape[0] == 1 or len(scores) == 2:
            return True
        many = self.count or len(self.names or ())
        if not many:
            raise InputError(
                f"labels of shape {shape} beside scores of shape {scores} are masks of {shape[0]} channels, or one "
                f"mask of a volume, which '{path}' does not say; give num_classes, or name the channels in segcal.toml "
                '(classes = ["a", "b"])'
            )
        return shape[0] == many


def read_settings(path: Path) -> FolderSettings:
    """Return what `segcal.toml` says, or empty settings if there is none."""
    table = read_toml(path) if path.exists() else {}
    if "class_names" in table and "classes" not in table:  # what the arguments of the library call them
        table["classes"] = table.pop("class_names")
    for unknown in sorted(set(table) - set(_REQUIRED)):
        hint = suggestion(unknown, _REQUIRED) or "; remove it or correct its spelling"
        raise InputError(f"'{path}' may set {', '.join(_REQUIRED)}, got '{unknown}'{hint}")
    for key, value in table.items():
        if problem(value, _REQUIRED[key]):
            raise InputError(f"{key} must be {_REQUIRED[key].words}, got {value!r} in '{path}'; correct it")
    return FolderSettings(**{key: _frozen(value) for key, value in table.items()})


def write_settings(path: Path, settings: FolderSettings) -> None:
    """Write what is not None as `segcal.toml`."""
    given = {key: value for key in _REQUIRED if (value := getattr(settings, key)) is not None}
    lines = [f"{key} = {_toml(value)}" for key, value in given.items() if not isinstance(value, dict)]
    for key, table in given.items():
        if isinstance(table, dict):
            lines += ["", f"[{key}]", *(f"{_toml(name)} = {_toml(value)}" for name, value in table.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_splits(path: Path, names: Sequence[str]) -> Splits:
    """Read `splits.json`, which may name each of `names` once, or return no splits if there is none."""
    content = read_json(path) if path.exists() else {}
    if problem(content, _SPLITS):
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


def _toml(value: object) -> str:
    r"""A string, a number or a list of them as TOML.

    Examples:
        >>> print(_toml(('say "no"', 2.5, "ü")))
        ["say \"no\"", 2.5, "ü"]
    """
    # JSON writes them as TOML asks for, except the delete character
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _frozen(value: Any) -> Any:
    """`value` with tuples for lists."""
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _is_expression(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except re.error:
        return False


_SCORES = one_of(*get_args(Scores))
_LENGTHS = not_empty(list_of(Kind("a length above 0", lambda value: NUMBER.accepts(value) and value > 0)))
_LABELS = any_of("a label, or a list of labels", WHOLE, not_empty(list_of(WHOLE)))
_SPLITS = table_of(list_of(TEXT))

_REQUIRED = {
    "classes": any_of("a list of names", not_empty(list_of(TEXT))),
    "ignore_index": any_of("a whole number or a list of them", WHOLE, list_of(WHOLE)),
    "background": WHOLE,
    "scores": _SCORES,
    "activation": one_of(*get_args(Activation)),
    "channels": any_of(
        "a table of channel names and the label, or list of labels, of each", not_empty(table_of(_LABELS))
    ),
    "group": any_of(
        "a regular expression or a table of case names and groups", Kind("", _is_expression), table_of(TEXT)
    ),
    "geometry": Kind("the path of a folder", TEXT.accepts),
    "spacing": any_of(
        "a list of lengths above 0, or a table of case names and such lists", _LENGTHS, table_of(_LENGTHS)
    ),
}
