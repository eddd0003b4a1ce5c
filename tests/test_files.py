"""Output appears whole or not at all, and nothing that segcal did not write is ever replaced."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from segcal.files import MARKER, read_json, staged_file, staged_folder, write_json
from segcal.types import InputError


class BrokenError(Exception):
    pass


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def write(folder: Path, content: str) -> None:
    with staged_folder(folder) as staging:
        (staging / MARKER).write_text("{}")
        (staging / "part").write_text(content)


@pytest.mark.parametrize("name", ["out", "out/", "deep/er/out"])
def test_folder_appears_when_the_block_ends(tmp_path: Path, name: str) -> None:
    with staged_folder(f"{tmp_path}/{name}") as staging:
        (staging / "part").write_text("one")
        assert not (tmp_path / name).exists()
        assert staging.parent == (tmp_path / name).parent  # one file system, so that renaming cannot copy
    assert everything(tmp_path / name) == {"part"}
    assert everything((tmp_path / name).parent) == {(tmp_path / name).name, f"{(tmp_path / name).name}/part"}


def test_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    with staged_file(tmp_path / "deep" / "a.nii.gz") as staging:
        staging.write_text("one")
        assert staging.name.endswith(".nii.gz")  # writers go by the extension
        assert not (tmp_path / "deep" / "a.nii.gz").exists()
    assert everything(tmp_path) == {"deep", "deep/a.nii.gz"}


@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
@pytest.mark.parametrize("staged", [staged_folder, staged_file])
@pytest.mark.parametrize("existing", [False, True])
def test_nothing_is_left_of_a_failure(tmp_path: Path, staged, error: type[BaseException], existing: bool) -> None:
    if existing:
        if staged is staged_folder:
            write(tmp_path / "out", "old")
        else:
            (tmp_path / "out").write_text("old")
    before = everything(tmp_path)

    def fail() -> None:
        with staged(tmp_path / "out") as staging:
            (staging / "part" if staged is staged_folder else staging).write_text("new")
            raise error

    with pytest.raises(error):
        fail()
    assert everything(tmp_path) == before
    kept = tmp_path / "out" / "part" if staged is staged_folder else tmp_path / "out"
    assert not existing or kept.read_text() == "old"


def test_own_folder_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with staged_folder(tmp_path / "out") as staging:
        (staging / "other").write_text("new")
        assert (tmp_path / "out" / "part").read_text() == "old"
    assert everything(tmp_path) == {"out", "out/other"}


def test_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "part").read_text() == "new"


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds files that segcal did not write"):
        write(tmp_path / "out", "new")
    assert everything(tmp_path) == {"out", "out/thesis.tex"}


def test_folder_over_a_file_and_file_over_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    with (
        pytest.raises(InputError, match="is a file, and a folder is to be written there"),
        staged_folder(tmp_path / "file"),
    ):
        pass
    with (
        pytest.raises(InputError, match="is a folder, and a file is to be written there"),
        staged_file(tmp_path / "folder"),
    ):
        pass
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("staged", [staged_folder, staged_file])
def test_unwritable_parent_is_told(tmp_path: Path, staged) -> None:
    (tmp_path / "file").write_text("kept")
    with (
        pytest.raises(InputError, match=r"cannot write to '.*out'.*; choose another output"),
        staged(tmp_path / "file" / "sub" / "out"),
    ):
        pass
    assert everything(tmp_path) == {"file"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("staged", [staged_folder, staged_file])
def test_forbidden_parent_is_told(tmp_path: Path, staged) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(InputError, match="Permission denied"), staged(tmp_path / "shut" / "out"):
        pass


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_rights_are_those_of_any_new_file(tmp_path: Path, mask: int) -> None:
    """Temporary files are private to begin with; what is left behind must not be."""
    before = os.umask(mask)
    try:
        write(tmp_path / "folder", "")
        with staged_file(tmp_path / "file") as staging:
            staging.write_text("")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o777 & ~mask
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


def test_json_there_and_back(tmp_path: Path) -> None:
    content = {"name": "Übung", "values": [1, 2.5, None]}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content == json.loads((tmp_path / "a.json").read_text("utf-8"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_nan(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"value": value})


def test_unreadable_json_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.json' is missing; is .* the right folder"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match=r"a\.json' is not readable JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match=r"a\.json' is not readable JSON"):
        read_json(tmp_path / "a.json")
