"""Zarr arrays and OME-Zarr images: read as what they hold, written chunk by chunk, and behind a URL."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.apply import apply_to_folder
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.data.io import base, formats
from segcal.data.sample.scenes import simulate
from segcal.files import refuse_overwriting
from segcal.types import Case, InputError
from support.commands import refuse, succeed

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


def cases(dims: int = 2) -> list[Case]:
    size = {2: (30, 41), 3: (10, 12, 9)}[dims]
    return [replace(scene.case, name=f"c{k}") for k, scene in enumerate(simulate(2, num_classes=3, size=size))]


def write_store(root: str, made: list[Case]) -> None:
    for case in made:
        for kind, values in (("logits", case.logits), ("labels", case.labels)):
            path = f"{root}/{kind}/{case.name}.zarr"
            zarr.create_array(store=path, data=np.asarray(values), overwrite=True)


@pytest.mark.parametrize("dims", [2, 3])
def test_calibrating_a_store_equals_calibrating_files(tmp_path: Path, dims: int) -> None:
    made = cases(dims)
    write_store(str(tmp_path / "store"), made)
    write_folder(tmp_path / "files", {"test": made})
    calibrator = segcal.create("ts", 3).fit(made)
    for name in ("store", "files"):
        folder = open_folder(tmp_path / name)
        assert (folder.num_classes, folder.spatial_dims) == (3, dims)
        np.testing.assert_array_equal(folder[0].labels, made[0].labels)
        apply_to_folder(calibrator, folder, out=tmp_path / f"{name}-out", maps=["temperature"])
    for case in made:
        written = zarr.open_array(str(tmp_path / "store-out" / f"{case.name}.zarr"), mode="r")
        np.testing.assert_array_equal(written[:], np.load(tmp_path / "files-out" / f"{case.name}.npy"))
        assert written.metadata.zarr_format == 3
        heat = zarr.open_array(str(tmp_path / "store-out" / "temperature" / f"{case.name}.zarr"), mode="r")
        assert heat.shape == case.labels.shape


def test_slabs_and_large_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays too large for memory are read piece by piece, and written so too, to the same numbers."""
    made = cases(3)
    write_store(str(tmp_path / "store"), made)
    calibrator = segcal.create("ts", 3).fit(made)
    apply_to_folder(calibrator, open_folder(tmp_path / "store"), out=tmp_path / "whole")
    monkeypatch.setattr(base, "IN_MEMORY", 3000)
    monkeypatch.setattr("segcal.cases.stream.SLAB", 1000)
    folder = open_folder(tmp_path / "store")
    assert isinstance(folder[0].logits, np.memmap)
    np.testing.assert_array_equal(folder[0].logits, made[0].logits)
    apply_to_folder(calibrator, folder, out=tmp_path / "slabs")
    for case in made:
        one, other = (zarr.open_array(str(tmp_path / name / f"{case.name}.zarr"))[:] for name in ("whole", "slabs"))
        np.testing.assert_array_equal(one, other)


def test_a_url(tmp_path: Path) -> None:
    pytest.importorskip("upath", reason="universal-pathlib is not installed")
    made = cases()
    write_store("memory://bucket/data", made)
    for path in ("memory://bucket/data", Path("memory://bucket/data")):  # a command line gives a Path
        folder = open_folder(path)
        np.testing.assert_array_equal(folder[1].logits, made[1].logits)
    before = folder.identities()
    write_store("memory://bucket/data", [replace(made[0], logits=np.asarray(made[0].logits) * 2)])
    after = open_folder("memory://bucket/data").identities()
    assert [before[name] == after[name] for name in ("c0", "c1")] == [False, True]


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ome_zarr_gives_the_finest_resolution_and_its_spacing(tmp_path: Path, version: str) -> None:
    values = np.arange(1 * 2 * 3 * 4 * 5, dtype=np.float32).reshape(1, 2, 3, 4, 5)  # t c z y x
    about = {
        "axes": [{"name": name, "type": "space" if name in "zyx" else "other"} for name in "tczyx"],
        "datasets": [
            {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 3.0, 2.0, 1.5]}]},
            {"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 3.0, 4.0, 3.0]}]},
        ],
        "version": version,
    }
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2 if version == "0.4" else 3)
    group.attrs.update({"multiscales": [about]} if version == "0.4" else {"ome": {"multiscales": [about]}})
    group.create_array("0", data=values)
    group.create_array("1", data=values[..., ::2, ::2])
    file = formats.file_at(tmp_path / "a.zarr")
    assert file.shape("logits") == (2, 3, 4, 5)
    found = file.read("logits", (3, 4, 5))
    np.testing.assert_array_equal(found, values[0])
    assert file.spacing(3) == (3.0, 2.0, 1.5)
    with pytest.raises(InputError, match="one time and, for labels, one channel, got axes tczyx"):
        file.read("labels")


@pytest.mark.parametrize("axes", ["cyx", "cxy", "cy", "cyy"])
def test_axes_of_ome_zarr_are_put_in_order_or_refused(tmp_path: Path, axes: str) -> None:
    values = np.arange(3 * 4 * 4, dtype=np.float32).reshape(3, 4, 4)
    steps = {"c": 1.0, "y": 2.0, "x": 3.0}
    scale = {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [steps[axis] for axis in axes]}]}
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    about = {"axes": [{"name": axis} for axis in axes], "datasets": [scale]}
    group.attrs.update({"ome": {"multiscales": [about]}})
    group.create_array("0", data=values.swapaxes(1, 2) if axes == "cxy" else values)
    file = formats.file_at(tmp_path / "a.zarr")
    if axes in ("cyx", "cxy"):
        np.testing.assert_array_equal(file.read("logits", (4, 4)), values)
        assert file.spacing(2) == (2.0, 3.0)
    else:
        with pytest.raises(InputError, match="must name each axis once"):
            file.read("logits", (4, 4))


def test_a_group_without_an_image_is_refused(tmp_path: Path) -> None:
    zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    with pytest.raises(InputError, match="must be a Zarr array or an OME-Zarr image, got a group"):
        formats.file_at(tmp_path / "a.zarr").shape("labels")


def test_a_store_is_identified_whatever_lies_in_it(tmp_path: Path) -> None:
    zarr.create_array(store=str(tmp_path / "a.zarr"), data=np.ones((3, 4)))
    file = formats.file_at(tmp_path / "a.zarr")
    before = file.identity()
    (tmp_path / "a.zarr" / os.fsdecode(b"not \xff UTF-8")).touch()
    assert before != file.identity()


SPECIAL = {
    "fifo": (os.mkfifo, "must be a regular file"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "must be a regular file"),
    "sparse": (lambda path: [path.touch(), os.truncate(path, 3 << 30)], r"at most (64 MiB|2 GiB), got (more|3 GiB)"),
    "folder": (lambda path: path.symlink_to(path.parents[2]), "must be a folder, got a link to one"),
}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", ["zarr.json", "c/0/0"])
def test_special_files_in_a_store_are_refused(tmp_path: Path, name: str, special: str) -> None:
    zarr.create_array(store=str(tmp_path / "deep" / "a.zarr"), data=np.ones((3, 4)))
    make, message = SPECIAL[special]
    (tmp_path / "deep" / "a.zarr" / name).unlink()
    make(tmp_path / "deep" / "a.zarr" / name)
    file = formats.file_at(tmp_path / "deep" / "a.zarr")
    if name != "zarr.json":
        assert file.shape("labels") == (3, 4), "chunks are not looked at"
    elif special == "folder":
        message = "readable .zarr file"
    for look in (file.read, *([file.shape] if name == "zarr.json" else [])):
        with pytest.raises(InputError, match=message):
            look("labels")


@pytest.mark.parametrize(
    ("shape", "chunks", "message"),
    [
        ((2**30, 2**30), (1, 1), "arrays that are read must have at most 128 GiB"),
        ((3, 4), (2**30, 2**10), "chunks must have at most 2 GiB, got 8192 GiB"),
    ],
)
def test_stores_that_declare_too_much_take_no_memory(
    tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], message: str
) -> None:
    zarr.create_array(store=str(tmp_path / "a.zarr"), shape=shape, chunks=chunks, dtype="f8")
    with pytest.raises(InputError, match=message):
        formats.file_at(tmp_path / "a.zarr").shape("labels")


def test_a_file_url_is_a_local_folder(tmp_path: Path) -> None:
    made = cases()
    write_store(str(tmp_path / "a b"), made)
    url = (tmp_path / "a b").as_uri()
    for path in (url, Path(url)):  # a command line gives a Path
        folder = open_folder(path)
        assert folder.path == tmp_path / "a b"
        np.testing.assert_array_equal(folder[1].logits, made[1].logits)
    with pytest.raises(InputError, match=r"cannot be written to, as .* is read from"):
        refuse_overwriting(tmp_path / "a b" / "out", Path(url))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://bucket/data", "'nonsense://bucket/data' cannot be read .*; give a URL that fsspec knows"),
        ("missing://bucket/data", r"needs a driver of fsspec \(Install missingfs\); install it beside segcal"),
        ("zip://::file:///data.zip", "URLs must have one protocol"),
        ("offline://bucket/data", r"cannot be read \(no keys\); check the URL, the connection and your keys"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*filesystem not explicitly implemented")
def test_a_url_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch, url: str, message: str) -> None:
    pytest.importorskip("upath", reason="universal-pathlib is not installed")
    registry = pytest.importorskip("fsspec.registry")
    missing = {"class": "missingfs.FileSystem", "err": "Install missingfs"}
    monkeypatch.setitem(registry.known_implementations, "missing", missing)
    monkeypatch.setitem(registry.known_implementations, "offline", {"class": f"{__name__}.Offline"})
    for path in (url, Path(url)):
        with pytest.raises(InputError, match=message):
            open_folder(path)


class Offline(fsspec.AbstractFileSystem):
    """A store whose driver raises errors of its own."""

    def info(self, path: str, **options: object) -> dict[str, object]:
        raise LookupError("no keys\nand many more lines")

    def isdir(self, path: str) -> bool:
        return bool(self.info(path))


def test_commands_read_a_url(tmp_path: Path) -> None:
    """They write what they write for the same data in a folder."""
    pytest.importorskip("upath", reason="universal-pathlib is not installed")
    for place in ("memory://place/data", str(tmp_path / "data")):
        write_store(place, cases())
    segcal.create("ts", 3).fit(cases()).save(tmp_path / "ts")
    for command in ("apply", "evaluate"):
        for out, place in (("url", "memory://place/data"), ("folder", str(tmp_path / "data"))):
            given = [str(tmp_path / "ts"), place] if command == "apply" else [place]
            succeed(command, *given, "--out", tmp_path / f"{command}-{out}")
        one, other = (contents(tmp_path / f"{command}-{out}") for out in ("url", "folder"))
        assert one == other


def contents(folder: Path) -> dict[str, bytes]:
    """Return everything except the markers, in which the identities of the files of the cases are."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "segcal.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("option", ["--out", "--page"])
def test_an_output_is_no_url(tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would become a folder called 's3:'."""
    monkeypatch.chdir(tmp_path)
    write_store("store", cases())
    line = refuse("evaluate", "store", option, "s3://bucket/out.html")
    assert "must be a local path, got the URL 's3://bucket/out.html'" in line
    with pytest.raises(InputError, match="must be a local path"):
        segcal.create("ts", 3).fit(cases()).save("s3://bucket/ts")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
