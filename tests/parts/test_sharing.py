"""Work divided between parts and processes gives the bytes of one run, and what was interrupted is continued."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import segcal
from segcal.apply import CalibratedFiles
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.data.sample.scenes import simulate
from segcal.evaluation import shared
from segcal.evaluation.run import Measuring
from segcal.files import unfinished_folder, unfinished_name
from segcal.parts.journal import Journal
from segcal.parts.work import Part
from segcal.types import Case, InputError
from support.commands import refuse, run, succeed


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five cases of different sizes, one of them large enough for two threads."""
    sizes = [(16, 14), (90, 70), (20, 15), (16, 14), (18, 33)]
    scenes = [simulate(1, num_classes=3, size=size, contrast=2.0, seed=k)[0].case for k, size in enumerate(sizes)]
    cases = [Case(f"case-{k}", scene.logits, scene.labels) for k, scene in enumerate(scenes)]
    write_folder(tmp_path / "data", {"test": cases})
    succeed("fit", tmp_path / "data", "--out", tmp_path / "ts")
    return tmp_path / "data"


SOURCE = Path(segcal.__file__).parents[1]
COMMANDS = {
    "apply": ("apply", "ts", "data", "--temperature"),
    "evaluate": ("evaluate", "data", "--calibrators", "ts", "--patch-size", "8", "--cases", "case-1"),
    "diagnose": ("diagnose", "data"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_parts_merge_to_the_bytes_of_one_run(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    asked = (*COMMANDS[name], "--floor") if name == "evaluate" else COMMANDS[name]
    printed = succeed(*asked, "--out", "whole", "--json")
    for part in ("3/3", "1/3", "2/3"):
        assert "segcal merge" in succeed(*asked, "--out", "parts", "--part", part)
    assert not Path("parts.unfinished").exists()
    assert succeed("merge", "parts", "--out", "merged", "--json").replace("merged", "whole") == printed
    assert contents(Path("merged")) == contents(Path("whole"))


def test_comparison_in_parts(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits are done once: the second part, and the merge, measure those of the first."""
    monkeypatch.chdir(data.parent)
    asked = ("compare", "data", "--methods", "ts,vector", "--fit-split", "test", "--patch-size", "8")
    for part in ("1/2", "2/2"):
        succeed(*asked, "--out", "parts", "--part", part)
    succeed("merge", "parts", "--out", "merged")
    succeed(*asked, "--out", "whole")
    merged, whole = contents(Path("merged")), contents(Path("whole"))
    assert merged.keys() == whole.keys()
    timed = {"segcal.json", "comparison.json", "ts/segcal.json", "vector/segcal.json"}  # hold the seconds of the fits
    assert [name for name in merged if merged[name] != whole[name] and name not in timed] == []
    changed = [json.loads(Path(folder, "comparison.json").read_text())[1]["changed"] for folder in ("merged", "whole")]
    assert changed[0] == changed[1]


def test_missing_and_foreign_parts_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    asked = COMMANDS["evaluate"]
    succeed(*asked, "--out", "parts", "--part", "1/2")
    assert "2 of 5 cases are not finished" in refuse("merge", "parts", "--out", "merged")
    assert "parts of another run" in refuse(*asked, "--bins", "7", "--out", "parts", "--part", "2/2")
    assert "parts of an unfinished run, which results must not" in refuse(*asked, "--out", "parts")
    assert "a part must be i/N with i in 1..N, got '3/2'" in refuse(*asked, "--out", "parts", "--part", "3/2")
    assert "--part needs --out" in refuse(*asked, "--part", "1/2")
    assert "holds no parts of a run" in refuse("merge", "ts", "--out", "merged")
    assert not Path("merged").exists()


def test_bits_do_not_depend_on_threads(data: Path, set_threads: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    for threads in (1, 2):
        set_threads(threads)
        for name in ("apply", "evaluate"):
            succeed(*COMMANDS[name], "--out", f"{name}-{threads}")
    for name in ("apply", "evaluate"):
        assert contents(Path(f"{name}-1")) == contents(Path(f"{name}-2"))


def test_order_of_findings_does_not_matter(data: Path, rng: np.random.Generator) -> None:
    folder = open_folder(data)
    measuring = Measuring.of_cases(folder, {"UC": None, "TS": segcal.load(data.parent / "ts")}, segcal.Protocol(3))
    whole, shuffled = measuring.nothing(), measuring.nothing()
    for case in folder:
        measuring.add(case, whole)
    for k in rng.permutation(len(folder)):
        single = measuring.nothing()
        measuring.add(folder[int(k)], single)
        shuffled.merge(shared.findings_from(single.to_bytes({})))
    one, other = (measuring.results(found, folder.names) for found in (whole, shuffled))
    for table in ("frame", "pooled_frame", "curve_frame", "sensitivity_frame", "volume_frame"):
        assert getattr(one, table).equals(getattr(other, table)), table


KEPT = "3 finished cases are kept in '{}', and the same command continues from there"


def test_interrupted_output_is_continued(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure at the fourth case leaves three; they are not written again, and nothing has the final name before."""
    monkeypatch.chdir(data.parent)
    asked, write, written = COMMANDS["apply"], CalibratedFiles.write, list[str]()

    def failing(self: CalibratedFiles, case: Case, pieces: Any, folder: Path) -> dict[str, int]:
        if case.name == "case-3" and len(written) == 3:
            raise KeyboardInterrupt
        written.append(case.name)
        return write(self, case, pieces, folder)

    monkeypatch.setattr(CalibratedFiles, "write", failing)
    ended = run(*asked, "--out", "probs")
    assert ended.exit_code == 130
    assert ended.stderr.strip() == f"segcal: interrupted; {KEPT.format('probs.unfinished')}"
    assert not Path("probs").exists()
    with pytest.raises(InputError, match="unfinished"):
        open_folder("probs.unfinished")
    written[:] = [*written, "interrupted"]
    succeed(*asked, "--out", "probs")
    assert written == ["case-0", "case-1", "case-2", "interrupted", "case-3", "case-4"]
    assert not Path("probs.unfinished").exists()
    # a second run writes only what has changed
    logits = np.load("data/logits/case-2.npy") * 2
    np.save("data/logits/case-2.npy", logits)
    succeed(*asked, "--out", "probs")
    assert written[6:] == ["case-2"]
    monkeypatch.undo()
    os.chdir(data.parent)
    succeed(*asked, "--out", "new")
    assert contents(Path("new")) == contents(Path("probs"))


def test_a_bad_case_costs_nothing_that_comes_before_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next case is computed while one is written; that it is bad must not spoil the one that is written."""
    monkeypatch.chdir(data.parent)
    good = np.load("data/logits/case-3.npy")
    np.save("data/logits/case-3.npy", np.where(good == good.max(), np.nan, good))
    ended = run(*COMMANDS["apply"], "--out", "probs")
    assert ended.exit_code == 2
    assert "got nan at" in ended.stderr
    assert "of case 'case-3'" in ended.stderr
    assert KEPT.format("probs.unfinished") in ended.stderr
    np.save("data/logits/case-3.npy", good)
    succeed(*COMMANDS["apply"], "--out", "probs")
    succeed(*COMMANDS["apply"], "--out", "new")
    assert contents(Path("new")) == contents(Path("probs"))


def test_interrupted_evaluation_is_continued(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    monkeypatch.setattr(shared, "_INTERVAL", 0.0)
    asked, add, seen = COMMANDS["evaluate"], Measuring.add, list[str]()

    def failing(self: Measuring, case: Case, found: object) -> None:
        if case.name == "case-3" and len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(case.name)
        add(self, case, found)

    monkeypatch.setattr(Measuring, "add", failing)
    assert run(*asked, "--out", "results").exit_code != 0
    assert not Path("results").exists()
    seen.append("interrupted")
    succeed(*asked, "--out", "results")
    assert seen == ["case-0", "case-1", "case-2", "interrupted", "case-3", "case-4"]
    assert not Path("results.unfinished").exists()
    succeed(*asked, "--out", "again")
    assert contents(Path("results")) == contents(Path("again"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_says_what_is_kept(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged fourth case leaves three, whole; once it is restored, the same command gives what one run gives."""
    monkeypatch.chdir(data.parent)
    monkeypatch.setattr(shared, "_INTERVAL", 0.0)
    asked, damaged = COMMANDS[name], Path("data/logits/case-3.npy")
    succeed(*asked, "--out", "whole")
    whole, content = contents(Path("whole")), damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    assert refuse(*asked, "--out", "out").endswith(KEPT.format("out.unfinished"))
    assert not Path("out").exists()
    kept = contents(Path("out.unfinished"))
    written = {file: data for file, data in kept.items() if not file.startswith(("found/", "segcal.json"))}
    assert {file: whole[file] for file in written} == written
    assert Journal(Path("out.unfinished")).finished() == 3
    assert len(written) == (6 if name == "apply" else 0)
    damaged.write_bytes(content)
    succeed(*asked, "--out", "out")
    assert not Path("out.unfinished").exists()
    succeed(*asked, "--out", "again")
    assert contents(Path("out")) == contents(Path("again"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_before_any_case_is_finished_leaves_nothing(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    before, path = sorted(Path().iterdir()), Path("data/logits/case-0.npy")
    path.write_bytes(path.read_bytes()[:-1])
    assert "kept in" not in refuse(*COMMANDS[name], "--out", "out")
    assert sorted(Path().iterdir()) == before


def test_the_files_of_an_unfinished_case_are_removed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probabilities were complete, but its note was not written; what a killed process left goes as well."""
    monkeypatch.chdir(data.parent)
    note = Journal.note

    def failing(self: Journal, name: str, content: dict[str, object]) -> None:
        if name == "case-1":
            Path("probs.unfinished/.x.npy.partial-abcdefgh").touch()
            raise OSError(28, "No space left on device")
        note(self, name, content)

    monkeypatch.setattr(Journal, "note", failing)
    for _ in range(2):
        assert "1 finished case is kept" in refuse(*COMMANDS["apply"], "--out", "probs")
        left = {name for name in contents(Path("probs.unfinished")) if "partial" not in name and "found/" not in name}
        assert left == {"case-0.npy", "temperature/case-0.npy", "segcal.json"}
    monkeypatch.setattr(Journal, "note", note)
    succeed(*COMMANDS["apply"], "--out", "probs")
    assert not any("partial" in name for name in contents(Path("probs")))


def test_measurements_survive_an_output_that_cannot_be_written(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)

    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("segcal.cli.steps.save_portraits", failing)
        ended = run(*COMMANDS["evaluate"], "--out", "results")
    sentence = ended.stderr.splitlines()[-1]  # after a warning
    assert (ended.exit_code, "No space left" in sentence) == (2, True)
    assert "5 finished cases are kept in 'results.unfinished'" in sentence
    succeed(*COMMANDS["evaluate"], "--out", "results")
    assert not Path("results.unfinished").exists()


@pytest.mark.parametrize("old", ["in its place", "set aside", "none"])
@pytest.mark.parametrize("moment", ["files.publishing._replace_folder", "parts.outputs.discard_unfinished"])
def test_a_publication_that_was_cut_off_is_repeated(
    moment: str, old: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed again, and nothing is left of the first attempt or of an old output that it set aside."""
    monkeypatch.chdir(data.parent)
    if old != "none":
        succeed("apply", "ts", "data", "--out", "probs")
    with monkeypatch.context() as patch:
        patch.setattr(f"segcal.{moment}", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*COMMANDS["apply"], "--out", "probs").exit_code != 0
    if old == "set aside":
        Path("probs").rename(".probs.old-0123abcd")
    before = {path.name for path in Path().iterdir() if not path.name.startswith((".probs", "probs"))}
    monkeypatch.setattr(CalibratedFiles, "write", None)
    succeed(*COMMANDS["apply"], "--out", "probs")
    assert {path.name for path in Path().iterdir()} == {*before, "probs"}
    assert len(contents(Path("probs"))) == 11


def test_a_marker_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left")
    monkeypatch.setattr("segcal.files.unfinished.write_json", lambda *_: (_ for _ in ()).throw(full))
    with (
        pytest.raises(OSError, match="No space left"),
        unfinished_folder(tmp_path / "out", {"unfinished": {"identity": "x"}}, shared=False, replace=True),
    ):
        pass
    assert not any(tmp_path.iterdir())


def test_a_changed_case_is_measured_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    asked = COMMANDS["evaluate"]
    succeed(*asked, "--out", "parts", "--part", "1/1")
    np.save("data/logits/case-1.npy", np.load("data/logits/case-1.npy") / 3)
    assert "cases are not finished" in refuse("merge", "parts", "--out", "merged")
    succeed(*asked, "--out", "parts", "--part", "1/1")
    succeed("merge", "parts", "--out", "merged")
    succeed(*asked, "--out", "whole")
    assert contents(Path("merged")) == contents(Path("whole"))


def test_processes_of_torchrun_share_the_cases(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes write and print what one does; only the first prints."""
    monkeypatch.chdir(data.parent)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked = [[*COMMANDS[name], "--out", f"{name}-2", "--json"] for name in COMMANDS]
    asked.append([*COMMANDS["evaluate"], "--json"])
    script = Path(__file__).parents[1] / "support" / "run_commands.py"
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), json.dumps(asked)],
            env={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(SOURCE),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    for name, arguments in COMMANDS.items():
        succeed(*arguments, "--out", f"{name}-1")
        assert contents(Path(f"{name}-1")) == contents(Path(f"{name}-2")), name
    assert outputs[1][0] == ""
    printed = [json.loads(line) for line in outputs[0][0].splitlines()]
    assert len(printed) == len(asked)
    assert printed[1] == printed[3]


@pytest.mark.parametrize("rank", [0, 1])
def test_commands_that_are_not_shared_run_once_under_torchrun(
    data: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """The first process works as if it were alone, waiting for nobody; the others do and print nothing."""
    monkeypatch.chdir(data.parent)
    succeed(*COMMANDS["evaluate"], "--out", "parts", "--part", "1/1")
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    for asked in (["merge", "parts", "--out", "merged"], ["decide", "data", "--out", "decided"]):
        assert bool(succeed(*asked)) == (rank == 0)
        assert Path(asked[-1]).exists() == (rank == 0)
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), "2")


@pytest.mark.parametrize("exists", [True, False])
def test_an_output_behind_a_link_is_written_where_the_link_leads(
    data: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """Folders are often links to a larger disk, on which unfinished output must be too."""
    monkeypatch.chdir(data.parent)
    Path("disk/parts").mkdir(parents=True) if exists else Path("disk").mkdir()
    for name in ("out", "parts"):
        Path(name).symlink_to(Path("disk", name))
    succeed(*COMMANDS["apply"], "--out", "parts", "--part", "1/1")
    assert unfinished_name("out") == Path("disk/out.unfinished").absolute()
    succeed("merge", "parts", "--out", "out")
    succeed(*COMMANDS["apply"], "--out", "out")
    assert Path("out").is_symlink()
    assert Path("parts").is_symlink()
    succeed(*COMMANDS["apply"], "--out", "whole")
    assert contents(Path("disk/out")) == contents(Path("whole"))


@pytest.mark.parametrize("part", [[], ["--part", "1/2"]])
def test_a_mount_point_is_refused_before_the_work(data: Path, monkeypatch: pytest.MonkeyPatch, part: list[str]) -> None:
    """It cannot be renamed, so that nothing can take its place."""
    monkeypatch.chdir(data.parent)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "volume")
    assert "is a mount point, which no output can replace" in refuse(*COMMANDS["apply"], "--out", "volume", *part)
    assert not list(Path().glob("*volume*"))


def test_part_divides_names() -> None:
    names = list("abcdefg")
    parts = [Part(k, 3).of(names) for k in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == names
    assert parts[0] == ["a", "d", "g"]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_parts_of_machines_without_a_common_folder(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    for name in ("apply", "diagnose"):
        succeed(*COMMANDS[name], "--out", f"{name}-whole")
        for k in (1, 2):
            succeed(*COMMANDS[name], "--out", f"{name}-{k}", "--part", f"{k}/2")
        succeed("merge", f"{name}-1", f"{name}-2", "--out", f"{name}-merged")
        assert contents(Path(f"{name}-merged")) == contents(Path(f"{name}-whole"))
    shutil.rmtree("apply-1")  # merged files do not depend on the parts
    assert np.load("apply-merged/case-0.npy").shape == (3, 16, 14)


@pytest.fixture
def channels(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Three cases of two sigmoid channels that overlap."""
    cases = []
    for k in range(3):
        scores = rng.normal(scale=3, size=(2, 5, 4)).repeat(4, 1).repeat(5, 2).astype(np.float32)
        cases.append(Case(f"case-{k}", scores, (scores + rng.logistic(size=scores.shape) > 0).astype(np.uint8)))
    write_folder(tmp_path / "data", {"test": cases[:2], "fit": cases[2:]}, activation="sigmoid")
    succeed("fit", tmp_path / "data", "--split", "fit", "--out", tmp_path / "ts")
    return tmp_path / "data"


@pytest.mark.parametrize(
    "asked",
    [
        ("apply", "ts", "data", "--temperature"),
        ("evaluate", "data", "--split", "test", "--calibrators", "ts", "--patch-size", "8", "--floor", "--surfaces"),
        ("diagnose", "data"),
    ],
    ids=lambda asked: asked[0],
)
def test_parts_of_sigmoid_channels(asked: tuple[str, ...], channels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(channels.parent)
    succeed(*asked, "--out", "whole")
    for part in ("2/2", "1/2"):
        succeed(*asked, "--out", "parts", "--part", part)
    succeed("merge", "parts", "--out", "merged")
    assert contents(Path("merged")) == contents(Path("whole"))
    assert any("channels" in name or "temperature/1" in name for name in contents(Path("whole"))) or (
        "channels" in json.loads(Path("whole/diagnosis.json").read_text())
    )


def test_unfinished_work_of_another_command_is_not_deleted(tmp_path: Path) -> None:
    def marker(command: str, identity: str) -> dict[str, Any]:
        return {"unfinished": {"command": command, "identity": identity}}

    place = tmp_path / "out.unfinished"
    with unfinished_folder(place, marker("apply", "x"), shared=False, replace=True) as folder:
        (folder / "case.npy").touch()
    with (
        pytest.raises(InputError, match="unfinished output of `segcal apply`"),
        unfinished_folder(place, marker("evaluate", "y"), shared=False, replace=True),
    ):
        pass
    assert (place / "case.npy").exists()
    with unfinished_folder(place, marker("apply", "z"), shared=False, replace=True) as folder:
        assert not (folder / "case.npy").exists()
