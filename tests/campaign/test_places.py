"""Every output where something of somebody else is, and every input that is no regular file: one sentence, no harm.

`make test` tries the same few combinations every time; `make campaign` draws others each time.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

pytest.importorskip("nibabel")

from segcal.files import read_json, write_json
from tests.campaign.artefacts import Artefact, whole
from tests.campaign.running import Ran, run
from tests.campaign.trees import become, read_tree

CAMPAIGN = settings(max_examples=max(30, settings().max_examples // 5), suppress_health_check=list(HealthCheck))

_EVALUATE = ("evaluate", "data", "--patches", "2", "--patch-size", "4")
OUTPUTS = (
    ("fit", "data", "--out", "out"),
    ("apply", "calibrator", "data", "--out", "out"),
    (*_EVALUATE, "--out", "out"),
    (*_EVALUATE, "--page", "out.html"),
    ("diagnose", "data", "--maps", "out"),
    ("diagnose", "data", "--out", "out"),
    ("compare", "data", "--methods", "ts", "--patches", "2", "--out", "out"),
    ("compare", "data", "--methods", "ts", "--patches", "2", "--page", "out.html"),
    ("nnunet", "fit", "folds", "--method", "ts", "--out", "out"),
    ("decide", "data", "--out", "out"),
    ("decide", "data", "--page", "out.html"),
    ("decide", "data", "--rules", "rules", "--out", "out.csv"),
    ("fuse", "atlases", "--method", "plurality", "--out", "out"),
    ("report", "results", "--out", "out.html"),
    *(("table", "results", "--out", f"out.{end}") for end in ("csv", "tex", "md", "json", "parquet")),
    *(("figure", "reliability", "results", "--out", f"out.{end}") for end in ("png", "pdf", "svg")),
    ("export", "calibrator", "--out", "out.onnx"),
)
CHECKPOINTS = ("fit", "data", "--method", "lts", "--epochs", "1", "--out", "made", "--set", "checkpoint=out")
"""Checkpoints are added to a folder of their own, in which files that somebody adds stay."""

THESIS = b'\\begin{tabular}{l|l} | years of work | {"segcal": 1} <html></html>\n'


def foreign_file(out: Path, content: bytes) -> None:
    out.write_bytes(content)


def foreign_folder(out: Path, content: bytes) -> None:
    (out / "deep").mkdir(parents=True)
    (out / "deep" / "thesis.tex").write_bytes(content)


def foreign_marker(out: Path, content: bytes) -> None:
    foreign_folder(out, content)
    (out / "segcal.json").write_text('{"format": 1, "method": "ts", "files": {}}')


def lone_marker(out: Path, content: bytes) -> None:
    out.mkdir()
    write_json(out / "segcal.json", {"files": {}, "notes": content.hex()})


def empty_folders(out: Path, content: bytes) -> None:
    (out / "year" / "month").mkdir(parents=True)


def hard_link(out: Path, content: bytes) -> None:
    foreign_file(out.parent / "thesis.tex", content)
    os.link(out.parent / "thesis.tex", out)


def link_to_a_file(out: Path, content: bytes) -> None:
    foreign_file(out.parent / "thesis.tex", content)
    out.symlink_to("thesis.tex")


def link_to_a_folder(out: Path, content: bytes) -> None:
    foreign_folder(out.parent / "thesis", content)
    out.symlink_to("thesis")


def link_to_an_input(out: Path, content: bytes) -> None:
    out.symlink_to("data")


def link_in_a_circle(out: Path, content: bytes) -> None:
    (out.parent / "other").symlink_to(out.name)
    out.symlink_to("other")


def fifo(out: Path, content: bytes = b"") -> None:
    os.mkfifo(out)


def unix_socket(out: Path, content: bytes = b"") -> None:
    bound, before = socket.socket(socket.AF_UNIX), Path.cwd()
    os.chdir(out.parent)  # the name of a socket must be short
    bound.bind(out.name)
    os.chdir(before)
    bound.close()


def device(out: Path, content: bytes = b"") -> None:
    """Link to an endless device: one of our own if we may make it, since root could replace that of the machine."""
    own = out.with_name(f"{out.name}-device")
    with suppress(OSError):
        os.mknod(own, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    out.symlink_to(own if own.exists() else "/dev/zero")


AT = (
    foreign_file, foreign_folder, foreign_marker, lone_marker, empty_folders, hard_link, link_to_a_file,
    link_to_a_folder, link_to_an_input, link_in_a_circle, fifo, unix_socket, device,
)  # fmt: skip
"""What may be where an output should go: the command is refused, and all of it stays."""


def edited_marker(out: Path, content: bytes) -> None:
    if out.is_dir():
        write_json(out / "segcal.json", {**read_json(out / "segcal.json"), "notes": content.hex()})
    else:
        edited_end(out, content)


def edited_end(out: Path, content: bytes) -> None:
    path = out if out.is_file() else max(path for path in out.rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes() + content)


def added_file(out: Path, content: bytes) -> None:
    if out.is_dir():
        (out / ".notes").write_bytes(content)
    else:
        edited_end(out, content)


def added_folder(out: Path, content: bytes) -> None:
    if out.is_dir():
        (out / "notes").mkdir()
    else:
        edited_end(out, content)


def file_behind_a_link(out: Path, content: bytes) -> None:
    path = out if out.is_file() else max(path for path in out.rglob("*") if path.is_file())
    shutil.move(path, out.parent / "moved")
    edited_end(out.parent / "moved", content)
    path.symlink_to(out.parent / "moved")


CHANGED = (edited_marker, edited_end, added_file, added_folder, file_behind_a_link)
"""What a user may do to an earlier output of the same command: the command is refused, and all of it stays."""

BESIDE = (".{}.lock", "{}.unfinished", ".{}.partial-versions", ".{}.old-releases")
"""Names beside an output that may be somebody else's: the command may succeed, and all of it stays."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder, a calibrator, results, rules and atlases."""
    folder = tmp_path_factory.mktemp("places") / "home"
    folder.mkdir()
    atlases = {name.replace("data/", "atlases/"): content for name, content in whole()["atlases"][0].tree.items()}
    folds = {name.replace("data/", "folds/"): content for name, content in whole()["folds"][0].tree.items()}
    become(folder, {}, {**whole()["npy"][0].tree, **whole()["decisions"][0].tree, **atlases, **folds})
    for args in OUTPUTS:  # with time to compile
        with unchanged(folder):
            assert run(args, folder, seconds=600).status == 0
    return folder


@contextmanager
def unchanged(home: Path) -> Iterator[None]:
    """Restore the folder after an attack."""
    before = read_tree(home)
    try:
        yield
    finally:
        for path in (*home.iterdir(), *home.rglob("*")):
            if path.is_symlink() or (path.exists() and not (path.is_dir() or path.is_file())):
                path.unlink()
        become(home, read_tree(home), before)


def everything(root: Path) -> dict[str, object]:
    """Return what lies below a folder: contents of files, targets of links, kinds of everything else."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else path.lstat().st_mode
    return found


def assert_refused(ran: Ran) -> None:
    assert ran.error is None, ran.error
    assert ran.status == 2, (ran.stdout, ran.stderr)
    assert sum(line.startswith("segcal: ") for line in ran.stderr.splitlines()) == 1, ran.stderr


def run_beside(args: tuple[str, ...], home: Path) -> Ran:
    """Run a command, of which nothing that is there is harmed."""
    before = everything(home)
    ran = run(args, home)
    after = everything(home)
    assert {name: after.get(name) for name in before} == before
    return ran


CONTENTS = st.just(THESIS) | st.binary(min_size=1, max_size=50)


@CAMPAIGN
@given(args=st.sampled_from((*OUTPUTS, CHECKPOINTS)), place=st.sampled_from(AT), content=CONTENTS)
def test_nothing_of_somebody_else_is_replaced(
    args: tuple[str, ...], place: Callable[[Path, bytes], None], content: bytes, home: Path
) -> None:
    with unchanged(home):
        place(home / args[-1].rpartition("=")[2], content)
        assert_refused(run_beside(args, home))


@CAMPAIGN
@given(args=st.sampled_from(OUTPUTS), change=st.sampled_from(CHANGED), content=CONTENTS)
def test_no_output_is_replaced_that_somebody_changed(
    args: tuple[str, ...], change: Callable[[Path, bytes], None], content: bytes, home: Path
) -> None:
    with unchanged(home):
        ran = run(args, home)
        assert ran.status == 0, ran.stderr
        change(home / args[-1], content)
        assert_refused(run_beside(args, home))


@CAMPAIGN
@given(args=st.sampled_from(OUTPUTS), name=st.sampled_from(BESIDE), place=st.sampled_from(AT), content=CONTENTS)
def test_nothing_beside_an_output_is_touched(
    args: tuple[str, ...], name: str, place: Callable[[Path, bytes], None], content: bytes, home: Path
) -> None:
    with unchanged(home):
        place(home / name.format(args[-1]), content)
        ran = run_beside(args, home)
        if ran.status:
            assert_refused(ran)


_intruders: list[Callable[[], None]] = []
"""What to do when a file is next opened for writing under a temporary name; a hook cannot be removed again."""


def _intrude(event: str, args: tuple[Any, ...]) -> None:
    if _intruders and event == "open" and ".partial-" in str(args[0]) and args[2] & (os.O_WRONLY | os.O_RDWR):
        _intruders.pop()()


@pytest.fixture(scope="module")
def hooked() -> None:
    sys.addaudithook(_intrude)


APPEARING = (foreign_file, foreign_folder, link_to_a_file, link_to_a_folder, fifo)


@CAMPAIGN
@given(args=st.sampled_from(OUTPUTS), place=st.sampled_from(APPEARING), content=CONTENTS)
def test_nothing_that_appears_meanwhile_is_replaced(
    args: tuple[str, ...], place: Callable[[Path, bytes], None], content: bytes, home: Path, hooked: None
) -> None:
    """Between the check of an output, before the work, and its replacement, after it."""
    before = dict[str, object]()

    def appear() -> None:
        place(home / args[-1], content)
        before.update({name: found for name, found in everything(home).items() if ".partial-" not in name})

    with unchanged(home):
        _intruders[:] = [appear]
        ran = run(args, home)
        assert not _intruders, "nothing was written"
        assert_refused(ran)
        after = everything(home)
        assert {name: after.get(name) for name in before if ".segcal-lock" not in name} == {
            name: found for name, found in before.items() if ".segcal-lock" not in name
        }


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 << 30)


SPECIAL = (fifo, unix_socket, device, sparse, Path.mkdir, lambda path: path.symlink_to(path.name))


@st.composite
def special_inputs(draw: DrawFn) -> tuple[Artefact, str, tuple[str, ...], Callable[[Path], None]]:
    """Return a strategy of an artefact, one of its files, a command that may read it, and what the file becomes."""
    artefact = draw(st.sampled_from([artefact for several in whole().values() for artefact in several]))
    files = [
        name for name, content in artefact.tree.items() if name.startswith(artefact.prefix) and content is not None
    ]
    return artefact, draw(st.sampled_from(files)), draw(st.sampled_from(artefact.commands)).args, draw(_SPECIAL)


_SPECIAL = st.sampled_from(SPECIAL)


@CAMPAIGN
@given(attack=special_inputs())
def test_only_regular_files_of_a_reasonable_size_are_read(
    attack: tuple[Artefact, str, tuple[str, ...], Callable[[Path], None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    artefact, name, args, kind = attack
    note(f"{artefact}: segcal {' '.join(args)}, {name}")
    folder = tmp_path_factory.mktemp("special")
    become(folder, {}, artefact.tree)
    (folder / name).unlink()
    kind(folder / name)
    ran = run(args, folder)
    shutil.rmtree(folder)
    if ran.status or ran.error:  # not every command reads every file
        assert_refused(ran)
