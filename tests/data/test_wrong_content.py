"""Files with wrong content, or in formats that are not read: shapes, labels, pickles, truncated and damaged files."""

from __future__ import annotations

import gzip
import pickle
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from segcal.cases.collections import subset
from segcal.data.folders.folder import Folder, open_folder
from segcal.data.io import nifti
from segcal.data.io.nifti import Nifti
from segcal.types import Case, InputError
from support.scenes import (
    AFFINE,
    complaint,
    labels_of,
    logits_of,
    save,
    write_arrays,
)


def test_shapes_and_classes_that_disagree(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    save(tmp_path / "logits/b.npy", logits_of(classes=4))
    message = complaint(tmp_path)
    assert "num_classes=5" in message
    assert "case 'b'" in message
    save(tmp_path / "logits/b.npy", logits_of()[:, :, :-1])
    assert "labels must have shape (4, 5)" in (message := complaint(tmp_path))
    assert "got (4, 6) of case 'b'" in message
    save(tmp_path / "labels/a.npy", np.zeros(7, np.uint8))
    assert "labels must have shape [H, W] or [D, H, W], got (7,)" in complaint(tmp_path)
    save(tmp_path / "labels/a.npy", np.zeros((2, 3, 4, 5), np.uint8))
    assert "(--activation sigmoid) if they are masks of channels that overlap" in complaint(tmp_path)
    save(tmp_path / "labels/a.npy", labels_of())
    save(tmp_path / "logits/a.npy", np.float32(1.0))
    assert "scores must have shape [L, *S], got a single number" in complaint(tmp_path)


def test_labels_of_another_size_are_refused_before_they_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file of gigabytes would be converted to int64 in memory."""
    write_arrays(tmp_path, "a")
    save(tmp_path / "labels/a.npy", np.zeros((400, 600)))
    monkeypatch.setattr("segcal.data.folders.case_files.whole_numbers", None)
    assert "labels must have shape (4, 6)" in complaint(tmp_path)


def test_labels_out_of_range(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    labels = labels_of(seed=1)
    labels[2, 3] = 255
    save(tmp_path / "labels/b.npy", labels)
    assert "labels must be in 0..4, got 255 at (2, 3) of case 'b'" in complaint(tmp_path)
    assert "or ignore_index=-1, got 255" in complaint(tmp_path, ignore_index=-1)
    np.testing.assert_array_equal(open_folder(tmp_path, ignore_index=255)[1].labels, labels)


def test_logits_that_are_no_floats(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    save(tmp_path / "logits/b.npy", logits_of().astype(np.int32))
    assert "floating point, got torch.int32 of case 'b'" in complaint(tmp_path)
    save(tmp_path / "logits/b.npy", logits_of().astype(np.complex64))
    assert "plain numbers of at most 64 bits, got complex64" in complaint(tmp_path)


@pytest.mark.parametrize("where", ["logits", "labels"])
@pytest.mark.parametrize("extension", [".npy", ".npz"])
def test_pickles_are_never_loaded(tmp_path: Path, where: str, extension: str) -> None:
    write_arrays(tmp_path)
    (tmp_path / where / "b.npy").unlink()
    save(tmp_path / where / f"b{extension}", np.array([{"a": 1}], dtype=object))
    assert f"{where}/b{extension}' must hold a plain array of numbers, got pickled objects" in complaint(tmp_path)
    (tmp_path / where / f"b{extension}").write_bytes(pickle.dumps([1, 2]))
    assert f"{where}/b{extension}' must hold a plain array of numbers" in complaint(tmp_path)


@pytest.mark.parametrize("extension", [".npy", ".npz", ".nii.gz", ".nii"])
@pytest.mark.parametrize("keep", [0.0, 0.03, 0.5, 0.97])
def test_truncated_arrays(tmp_path: Path, extension: str, keep: float) -> None:
    write_arrays(tmp_path, "a", dims=3)
    (tmp_path / "logits/a.npy").unlink()
    path = tmp_path / f"logits/a{extension}"
    save(path, logits_of(3))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    message = complaint(tmp_path)
    assert message.startswith(f"'{path}' must ")
    assert message.endswith(("; write it again", "with np.save or np.savez"))


def test_damaged_bytes_inside_an_archive(tmp_path: Path) -> None:
    write_arrays(tmp_path, "a")
    (tmp_path / "logits/a.npy").unlink()
    path = tmp_path / "logits/a.npz"
    save(path, logits_of(), key="logits")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(8)
    path.write_bytes(content)
    assert f"'{path}' must be a readable .npz file, got a damaged or incomplete one" in complaint(tmp_path)


@pytest.mark.parametrize("where", ["logits", "labels", "images"])
@pytest.mark.parametrize("damage", ["checksum", "length", "bit", "tail"])
def test_damaged_gzip_is_noticed(tmp_path: Path, where: str, damage: str) -> None:
    write_arrays(tmp_path, "a", dims=3)
    (tmp_path / where / "a.npy").unlink(missing_ok=True)
    path = tmp_path / where / "a.nii.gz"
    values = {"logits": logits_of(3), "labels": labels_of(3), "images": logits_of(3)[0]}[where]
    path.parent.mkdir(exist_ok=True)
    # stored, not deflated, so that a changed bit is a changed value that only the checksum can tell
    path.write_bytes(gzip.compress(nibabel.Nifti1Image(values.T, AFFINE).to_bytes(), compresslevel=0))
    assert open_folder(tmp_path)[0].name == "a"
    content = bytearray(path.read_bytes())
    if damage == "tail":
        content += b"garbage"
    else:
        content[{"checksum": -6, "length": -1, "bit": -20}[damage]] ^= 1
    path.write_bytes(content)
    assert f"'{path}' must be a readable .nii.gz file, got a damaged or incomplete one" in complaint(tmp_path)


def test_compressed_nifti_is_held_once(tmp_path: Path) -> None:
    values = np.zeros((96, 96, 48, 5), np.float32)
    save(tmp_path / "logits/a.nii.gz", values.T)
    tracemalloc.start()
    Nifti(tmp_path / "logits/a.nii.gz").read("logits", values.shape[2::-1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * values.nbytes


@pytest.mark.parametrize("where", ["labels", "images"])
@pytest.mark.parametrize("keep", [0, 20, 60])
def test_unreadable_pictures(tmp_path: Path, where: str, keep: int) -> None:
    write_arrays(tmp_path, "a")
    if where == "labels":
        (tmp_path / "labels/a.npy").unlink()
    path = tmp_path / where / "a.png"
    save(path, labels_of())
    path.write_bytes(path.read_bytes()[:keep])
    assert f"'{path}' must be a readable .png file" in complaint(tmp_path)


def test_pictures_that_are_no_labels(tmp_path: Path) -> None:
    write_arrays(tmp_path, "a")
    (tmp_path / "labels/a.npy").unlink()
    colours = np.random.default_rng(0).integers(0, 5, (4, 6, 3), dtype=np.uint8)
    save(tmp_path / "labels/a.png", colours)
    assert f"one number per pixel, got mode RGB in '{tmp_path}/labels/a.png'" in complaint(tmp_path)
    (tmp_path / "labels/a.png").unlink()
    save(tmp_path / "labels/a.webp", colours)
    assert "one number per pixel, got colours in" in complaint(tmp_path)
    Image.fromarray(labels_of()).save(tmp_path / "labels/a.webp", lossless=False)
    assert "stored without loss, got a lossy WebP" in complaint(tmp_path)


def test_an_unknown_version_of_npy_is_refused(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    path = tmp_path / "logits/a.npy"
    content = path.read_bytes()
    path.write_bytes(content[:6] + bytes([1, 1]) + content[8:])
    assert "version 1.1 of the format is not known" in complaint(tmp_path, num_classes=5)


def test_archives_and_arrays_under_the_other_name(tmp_path: Path) -> None:
    write_arrays(tmp_path, "a")
    save(tmp_path / "x.npz", logits_of())
    (tmp_path / "logits/a.npy").write_bytes((tmp_path / "x.npz").read_bytes())
    assert "must be a .npy file, got a .npz archive" in complaint(tmp_path, num_classes=5)
    (tmp_path / "logits/a.npy").unlink()
    save(tmp_path / "x.npy", logits_of())
    (tmp_path / "logits/a.npz").write_bytes((tmp_path / "x.npy").read_bytes())
    assert "must be a .npz archive, got a .npy file" in complaint(tmp_path, num_classes=5)


def test_a_file_that_vanished(tmp_path: Path) -> None:
    folder = open_folder(write_arrays(tmp_path))
    (tmp_path / "logits/b.npy").unlink()
    with pytest.raises(InputError, match=r"b.npy' does not exist any more"):
        folder[1]


@pytest.mark.parametrize("offset", [0, 100, 347, 10**9, 2**40])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("end", [".nii", ".nii.gz"])
@pytest.mark.parametrize(("kind", "at", "form"), [(nibabel.Nifti1Image, 108, "f"), (nibabel.Nifti2Image, 168, "q")])
def test_values_in_the_header_or_behind_huge_extensions_are_refused(
    kind: type, at: int, form: str, end: str, order: str, offset: int, tmp_path: Path
) -> None:
    """With an offset of 0, nibabel takes the header for values; and it reads all extensions before anything else."""
    header = kind.header_class(endianness=order)
    image = kind(np.zeros((4, 5, 6), np.uint8), AFFINE, header)
    content, path = bytearray(image.to_bytes()), tmp_path / f"a{end}"
    path.write_bytes(gzip.compress(content) if end == ".nii.gz" else content)
    assert nifti.read_volume(path)[0].shape == (6, 5, 4)
    struct.pack_into(order + form, content, at, offset)
    path.write_bytes(gzip.compress(content) if end == ".nii.gz" else content)
    with pytest.raises(InputError, match="its values begin at byte"):
        nifti.read_volume(path)


@pytest.mark.parametrize("part", [lambda folder: folder, lambda folder: subset(folder, range(len(folder)))])
def test_a_case_that_cannot_be_read_does_not_end_the_folder(
    part: Callable[[Folder], Sequence[Case]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An IndexError would: a loop over a sequence takes it for the end, and all further cases would be missing."""
    write_arrays(tmp_path)
    folder = part(open_folder(tmp_path))

    def broken(*_: object) -> None:
        raise IndexError("of a library")

    monkeypatch.setattr("segcal.data.folders.case_files.CaseFiles.load", broken)
    with pytest.raises(IndexError, match="of a library"):
        list(folder)


@pytest.mark.parametrize("shape", [(0, 4, 6), (5, 0, 6), (5, 4, 0)])
def test_scores_without_classes_or_pixels_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    write_arrays(tmp_path)
    save(tmp_path / "logits/b.npy", np.zeros(shape, np.float32))
    assert f"scores must have classes and pixels, got shape {shape} of case 'b'" in complaint(tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_are_compressed_as_numpy_does(compression: int, tmp_path: Path) -> None:
    """Python decompresses a megabyte of these at once, which may be 20 GiB of zeros."""
    write_arrays(tmp_path, "a")
    path = tmp_path / "logits/a.npz"
    (tmp_path / "logits/a.npy").rename(tmp_path / "a.npy")
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.write(tmp_path / "a.npy", "logits.npy")
    assert "it is compressed in a way that numpy does not use" in complaint(tmp_path)


def test_the_names_of_many_arrays_are_not_all_listed(tmp_path: Path) -> None:
    write_arrays(tmp_path, "a")
    (tmp_path / "logits/a.npy").unlink()
    with zipfile.ZipFile(tmp_path / "logits/a.npz", "w") as archive:
        for k in range(1000):
            archive.writestr(f"part-{k:04}.npy", b"")
    message = complaint(tmp_path)
    assert "got ['part-0000', 'part-0001', 'part-0002', 'part-0003', 'part-0004'] and others; save it as" in message
    assert len(message) < 1000


def test_nibabel_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(tmp_path, "a", dims=3)
    (tmp_path / "labels/a.npy").unlink()
    save(tmp_path / "labels/a.nii.gz", labels_of(3))
    monkeypatch.setitem(sys.modules, "nibabel", None)
    assert complaint(tmp_path).endswith("; pip install segcal[medical]")


@pytest.mark.parametrize(
    ("logits", "label", "message"),
    [
        ("a.npy", "a.jpg", r"'a\.jpg' is not read: JPEG changes values, so write labels as PNG"),
        ("a.npy", "a.JPEG", r"'a\.JPEG' is not read: JPEG changes values"),
        ("a.npy", "a.tif", r"'a\.tif' is not read: convert it to one of these formats"),
        ("a.npy", "a.pt", r"'a\.pt' is not read: it can run code .* np\.save\(path, tensor\.cpu\(\)\.numpy\(\)\)"),
        ("a.pt", "a.npy", r"got none; 'a\.pt' is not read: it can run code"),
        ("a.png", "a.npy", r"'a\.png' is not read: scores need a number for each class"),
        ("a.npy", "a_gt.npy", r"got none at .*did you mean 'a_gt\.npy'\? rename it"),
        ("a.npy", "gt-a.npy", r"did you mean 'gt-a\.npy'\? rename it"),
        ("a.npy", "a0.npy", r"did you mean 'a0\.npy'\? rename it"),
        ("scan_1.npy", "zzz_10.npy", "add it, or remove the case"),
        ("a.npy", "zzz.npy", "add it, or remove the case"),
        (".a.npy", "a.npy", r"is it the right folder\?"),
    ],
)
def test_each_file_has_its_own_remedy(tmp_path: Path, logits: str, label: str, message: str) -> None:
    for folder, name, shape in (("logits", logits, (2, 4, 5)), ("labels", label, (4, 5))):
        (tmp_path / folder).mkdir()
        with (tmp_path / folder / name).open("wb") as file:
            np.save(file, np.zeros(shape, np.float32 if folder == "logits" else np.uint8))
    with pytest.raises(InputError, match=message):
        open_folder(tmp_path)


@pytest.mark.parametrize("archived", [False, True])
def test_a_file_of_another_case_is_not_proposed(tmp_path: Path, archived: bool) -> None:
    """Scans are numbered, so every name is near; renaming the labels of scan 1 would give scan 2 the wrong truth."""
    for name in ("scan_001", "scan_002"):
        path = tmp_path / (f"{name}.npz" if archived else f"logits/{name}.npy")
        save(path, np.full((2, 3, 4, 5), 0.5, np.float32), key="probabilities")
    save(tmp_path / "labels/scan_001.npy", np.zeros((3, 4, 5), np.uint8))
    assert "case 'scan_002' must have one label file, got none" in (message := complaint(tmp_path))
    assert message.endswith("; add it, or remove the case")
