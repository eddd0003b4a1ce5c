"""What segcal.toml and splits.json say about a folder, and a sentence for what they must not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from segcal.data.folders.folder import open_folder
from segcal.types import InputError
from support.scenes import (
    complaint,
    labels_of,
    logits_of,
    save,
    write_arrays,
    write_nifti_case,
)


def test_settings_and_what_overrides_them(tmp_path: Path) -> None:
    toml = 'classes = ["sky", "road", "car", "tree", "void"]\nignore_index = [4, 255]\nbackground = 0\n'
    write_arrays(tmp_path, toml=toml)
    folder = open_folder(tmp_path)
    assert folder.class_names == ("sky", "road", "car", "tree", "void")
    assert (folder.num_classes, folder.ignore_index, folder.background) == (5, (4, 255), 0)
    other = open_folder(tmp_path, ignore_index=3, background=1, num_classes=5)
    assert (other.ignore_index, other.background) == ((3,), 1)
    (tmp_path / "segcal.toml").write_bytes(b"\xef\xbb\xbfignore_index = 255")  # some editors write a byte order mark
    assert open_folder(tmp_path).ignore_index == (255,)
    (tmp_path / "segcal.toml").write_text('class_names = ["a", "b", "c", "d", "e"]')  # as the library's arguments
    assert open_folder(tmp_path).class_names == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (
            "klasses = []",
            "may set classes, ignore_index, background, scores, activation, channels, group, geometry, spacing, "
            "got 'klasses'; did you mean 'classes'?",
        ),
        ("classes = 3", "classes must be a list of names, got 3"),
        ("classes = [1, 2]", "classes must be a list of names, got [1, 2]"),
        ('ignore_index = "void"', "ignore_index must be a whole number or a list of them, got 'void'"),
        ("ignore_index = [1, true]", "ignore_index must be a whole number or a list of them"),
        ("background = true", "background must be a whole number, got True"),
        ('scores = "softmax"', 'scores must be "logits" or "probabilities", got \'softmax\''),
        ('scores = ["logits"]', "scores must be"),
        ('group = "("', "group must be a regular expression or a table of case names and groups, got '('"),
        ("group = {a = 1}", "group must be a regular expression or a table of case names and groups, got {'a': 1}"),
        ('group = {x = "v"}', "group in segcal.toml must name cases of the folder, got 'x'"),
        ("spacing = [1, 0]", "spacing must be a list of lengths above 0, or a table"),
        ("spacing = [1, nan]", "spacing must be a list of lengths above 0, or a table"),
        ("spacing = {a = 2}", "spacing must be a list of lengths above 0, or a table"),
        ("spacing = {x = [1, 1]}", "spacing in segcal.toml must name cases of the folder, got 'x'"),
        (
            "spacing = [1, 1, 1]",
            "spacing must have 2 lengths, one for each spatial axis, got (1.0, 1.0, 1.0) of case 'a'",
        ),
        ("classes = [", "segcal.toml' is not readable TOML"),
        ("background = 5", "background must be a class in 0..4, got 5"),
    ],
)
def test_wrong_settings(tmp_path: Path, toml: str, expected: str) -> None:
    assert expected in complaint(write_arrays(tmp_path, toml=toml))


def test_wrong_arguments(tmp_path: Path) -> None:
    write_arrays(tmp_path, toml='classes = ["a", "b", "c", "d", "e"]')
    assert "got 4 while" in complaint(tmp_path, num_classes=4)
    assert "scores must be" in complaint(tmp_path, scores="softmax")
    assert "num_classes must be at least 1, got 0" in complaint(tmp_path, num_classes=0)


@pytest.mark.parametrize(
    ("expression", "groups"),
    [
        ("^[a-z]+_(\\\\d+)", ["1", "1", "2", None]),
        ("^[a-z]+_\\\\d+", ["v_1", "v_1", "v_2", None]),
        (None, [None] * 4),
    ],
)
def test_groups(tmp_path: Path, expression: str | None, groups: list[str | None]) -> None:
    for name in ("v_1_a", "v_1_b", "v_2_a", "w"):
        save(tmp_path / f"logits/{name}.npy", logits_of())
        save(tmp_path / f"labels/{name}.npy", labels_of())
    if expression:
        (tmp_path / "segcal.toml").write_text(f'group = "{expression}"')
    assert [case.group for case in open_folder(tmp_path)] == groups


def test_groups_and_spacings_by_name_and_spacing_for_all(tmp_path: Path) -> None:
    write_arrays(tmp_path, "ab", toml='[group]\na = "patient 7"\n[spacing]\nb = [0.5, 2]\n')
    first, second = open_folder(tmp_path)
    assert (first.group, first.spacing) == ("patient 7", None)
    assert (second.group, second.spacing) == (None, (0.5, 2))
    (tmp_path / "segcal.toml").write_text("spacing = [0.5, 2]")
    assert [case.spacing for case in open_folder(tmp_path)] == [(0.5, 2)] * 2


def test_spacing_of_a_header_goes_before_the_settings(tmp_path: Path) -> None:
    write_nifti_case(tmp_path, "last")
    (tmp_path / "segcal.toml").write_text("spacing = [1, 1, 1]")
    assert open_folder(tmp_path)[0].spacing == (4.0, 3.0, 2.0)


def test_splits(tmp_path: Path) -> None:
    write_arrays(tmp_path, "abcd")
    (tmp_path / "splits.json").write_text(json.dumps({"fit": ["c", "a"], "test": ["b"], "spare": []}))
    folder = open_folder(tmp_path)
    assert folder.names == ("a", "b", "c", "d")
    assert open_folder(tmp_path, split="fit").names == folder.select("fit").names == ("c", "a")
    assert [case.name for case in folder.select("test")] == ["b"]
    assert folder.subset(["d", "b"]).names == ("d", "b")
    assert "got 'train'; present: 'fit', 'test', 'spare'" in complaint(tmp_path, split="train")
    assert "split 'spare' must hold a case" in complaint(tmp_path, split="spare")
    with pytest.raises(InputError, match="'e' must be a case of"):
        folder.subset(["a", "e"])
    with pytest.raises(InputError, match="got 'a' more often"):
        folder.subset(["a", "a"])


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ({"fit": ["a"], "test": ["b", "a"]}, "got 'a' in 'fit' and in 'test'"),
        ({"fit": ["a", "a"]}, "got 'a' in 'fit' and in 'fit'"),
        ({"fit": ["a", "x"]}, "got 'x' in split 'fit'"),
        (["a"], "must map split names to lists of case names"),
        ({"fit": "a"}, "must map split names to lists of case names"),
    ],
)
def test_wrong_splits(tmp_path: Path, splits: Any, expected: str) -> None:
    write_arrays(tmp_path)
    (tmp_path / "splits.json").write_text(json.dumps(splits))
    assert expected in complaint(tmp_path)


def test_split_without_file_and_broken_file(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    assert "splits.json', which does not exist" in complaint(tmp_path, split="fit")
    (tmp_path / "splits.json").write_text("{")
    assert "not readable JSON" in complaint(tmp_path)
