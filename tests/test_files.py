"""Output appears whole or not at all, and nothing that segcal did not write is ever replaced."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch

from segcal.calibrators.saving import write_calibrator
from segcal.files import (
    MARKER,
    check_output_file,
    read_json,
    read_toml,
    refuse_foreign,
    refuse_overwriting,
    release_pages,
    signed_file,
    staged_file,
    staged_folder,
    staged_store,
    write_json,
)
from segcal.files.outputs import _staged
from segcal.training.checkpoints import Checkpoints, TrainingState
from segcal.types import InputError
from support.commands import everything
from support.program import printed_by


class BrokenError(Exception):
    pass


def write(folder: Path, content: str) -> None:
    with staged_folder(folder) as staging:
        write_json(staging / MARKER, {"format": 1})
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


@pytest.mark.parametrize("staged", [staged_folder, staged_file])
@pytest.mark.parametrize("existing", [False, True])
def test_nothing_is_left_of_a_failure(tmp_path: Path, staged, existing: bool) -> None:
    if existing:
        if staged is staged_folder:
            write(tmp_path / "out", "old")
        else:
            (tmp_path / "out").write_text("old")
    before = everything(tmp_path)

    def fail() -> None:
        with staged(tmp_path / "out") as staging:
            (staging / "part" if staged is staged_folder else staging).write_text("new")
            raise BrokenError

    with pytest.raises(BrokenError):
        fail()
    assert everything(tmp_path) == before
    kept = tmp_path / "out" / "part" if staged is staged_folder else tmp_path / "out"
    assert not existing or kept.read_text() == "old"


def test_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "part").read_text() == "new"


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
def test_unwritable_parent_is_reported(tmp_path: Path, staged) -> None:
    (tmp_path / "file").write_text("kept")
    with (
        pytest.raises(InputError, match=r"cannot write to '.*out'.*; choose another output"),
        staged(tmp_path / "file" / "sub" / "out"),
    ):
        pass
    assert everything(tmp_path) == {"file"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_rights_are_those_of_any_new_file(tmp_path: Path, mask: int) -> None:
    """Files of PyTorch's and safetensors' own writers are private; learned values and checkpoints must not be."""
    before = os.umask(mask)
    try:
        with staged_folder(tmp_path / "folder") as staging:
            write_json(staging / MARKER, {"format": 1})
            (staging / "deep").mkdir()
            (staging / "deep" / "part").touch()
        with staged_file(tmp_path / "file") as staging:
            staging.write_text("")
        write_calibrator(tmp_path / "folder", "ts", {}, None, {"inverse_temperature": torch.ones(())})
        Checkpoints(tmp_path / "folder" / "run", {}).save(TrainingState(1, {"weight": torch.ones(2)}, {}))
    finally:
        os.umask(before)
    for path in (tmp_path / "folder", *(tmp_path / "folder").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


def test_folders_inside_a_shared_folder_stay_with_its_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    with staged_folder(tmp_path / "out") as staging:
        write_json(staging / MARKER, {"format": 1})
        (staging / "deep").mkdir()
    assert all(path.stat().st_mode & stat.S_ISGID for path in (tmp_path / "out", tmp_path / "out" / "deep"))


def test_json_there_and_back(tmp_path: Path) -> None:
    content = {"name": "Übung", "values": [1, 2.5, None]}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content == json.loads((tmp_path / "a.json").read_text("utf-8"))
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            write_json(tmp_path / "a.json", {"value": value})
    with pytest.raises(InputError, match=r"b\.json' is missing; is .* the right folder"):
        read_json(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((f'{{"value": [1.5, {text}]}}', f"{text} is not a finite number") for text in ("NaN", "-Infinity", "1e400")),
        ("{", "Expecting property name"),
        ("\xff\xfe{", "codec can't decode"),
        ('{"labels": {"liver": 1, "liver": 2}}', "one table has the key 'liver' more than once"),
    ],
)
def test_unreadable_json_is_reported(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=rf"a\.json' is not readable JSON \(.*{reason}"):
        read_json(tmp_path / "a.json")


# --------------------------------------------------------------------------------------------------------------------
# killed processes, and several of them


class Interruption:
    """Raise KeyboardInterrupt at a line of `segcal.files`, counted in the order in which they are run."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, _: object) -> Interruption | None:
        if Path(frame.f_code.co_filename).parent.name != "files":
            return None
        self.left -= event == "line"
        if self.left == 0 and event == "line":
            raise KeyboardInterrupt
        return self


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that were just opened
@pytest.mark.parametrize("kind", ["file", "folder", "store"])
def test_an_interruption_at_any_line_leaves_the_old_output_or_the_new_one(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segcal.files.outputs.sync", lambda _: None)  # hundreds of these take minutes
    out, writing = tmp_path / "out.zarr", {"file": staged_file, "folder": staged_folder, "store": staged_store}[kind]

    def publish(text: str) -> None:
        with writing(out) as staging:
            (staging if kind == "file" else staging / MARKER).write_text(text)

    line, finished, before = 0, False, sys.gettrace()
    while not finished:
        publish('{"is": "old"}')
        line += 1
        try:
            sys.settrace(Interruption(line))
            publish('{"is": "new"}')
            finished = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        _staged.clear()  # random names, which one that is interrupted may leave in memory
        assert [path.name for path in tmp_path.iterdir()] == ["out.zarr"], f"line {line} leaves something behind"
        assert read_json(out if kind == "file" else out / MARKER)["is"] in ("old", "new")
    assert line > 30


DYING = """
import os, sys
from pathlib import Path
from segcal import files
rename = Path.rename

def write_until(stop, out):
    calls = []
    def dying(self, target):
        if len(calls) == stop:
            os._exit(9)
        calls.append(self)
        return rename(self, target)
    Path.rename = Path.replace = dying
    files.outputs.shutil.rmtree = lambda *_, **__: os._exit(9)
    with files.staged_folder(out) as folder:
        (folder / files.MARKER).write_text("{}")
        (folder / "part").write_text("new")

for stop, out in enumerate(sys.argv[1:]):
    if not (child := os.fork()):
        write_until(stop, out)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Killed (not interrupted) around the renames: the old folder or the new one is there after the next run fails."""
    places = [tmp_path / moment for moment in ("before", "between", "after")]
    for place in places:
        write(place / "out", "old")
    assert printed_by("-c", DYING, *(place / "out" for place in places)).split() == ["9"] * 3

    def fail(out: Path) -> None:
        with staged_folder(out):
            raise BrokenError

    for place in places:
        assert len(everything(place)) > 3, "it left something behind"
        with pytest.raises(BrokenError):
            fail(place / "out")
        assert everything(place) == {"out", "out/part", f"out/{MARKER}"}
        assert (place / "out" / "part").read_text() == ("new" if place.name == "after" else "old")


def test_leftovers_of_other_outputs_are_left_alone(tmp_path: Path) -> None:
    gone = {".out.partial-abcd1234"}
    stay = {".out2.partial-abcd1234", ".outs", ".out.lock", ".out.partial-versions", ".out.old-releases"}
    for name in (*gone, *stay, ".out.old-abcd1234.bak"):
        (tmp_path / name).mkdir()
    write(tmp_path / "out", "new")
    kept = {path.name for path in tmp_path.iterdir()}
    assert stay < kept
    assert not gone & kept


@pytest.mark.parametrize("staged", [staged_folder, staged_file])
@pytest.mark.parametrize("name", ["x" * 255, f"{'ü' * 125}.nii"])
def test_names_as_long_as_any(tmp_path: Path, name: str, staged) -> None:
    """For which the hidden names of unfinished output would be too long."""
    target = tmp_path / name
    with staged(target) as staging:
        pass
    staging.mkdir()  # as a killed process leaves it
    with staged(target) as staging:
        (staging / "part" if staged is staged_folder else staging).write_text("new")
        with pytest.raises(InputError, match="is being written by another process"), staged(target):
            pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", [".out.partial-01234567", ".out.old-89abcdef.npy", ".out.segcal-lock"])
@pytest.mark.parametrize("staged", [staged_folder, staged_file])
def test_an_output_that_the_next_run_would_remove_is_refused(tmp_path: Path, name: str, staged) -> None:
    with pytest.raises(InputError, match="a name of unfinished output"), staged(tmp_path / name):
        pass
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("staged", [staged_folder, staged_file])
def test_a_second_writer_is_refused(tmp_path: Path, staged) -> None:
    with staged(tmp_path / "out") as staging:
        (staging / "part" if staged is staged_folder else staging).write_text("first")
        with (
            pytest.raises(InputError, match="is being written by another process; wait for it"),
            staged(tmp_path / "out"),
        ):
            pass
        with staged(tmp_path / "other") as beside:
            (beside / "part" if staged is staged_folder else beside).write_text("another output")
    kept = tmp_path / "out" / "part" if staged is staged_folder else tmp_path / "out"
    assert kept.read_text() == "first"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_staged_folder_may_be_staged_again(tmp_path: Path) -> None:
    """As when results are saved together with their portraits."""
    with staged_folder(tmp_path / "out") as outer:
        write(outer, "rows")
        write(outer / "portraits", "faces")
        assert not (tmp_path / "out").exists()
    assert everything(tmp_path / "out") == {MARKER, "part", "portraits", "portraits/part", f"portraits/{MARKER}"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_publication_restores_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", "old")
    publish = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(28, "No space left on device")
        return publish(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "out", "new")
    assert everything(tmp_path) == {"out", "out/part", f"out/{MARKER}"}
    assert (tmp_path / "out" / "part").read_text() == "old"


def test_everything_is_on_disk_before_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("segcal.files.outputs.sync", lambda path: synced.append(path.name))
    with staged_folder(tmp_path / "out") as staging:
        (staging / "deep").mkdir()
        with staged_file(staging / "deep" / "a.txt") as file:
            file.write_text("a")
        assert synced == [], "what lies in a staged folder is synced with it, once"
    assert set(synced[:-2]) == {"deep", "a.txt"}
    assert synced[-2].startswith(".out.partial-")
    assert synced[-1] == tmp_path.name
    with staged_file(tmp_path / "b.txt") as file:
        file.write_text("b")
    assert synced[-2].startswith(".b.txt.partial-")


# --------------------------------------------------------------------------------------------------------------------
# what must not be written


@pytest.mark.parametrize("kind", ["method", "results", "probabilities", "data", "maps"])
def test_folders_of_another_kind_are_refused(tmp_path: Path, kind: str) -> None:
    with staged_folder(tmp_path / "out") as staging:
        write_json(staging / MARKER, {"format": 1, kind: {}})
    refuse_foreign(tmp_path / "out", kind)
    for other in {"method", "results", "maps"} - {kind}:
        with pytest.raises(InputError, match="must not replace; choose another output folder"):
            refuse_foreign(tmp_path / "out", other)


def test_files_that_must_not_be_written(tmp_path: Path) -> None:
    data, results = tmp_path / "data", tmp_path / "results"
    (data / "logits").mkdir(parents=True)
    (data / "logits" / "a.npy").write_text("scores")
    write(results, "rows")
    for out, words in (
        (data / "logits" / "a.npy", "is read from"),
        (data / "page.html", "is read from"),
        (tmp_path / "page.npy", "must be a name that ends in .html, got '.npy'"),
        (tmp_path, "is read from"),
        (results, "is a folder"),
        (results / MARKER, "must be a name that ends in .html"),
    ):
        with pytest.raises(InputError, match=words):
            check_output_file(out, (".html",), data)
    for name, end in ((MARKER, ".json"), ("page.html", ".html")):
        with pytest.raises(InputError, match="lies in a folder that segcal wrote"):
            check_output_file(results / name, (end,))
    check_output_file(None, (".html",), data)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not report resident pages")
def test_pages_of_large_maps_are_released(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(1 << 23, np.float32))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)

    def resident() -> int:
        maps = Path("/proc/self/smaps").read_text().partition("a.npy")[2]
        return int(maps.partition("Rss:")[2].split()[0])

    assert mapped[1:].sum() == (1 << 23) - 1
    assert resident() > 30_000
    release_pages(mapped[1:], least=1 << 26)
    assert resident() > 30_000, "smaller ones stay"
    release_pages(mapped[1:], least=1 << 20)  # a part of a map releases all of it
    assert resident() < 100
    assert mapped.sum() == 1 << 23
    changed = np.load(tmp_path / "a.npy", mmap_mode="c", allow_pickle=False)
    changed[0] = 7
    release_pages(changed, least=0)
    assert changed[0] == 7, "what was written to a copy on write is kept"
    release_pages(np.ones(3))


def a_file(out: Path) -> None:
    remove(out)
    out.write_text("thesis")


def a_file_inside(out: Path) -> None:
    out.mkdir(exist_ok=True)
    (out / "notes").write_text("thesis")


def an_edit(out: Path) -> None:
    if not out.exists():
        a_file_inside(out)
    (out / "part").write_text("thesis")


def a_link(out: Path) -> None:
    remove(out)
    (out.parent / "thesis").write_text("thesis")
    out.symlink_to("thesis")


def a_link_to_a_folder(out: Path) -> None:
    remove(out)
    a_file_inside(out.parent / "thesis")
    out.symlink_to("thesis")


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("intrude", [a_file, a_file_inside, an_edit, a_link, a_link_to_a_folder])
def test_what_appears_at_the_output_while_it_is_written_stays(
    intrude: Callable[[Path], None], old: bool, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if old:
        write(out, "old")

    def work() -> None:
        with staged_folder(out) as staging:
            (staging / "part").write_text("new")
            intrude(out)
            before.extend(path for path in tmp_path.rglob("*") if not path.is_relative_to(staging))

    before = list[Path]()
    with pytest.raises((InputError, OSError)):
        work()
    assert sorted(tmp_path.rglob("*")) == sorted(path for path in before if not path.name.endswith("lock"))
    assert "thesis" in {path.read_text() for path in before if path.is_file()}


@pytest.mark.parametrize("end", [".tex", ".csv"])
@pytest.mark.parametrize("intrude", [a_file, a_link])
def test_what_appears_at_an_output_file_while_it_is_written_stays(
    intrude: Callable[[Path], None], end: str, tmp_path: Path
) -> None:
    out = tmp_path / f"out{end}"

    def work() -> None:
        with signed_file(out) as staging:
            staging.write_text("new")
            intrude(out)

    with pytest.raises(InputError, match="exists, and"):
        work()
    assert out.read_text() == "thesis"
    assert {path.name for path in tmp_path.iterdir()} <= {out.name, "thesis"}


SIGNED = (".html", ".json", ".tex", ".md", ".png", ".pdf", ".svg", ".onnx", ".npz")
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


def written(out: Path) -> bytes:
    """Write a file as segcal does, and return its content."""
    with signed_file(out) as staging:
        contents = {".png": b"\x89PNG" + PNG_END, ".json": b'{\n  "a": 1\n}\n', ".npz": b"PK text\0\0"}
        staging.write_bytes(contents.get(out.suffix, b"text"))
    return out.read_bytes()


@pytest.mark.parametrize("end", [*SIGNED, ".csv", ".parquet", ".pt2", ".txt"])
def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path, end: str) -> None:
    out = tmp_path / f"mine{end}"
    check_output_file(out, (end,))
    out.touch()
    check_output_file(out, (end,))
    out.write_text("my own work")
    why = "segcal did not write it, or it was changed" if end in SIGNED else f"a file that ends in '{end}' cannot tell"
    for attempt in (lambda: check_output_file(out, (end,)), lambda: written(out)):
        with pytest.raises(InputError, match=f"exists, and {why}.*; choose another name, or remove it"):
            attempt()
    assert out.read_text() == "my own work"


@pytest.mark.parametrize("end", SIGNED)
def test_a_signed_file_is_replaced_until_someone_changes_it(tmp_path: Path, end: str) -> None:
    """What is pasted from it into a document, before or after other text, is no signature of that document."""
    out = tmp_path / f"table{end}"
    first = written(out)
    assert written(out) == first
    edited = first.replace(b"segcal", b"segcaL")
    for changed in (b"my thesis\n" + first, first + b"my conclusions\n", edited, first[:-1]):
        out.write_bytes(changed)
        with pytest.raises(InputError, match="segcal did not write it, or it was changed since"):
            written(out)
        assert out.read_bytes() == changed
    if end == ".json":
        assert json.loads(first)["a"] == 1


def spoil_marker(folder: Path, **changes: object) -> None:
    content = {**read_json(folder / MARKER), **changes}
    write_json(folder / MARKER, {key: value for key, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("notes.txt", lambda folder: (folder / "notes.txt").write_text("mine")),
        ("notes.txt", lambda folder: [shutil.rmtree(folder), folder.mkdir(), (folder / "notes.txt").touch()]),
        ("deep/notes.txt", lambda folder: [(folder / "deep").mkdir(), (folder / "deep/notes.txt").write_text("mine")]),
        ("part", lambda folder: (folder / "part").write_text("mine")),
        ("link", lambda folder: (folder / "link").symlink_to("part")),
        ("empty", lambda folder: (folder / "empty").mkdir()),
        (MARKER, lambda folder: [spoil_marker(folder, files=None), (folder / "part").unlink()]),
        (MARKER, lambda folder: [spoil_marker(folder, files={}), (folder / "part").unlink()]),
        (MARKER, lambda folder: spoil_marker(folder, notes="mine")),
    ],
)
def test_changed_and_foreign_files_in_a_folder_keep_it(tmp_path: Path, name: str, spoil) -> None:
    """A folder is replaced as segcal wrote it; what users add to it or change in it stays."""
    out = tmp_path / "out"
    write(out, "old")
    write(out, "again")
    spoil(out)
    before = everything(tmp_path)
    with pytest.raises(InputError, match=f"holds files that segcal did not write \\('{name}'\\)"):
        write(out, "new")
    assert everything(tmp_path) == before


def test_a_link_in_place_of_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "latest.md").symlink_to("deep/page.md")
    for text in ("first", "second"):
        with signed_file(tmp_path / "latest.md") as staging:
            staging.write_text(text)
    assert (tmp_path / "latest.md").is_symlink()
    assert (tmp_path / "deep" / "page.md").read_text().startswith("second")


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_in_place_of_a_file_is_not_replaced(tmp_path: Path, linked: bool) -> None:
    """A device would not be either, such as /dev/zero, which root could replace."""
    os.mkfifo(tmp_path / "pipe")
    out = tmp_path / "link" if linked else tmp_path / "pipe"
    if linked:
        out.symlink_to("pipe")
    with pytest.raises(InputError, match="must be a regular file, got a device, pipe or socket"), staged_file(out):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_outputs_are_not_written_where_links_of_an_input_lead(tmp_path: Path) -> None:
    data, out, other = tmp_path / "data", tmp_path / "out", tmp_path / "other"
    (data / "logits").mkdir(parents=True)
    out.mkdir()
    (out / "a.npy").touch()
    (data / "logits" / "a.npy").symlink_to(out / "a.npy")
    with pytest.raises(InputError, match=r"cannot be written to, as .*data' is read from"):
        refuse_overwriting(out, data)
    refuse_overwriting(other, data)
    (data / "round").symlink_to(data)
    refuse_overwriting(other, data)


@pytest.mark.parametrize("key", ["a.", " 'b c' .\t", '"[{," . '])
@pytest.mark.parametrize("before", ["", "x = 1\n  ", "[", "x = {y = 1, "])
def test_keys_of_many_levels_are_refused_before_they_are_parsed(
    tmp_path: Path, before: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 KB of these would take 16 GB of memory."""
    path = tmp_path / "segcal.toml"
    path.write_text("group = 'a.b" + ".c" * 200 + "'\n")
    assert read_toml(path)["group"].endswith(".c")
    path.write_text(f"{before}{key * 100}z")
    monkeypatch.setattr("segcal.files.reading.tomllib.loads", None)
    with pytest.raises(InputError, match=r"segcal\.toml' is not readable TOML \(it has more than 100 levels\)"):
        read_toml(path)


SPECIAL = {
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "deep": lambda path: path.write_text("[" * 102 + "]" * 102),
    "deeper": lambda path: path.write_text("[" * 1_000_000),
    "sparse": lambda path: [path.touch(), os.truncate(path, 6 << 30)],
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("read", [read_json, read_toml])
def test_text_that_would_take_for_ever_is_refused(tmp_path: Path, kind: str, read) -> None:
    path = tmp_path / "segcal.json"
    SPECIAL[kind](path)
    expected = {"fifo": "must be a regular file", "endless": "must be a regular file", "sparse": "at most 64 MiB"}
    with pytest.raises(InputError, match=expected.get(kind, "is not readable")):
        read(path)
