"""Work divided between processes gives the bytes of one run, and what was interrupted is continued."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import segcal
from segcal.apply import CalibratedFiles
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.engines import Engine, Run, engine_of
from segcal.engines.run import FinishedCases, _link
from segcal.evaluation.measure import CaseEvidence, Evaluation
from segcal.evaluation.run import ResultsBuilder
from segcal.files import read_json, write_json
from segcal.files.guards import _digest, checksum, checksums, list_files
from segcal.types import Case, InputError
from support import run_commands
from support.commands import refuse, run, succeed
from support.program import ENVIRONMENT
from support.runs import COMMANDS, contents, five_cases
from support.scenes import overlapping


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return five_cases(tmp_path_factory.mktemp("made")).parent


@pytest.fixture
def data(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five cases in the working folder, and a calibrator."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@contextmanager
def damaged(spoil: Callable[[bytes], bytes] = lambda content: content[:-1]) -> Iterator[None]:
    """Spoil the fourth case inside the block."""
    path = Path("data/logits/case-3.npy")
    content = path.read_bytes()
    path.write_bytes(spoil(content))
    yield
    path.write_bytes(content)


def test_bits_do_not_depend_on_threads(data: Path, set_threads: object) -> None:
    for threads in (1, 2):
        set_threads(threads)
        for name in ("apply", "evaluate"):
            succeed(*COMMANDS[name], "--out", f"{name}-{threads}")
    for name in ("apply", "evaluate"):
        assert contents(Path(f"{name}-1")) == contents(Path(f"{name}-2"))


def test_evidence_survives_bytes(data: Path) -> None:
    folder = open_folder(data)
    evaluation = Evaluation.of(folder[0], {"UC": None, "TS": segcal.load(data.parent / "ts")}, segcal.Protocol(3))
    whole, sent = ResultsBuilder(evaluation), ResultsBuilder(evaluation)
    for case in folder:
        found = evaluation.measure(case)
        whole.add(found)
        sent.add(CaseEvidence.from_bytes(found.to_bytes()))
    one, other = whole.results(), sent.results()
    for table in ("frame", "pooled_frame", "curve_frame", "sensitivity_frame", "volume_frame"):
        assert getattr(one, table).equals(getattr(other, table)), table


KEPT = "3 finished cases are kept in '{}', and the same command continues from there"


@pytest.mark.parametrize(
    ("name", "owner", "method"), [("apply", CalibratedFiles, "write"), ("evaluate", Evaluation, "measure")]
)
def test_interrupted_work_is_continued(
    name: str, owner: type, method: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure at the fourth case leaves three; they are not done again, and nothing has the final name before."""
    asked, work, done = COMMANDS[name], getattr(owner, method), list[str]()

    def failing(self: object, case: str | Case, *place: Path) -> object:
        known = case if isinstance(case, str) else case.name
        if known == "case-3" and len(done) == 3:
            raise KeyboardInterrupt
        done.append(known)
        return work(self, case, *place)

    monkeypatch.setattr(owner, method, failing)
    ended = run(*asked, "--out", "out")
    assert ended.exit_code == 130
    assert ended.stderr.strip().endswith(f"segcal: interrupted; {KEPT.format('out.unfinished')}")
    assert not Path("out").exists()
    if name == "apply":
        with pytest.raises(InputError, match="unfinished"):
            open_folder("out.unfinished")
    done.append("interrupted")
    succeed(*asked, "--out", "out")
    assert done == ["case-0", "case-1", "case-2", "interrupted", "case-3", "case-4"]
    assert not Path("out.unfinished").exists()
    if name == "apply":  # a second run writes only what has changed
        np.save("data/logits/case-2.npy", np.load("data/logits/case-2.npy") * 2)
        succeed(*asked, "--out", "out")
        assert done[6:] == ["case-2"]
    succeed(*asked, "--out", "again")
    assert contents(Path("out")) == contents(Path("again"))


def with_nan(content: bytes) -> bytes:
    return content[:-4] + np.float32(np.nan).tobytes()


@pytest.mark.parametrize(
    ("name", "spoil"), [*((name, lambda content: content[:-1]) for name in COMMANDS), ("apply", with_nan)]
)
def test_a_refusal_says_what_is_kept(name: str, spoil: Callable[[bytes], bytes], data: Path) -> None:
    """A bad fourth case leaves three, whole; once it is restored, the same command gives what one run gives.

    `apply` computes the next case while one is written; that it is bad must not spoil the one that is written.
    """
    asked = COMMANDS[name]
    succeed(*asked, "--out", "whole")
    whole = contents(Path("whole"))
    with damaged(spoil):
        assert refuse(*asked, "--out", "out").endswith(KEPT.format("out.unfinished"))
    assert not Path("out").exists()
    kept = contents(Path("out.unfinished"))
    written = {file.partition("/")[2]: data for file, data in kept.items() if file.endswith(".npy")}
    assert {file: whole[file] for file in written} == written
    assert FinishedCases(Path("out.unfinished")).count() == 3
    assert len(written) == (6 if name == "apply" else 0)
    succeed(*asked, "--out", "out")
    assert not Path("out.unfinished").exists()
    succeed(*asked, "--out", "again")
    assert contents(Path("out")) == contents(Path("again"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_before_any_case_is_finished_leaves_nothing(name: str, data: Path) -> None:
    before, path = sorted(Path().iterdir()), Path("data/logits/case-0.npy")
    path.write_bytes(path.read_bytes()[:-1])
    assert "kept in" not in refuse(*COMMANDS[name], "--out", "out")
    assert sorted(Path().iterdir()) == before


def test_measurements_survive_an_output_that_cannot_be_written(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("segcal.cli.results_view.save_portraits", failing)
        ended = run(*COMMANDS["evaluate"], "--out", "results")
    sentence = ended.stderr.splitlines()[-1]  # after a warning
    assert (ended.exit_code, "No space left" in sentence) == (2, True)
    assert "5 finished cases are kept in 'results.unfinished'" in sentence
    succeed(*COMMANDS["evaluate"], "--out", "results")
    assert not Path("results.unfinished").exists()


@pytest.mark.parametrize("old", ["in its place", "set aside", "none"])
@pytest.mark.parametrize("moment", ["engines.run.FinishedCases.files", "engines.run._discard"])
def test_a_publication_that_was_cut_off_is_repeated(
    moment: str, old: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed again, and nothing is left of the first attempt or of an old output that it set aside."""
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


def test_processes_of_torchrun_share_the_cases(data: Path) -> None:
    """Two processes write and print what one does; only the first prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked = [[*COMMANDS[name], "--out", f"{name}-2", "--json"] for name in COMMANDS]
    asked.append([*COMMANDS["evaluate"], "--json"])
    processes = [
        subprocess.Popen(
            [sys.executable, run_commands.__file__, json.dumps(asked)],
            env={
                **ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
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


@pytest.fixture
def channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cases of two sigmoid channels that overlap, in the working folder."""
    monkeypatch.chdir(tmp_path)
    cases = overlapping(3, 2, (20, 20))
    write_folder(tmp_path / "data", {"test": cases[:2], "fit": cases[2:]}, activation="sigmoid")
    succeed("fit", "data", "--method", "ts", "--split", "fit", "--out", "ts")


@pytest.mark.parametrize(
    "asked",
    [
        ("evaluate", "data", "--split", "test", "--calibrators", "ts", "--patch-size", "8", "--floor", "--surfaces"),
        ("diagnose", "data"),
    ],
    ids=lambda asked: asked[0],
)
def test_kept_evidence_gives_the_same_numbers(asked: tuple[str, ...], channels: None) -> None:
    """Without --out nothing is kept, and evidence is not divided by cases."""
    assert succeed(*asked, "--json") == succeed(*asked, "--json", "--out", "out")


def test_compare_is_continued_with_its_fits(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits that are finished are not done again, and the comparison is that of one run."""
    asked = ("compare", "data", "--methods", "ts,vector", "--fit-split", "test", "--patch-size", "8")
    measure = Evaluation.measure

    def failing(self: Evaluation, case: Case) -> CaseEvidence:
        if case.name == "case-1":
            raise KeyboardInterrupt
        return measure(self, case)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "measure", failing)
        ended = run(*asked, "--out", "results")
    assert ended.exit_code == 130
    assert "1 finished case and 2 fits are kept in 'results.unfinished'" in ended.stderr
    with monkeypatch.context() as patch:
        patch.setattr("segcal.evaluation.compare.measured_fit", None)
        succeed(*asked, "--out", "results")
    succeed(*asked, "--out", "whole")
    found, whole = contents(Path("results")), contents(Path("whole"))
    assert found.keys() == whole.keys()
    timed = {"segcal.json", "comparison.json", "ts/segcal.json", "vector/segcal.json"}  # hold the seconds of the fits
    assert [name for name in found if found[name] != whole[name] and name not in timed] == []


DAMAGES = {
    "truncated": lambda content: content[:-5],
    "emptied": lambda content: b"",
    "zeroed": lambda content: bytes(len(content)),
    "removed": None,
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [("apply", "truncated"), ("apply", "removed"), ("evaluate", "emptied"), ("diagnose", "zeroed")],
)
def test_damaged_work_is_done_again_and_reported(name: str, damage: str, data: Path) -> None:
    """One file of the finished cases is damaged at a time, records and files of `apply` alike."""
    asked = COMMANDS[name]
    with damaged():
        refuse(*asked, "--out", "out")
        for path in sorted(path for path in Path("out.unfinished").glob("case-*/**/*") if path.is_file()):
            path.unlink() if damage == "removed" else path.write_bytes(DAMAGES[damage](path.read_bytes()))
            ended = run(*asked, "--out", "out")
            assert ended.exit_code == 2
            assert "is damaged, and is done again" in " ".join(ended.stderr.split())
            assert KEPT.format("out.unfinished") in ended.stderr
    succeed(*asked, "--out", "out")
    succeed(*asked, "--out", "again")
    assert contents(Path("out")) == contents(Path("again"))


def test_what_users_put_into_unfinished_output_is_kept(data: Path) -> None:
    with damaged():
        refuse(*COMMANDS["apply"], "--out", "out")
    note = Path("out.unfinished/notes.txt")
    note.write_text("mine")
    assert "'notes.txt', which segcal did not write" in refuse(*COMMANDS["apply"], "--out", "out")
    note.rename("notes.txt")
    succeed(*COMMANDS["apply"], "--out", "out")
    Path("notes.txt").rename("out/notes.txt")
    assert "holds files that segcal did not write ('notes.txt')" in refuse(*COMMANDS["apply"], "--out", "out")
    assert Path("out/notes.txt").read_text() == "mine"


def test_the_files_of_an_unfinished_case_are_removed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probabilities were complete, but its record was not written."""
    write = write_json

    def failing(path: Path, content: dict[str, str]) -> None:
        if content.get("case") == "case-1":
            raise OSError(28, "No space left on device")
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("segcal.engines.run.write_json", failing)
        for _ in range(2):
            assert "1 finished case is kept" in refuse(*COMMANDS["apply"], "--out", "probs")
            left = {name.partition("/")[2] for name in contents(Path("probs.unfinished"))}
            assert left == {"", "segcal.json", "result", "case-0.npy", "temperature/case-0.npy"}
    succeed(*COMMANDS["apply"], "--out", "probs")


def test_a_marker_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left")
    monkeypatch.setattr("segcal.engines.run.write_json", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space left"), Run("apply", tmp_path / "out") as begun:
        begun.begin("x")
    assert not any(tmp_path.iterdir())


def test_nothing_is_kept_when_the_first_case_names_another_majority(data: Path) -> None:
    """The first case decides which class may be an unnamed background, without which every case is measured too."""
    asked, labels = COMMANDS["evaluate"], Path("data/labels/case-0.png")
    balanced, most = np.arange(16 * 14).reshape(16, 14) % 3, np.full((16, 14), 2)
    for k, (before, after) in enumerate(((balanced, most), (most, 0 * most))):
        Image.fromarray(before.astype(np.uint8)).save(labels)
        with damaged():
            refuse(*asked, "--out", "out")
        Image.fromarray(after.astype(np.uint8)).save(labels)
        succeed(*asked, "--out", "out")
        succeed(*asked, "--out", f"whole-{k}")
        assert contents(Path("out")) == contents(Path(f"whole-{k}"))


@pytest.mark.parametrize(
    ("name", "earlier"),
    [("apply", "whole"), ("diagnose", "whole"), ("apply", "unfinished"), ("evaluate", "unfinished")],
)
def test_a_case_that_changed_is_noticed_where_all_files_have_one_time(name: str, earlier: str, data: Path) -> None:
    """Files that come out of an archive may all have the same time of modification, and those of one shape one size."""
    place = Path("data/logits/case-1.npy")
    os.utime(place, ns=(0, 0))
    with damaged() if earlier == "unfinished" else nullcontext():
        run(*COMMANDS[name], "--out", "out")
    np.save(place, np.load(place)[::-1])
    os.utime(place, ns=(0, 0))
    succeed(*COMMANDS[name], "--out", "out")
    succeed(*COMMANDS[name], "--out", "new")
    assert contents(Path("out")) == contents(Path("new"))


@pytest.mark.parametrize("listed", ["../thesis", "{}/thesis", "../data/segcal.toml", "nothing.npy"])
def test_only_files_of_an_earlier_output_are_taken_over_from_it(listed: str, data: Path) -> None:
    """A made-up marker, with right checksums, lists files elsewhere."""
    Path("thesis").write_text("years of work")
    succeed(*COMMANDS["apply"], "--out", "out")
    whole = contents(Path("out"))
    name = listed.format(Path.cwd())
    marker = read_json(Path("out/segcal.json"))
    marker["written"]["cases"]["case-1"]["files"].append(name)
    marker["files"] = {**checksums(Path("out")), name: checksum(Path("out") / name)}
    marker["files"]["segcal.json"] = _digest(marker)
    write_json(Path("out/segcal.json"), marker)
    before = contents(Path())
    succeed(*COMMANDS["apply"], "--out", "out")
    assert contents(Path("out")) == whole
    changed = {place for place, content in contents(Path()).items() if before.get(place) != content}
    assert changed == {"out/segcal.json"}


@pytest.mark.parametrize(
    "forge",
    [
        lambda written: written.pop("identity"),
        lambda written: written.update(cases=[]),
        lambda written: written["cases"].update({"case-1": 3}),
        lambda written: written["cases"]["case-1"].pop("files"),
        lambda written: written["cases"]["case-1"].update(files="case-1.npy"),
        lambda written: written["cases"]["case-1"].update(counts={"pixels": "x"}),
    ],
)
def test_made_up_work_of_an_earlier_output_is_done_again(forge: Callable[[dict[str, Any]], None], data: Path) -> None:
    succeed(*COMMANDS["apply"], "--out", "out")
    whole, marker = contents(Path("out")), read_json(Path("out/segcal.json"))
    forge(marker["written"])
    write_json(Path("out/segcal.json"), marker)
    list_files(Path("out"))
    succeed(*COMMANDS["apply"], "--out", "out")
    assert contents(Path("out")) == whole


def test_a_file_system_that_takes_two_names_for_one_loses_no_case(tmp_path: Path) -> None:
    """As where upper and lower case, or composed and decomposed letters, are the same."""
    (tmp_path / "one").write_text("1")
    (tmp_path / "other").write_text("2")
    _link(tmp_path / "one", tmp_path / "a.npy", "")
    with pytest.raises(InputError, match=r"takes 'a\.npy' for the name of another file"):
        _link(tmp_path / "other", tmp_path / "a.npy", "")
    assert (tmp_path / "a.npy").read_text() == "1"


@pytest.mark.parametrize("rank", [0, 1])
def test_commands_that_are_not_shared_run_once_under_torchrun(
    data: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """The first process works as if it were alone, waiting for nobody; the others do and print nothing."""
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    assert bool(succeed("decide", "data", "--out", "decided")) == (rank == 0)
    assert Path("decided").exists() == (rank == 0)
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), "2")


@pytest.mark.parametrize("exists", [True, False])
def test_an_output_behind_a_link_is_written_where_the_link_leads(data: Path, exists: bool) -> None:
    """Folders are often links to a larger disk, on which unfinished output must be too."""
    Path("disk/out").mkdir(parents=True) if exists else Path("disk").mkdir()
    Path("out").symlink_to(Path("disk", "out"))
    with damaged():
        refuse(*COMMANDS["apply"], "--out", "out")
    assert Path("disk/out.unfinished").is_dir()
    succeed(*COMMANDS["apply"], "--out", "out")
    assert Path("out").is_symlink()
    succeed(*COMMANDS["apply"], "--out", "whole")
    assert contents(Path("disk/out")) == contents(Path("whole"))


def test_a_mount_point_is_refused_before_the_work(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be renamed, so that nothing can take its place."""
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "volume")
    assert "is a mount point, which no output can replace" in refuse(*COMMANDS["apply"], "--out", "volume")
    assert not list(Path().glob("*volume*"))


def test_unfinished_work_of_another_command_is_not_deleted(tmp_path: Path) -> None:
    place = tmp_path / "out.unfinished"

    def stopped(command: str, identity: str) -> None:
        with Run(command, tmp_path / "out") as begun:
            begun.begin(identity)
            for _ in begun.map(lambda name, _: name.encode(), {identity: ""}):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped("apply", "x")
    with pytest.raises(InputError, match="unfinished output of `segcal apply`"):
        stopped("evaluate", "y")
    assert FinishedCases(place).result("x", "") == b"x"
    with pytest.raises(KeyboardInterrupt):
        stopped("apply", "z")
    assert FinishedCases(place).result("x", "") is None
    assert FinishedCases(place).count() == 1


def test_results_are_in_the_order_of_the_cases_and_kept_once(tmp_path: Path) -> None:
    done = list[str]()

    def work(name: str, place: Path | None) -> bytes:
        assert place is not None
        done.append(name)
        if name == "c" and done.count("c") == 1:
            raise ArithmeticError
        return name.encode()

    identities = dict.fromkeys("abcd", "1")
    for again in (False, True):
        with nullcontext() if again else pytest.raises(ArithmeticError), Run("x", tmp_path / "out") as begun:
            begun.begin()
            assert list(begun.map(work, identities)) == [b"a", b"b", b"c", b"d"]
    assert done == ["a", "b", "c", "c", "d"]
    assert not any(tmp_path.iterdir())


def test_engines_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(engine_of()) is Engine
    for asked, words in (
        (("dask",), "the engine must be ray, got 'dask'"),
        ((None, "auto"), "an address is that of a Ray cluster"),
    ):
        with pytest.raises(InputError, match=words):
            engine_of(*asked)
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(InputError, match="torchrun divides the cases"):
        engine_of("ray")
    assert type(engine_of()).__name__ == "TorchrunEngine"
