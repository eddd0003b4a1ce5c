"""Every output where something of somebody else is, and every input that is no regular file: one sentence, no harm."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("nibabel")

from tests.campaign.artefacts import whole
from tests.campaign.running import Ran, run
from tests.campaign.trees import become, read_tree

OUTPUTS: dict[str, tuple[str, ...]] = {
    "fit": ("fit", "data", "--out", "out"),
    "apply": ("apply", "calibrator", "data", "--out", "out"),
    "evaluate": ("evaluate", "data", "--patches", "2", "--patch-size", "4", "--out", "out"),
    "page": ("evaluate", "data", "--patches", "2", "--patch-size", "4", "--page", "out.html"),
    "diagnose": ("diagnose", "data", "--maps", "out"),
    "decide": ("decide", "data", "--out", "out"),
    "report": ("report", "results", "--out", "out.html"),
    "csv": ("table", "results", "--out", "out.csv"),
    "tex": ("table", "results", "--out", "out.tex"),
    "md": ("table", "results", "--out", "out.md"),
    "json": ("table", "results", "--out", "out.json"),
    "figure": ("figure", "results", "--out", "out.png"),
}
THESIS = b'\\begin{tabular}{l|l} | years of work | {"segcal": 1} <html></html>\n'


def foreign_file(out: Path) -> None:
    out.write_bytes(THESIS)


def foreign_folder(out: Path) -> None:
    out.mkdir()
    (out / "thesis.tex").write_bytes(THESIS)


def foreign_marker(out: Path) -> None:
    out.mkdir()
    (out / "segcal.json").write_text('{"format": 1, "method": "ts", "files": {}}')
    (out / "thesis.tex").write_bytes(THESIS)


def link_to_a_file(out: Path) -> None:
    (out.parent / "thesis.tex").write_bytes(THESIS)
    out.symlink_to("thesis.tex")


def link_to_a_folder(out: Path) -> None:
    foreign_folder(out.parent / "thesis")
    out.symlink_to("thesis")


def link_to_an_input(out: Path) -> None:
    out.symlink_to("data" if (out.parent / "data").exists() else "results")


def link_in_a_circle(out: Path) -> None:
    out.symlink_to(out.name)


def fifo(out: Path) -> None:
    os.mkfifo(out)


def unix_socket(out: Path) -> None:
    bound = socket.socket(socket.AF_UNIX)
    before = Path.cwd()
    os.chdir(out.parent)  # the name of a socket must be short
    bound.bind(out.name)
    os.chdir(before)
    bound.close()


def device(out: Path) -> None:
    out.symlink_to("/dev/zero")


PLACES = (
    foreign_file, foreign_folder, foreign_marker, link_to_a_file, link_to_a_folder, link_to_an_input, link_in_a_circle,
    fifo, unix_socket, device,
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder, a calibrator and results."""
    folder = tmp_path_factory.mktemp("places") / "home"
    folder.mkdir()
    become(folder, {}, {**whole()["npy"][0].tree, **whole()["decisions"][0].tree})
    return folder


@pytest.fixture
def clean(home: Path) -> Iterator[Path]:
    """The same folder for every test, which removes what it made there."""
    before = read_tree(home)
    yield home
    for path in home.iterdir():
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", OUTPUTS)
def test_nothing_of_somebody_else_is_replaced(command: str, place: Callable[[Path], None], clean: Path) -> None:
    args = OUTPUTS[command]
    place(clean / args[-1])
    before = everything(clean)
    ran = run(args, clean)
    assert {name: content for name, content in everything(clean).items() if name in before} == before
    assert_refused(ran)


def from_fifo(path: Path) -> None:
    os.mkfifo(path)


def from_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def from_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 << 30)


def from_folder(path: Path) -> None:
    path.mkdir()


READ = {
    "data/segcal.toml": ("diagnose", "data"),
    "data/splits.json": ("diagnose", "data"),
    "data/logits/a1.npy": ("diagnose", "data"),
    "data/labels/a1.npy": ("diagnose", "data"),
    "data/images/a1.npy": ("evaluate", "data", "--patches", "2"),
    "calibrator/segcal.json": ("apply", "calibrator", "data", "--out", "out"),
    "calibrator/weights.safetensors": ("apply", "calibrator", "data", "--out", "out"),
    "results/segcal.json": ("table", "results"),
    "results/images.csv": ("table", "results"),
    "rules/segcal.json": ("decide", "data", "--rules", "rules"),
}


@pytest.mark.parametrize("kind", [from_fifo, from_zeros, from_sparse, from_folder])
@pytest.mark.parametrize("name", READ)
def test_only_regular_files_of_a_reasonable_size_are_read(name: str, kind: Callable[[Path], None], clean: Path) -> None:
    path, content = clean / name, (clean / name).read_bytes()
    path.unlink()
    kind(path)
    try:
        assert_refused(run(READ[name], clean))
    finally:
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(content)
