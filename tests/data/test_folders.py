"""Folders on disk: every array format, laziness, and folders that are incomplete."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from segcal.data.folders.folder import open_folder, write_map, write_scores
from segcal.data.io import arrays
from segcal.text import CalibrationWarning
from segcal.types import InputError
from support.scenes import (
    SHAPES,
    complaint,
    grey_png,
    labels_of,
    logits_of,
    read_all,
    save,
    write_arrays,
    write_nifti_case,
)


def test_attributes_and_sequence(tmp_path: Path) -> None:
    folder = open_folder(write_arrays(tmp_path, "bca", dims=3))
    assert folder.names == ("a", "b", "c")
    assert len(folder) == 3
    assert (folder.path, folder.num_classes, folder.spatial_dims, folder.image_channels) == (
        tmp_path,
        5,
        3,
        0,
    )
    assert (folder.ignore_index, folder.background, folder.class_names) == (None, None, None)
    assert folder.scores == "logits"
    assert [case.name for case in folder] == [case.name for case in folder] == ["a", "b", "c"]
    assert folder[-1].name == "c"
    assert folder[1:].names == ("b", "c")
    with pytest.raises(IndexError):
        folder[3]
    case = folder[2]
    np.testing.assert_array_equal(case.logits, logits_of(3, seed=1))  # "bca": c was made second
    np.testing.assert_array_equal(case.labels, labels_of(3, seed=1))
    assert case.image is None
    assert case.spacing is None
    assert case.group is None
    copy = pickle.loads(pickle.dumps(folder))  # as data loaders with several processes do
    np.testing.assert_array_equal(copy[2].logits, case.logits)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("score_end", [".npy", ".npz", ".nii.gz", ".nii"])
@pytest.mark.parametrize("label_end", [".npy", ".npz", ".nii.gz", ".nii"])
def test_array_formats(tmp_path: Path, dims: int, score_end: str, label_end: str) -> None:
    save(tmp_path / f"logits/a{score_end}", logits_of(dims).astype(">f4"))
    save(tmp_path / f"labels/a{label_end}", labels_of(dims))
    folder = open_folder(tmp_path)
    assert (folder.num_classes, folder.spatial_dims) == (5, dims)
    np.testing.assert_array_equal(folder[0].logits, logits_of(dims))
    np.testing.assert_array_equal(folder[0].labels, labels_of(dims))
    assert folder[0].logits.dtype.isnative
    assert folder[0].labels.dtype == np.uint8
    expected = (3.0, 2.0) if dims == 2 else (4.0, 3.0, 2.0)
    assert folder[0].spacing == (expected if ".nii" in score_end + label_end else None)


def palette_of(labels: np.ndarray) -> Image.Image:
    palette = Image.new("P", labels.shape[::-1])
    palette.putdata(labels.ravel().tolist())
    palette.putpalette([200, 7, 9] * 256)
    return palette


@pytest.mark.parametrize(
    ("name", "labels", "picture"),
    [
        ("a.png", labels_of(), Image.fromarray),
        ("a.PNG", labels_of(), Image.fromarray),
        ("a.webp", labels_of(), Image.fromarray),
        ("a.png", labels_of(), palette_of),
        ("a.png", labels_of().astype(np.uint16) * 9000, Image.fromarray),  # ignored labels stay as they are
        ("a.png", labels_of() > 2, Image.fromarray),
    ],
)
def test_label_pictures(tmp_path: Path, name: str, labels: np.ndarray, picture: Callable[..., Image.Image]) -> None:
    write_arrays(tmp_path, "a")
    (tmp_path / "labels/a.npy").unlink()
    picture(labels).save(tmp_path / "labels" / name, **({"lossless": True} if "w" in name else {}))
    case = open_folder(tmp_path)[0]
    np.testing.assert_array_equal(case.labels, labels)
    assert case.labels.dtype.kind in "iu"


@pytest.mark.parametrize("before", [(), ((b"tEXt", b"a\0" + b"\xff" * 30),)])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_label_pictures_of_few_bits_keep_their_numbers(tmp_path: Path, bits: int, before) -> None:
    write_arrays(tmp_path, "a")
    (tmp_path / "labels/a.npy").unlink()
    labels = labels_of() % min(5, 2**bits)
    (tmp_path / "labels/a.png").write_bytes(grey_png(labels, bits, *before))
    np.testing.assert_array_equal(open_folder(tmp_path)[0].labels, labels)


def test_unsigned_labels_of_64_bits(tmp_path: Path) -> None:
    write_arrays(tmp_path, "a")
    labels = labels_of().astype(np.uint64)
    save(tmp_path / "labels/a.npy", labels)
    np.testing.assert_array_equal(open_folder(tmp_path)[0].labels, labels_of())
    labels[1, 2] = 2**64 - 1
    save(tmp_path / "labels/a.npy", labels)
    assert "labels must be below 2^63, got 18446744073709551615 in" in complaint(tmp_path, ignore_index=-1)


def test_scaling_noise_of_labels_is_rounded_and_reported(tmp_path: Path) -> None:
    write_arrays(tmp_path, "a")
    save(tmp_path / "labels/a.npy", labels_of() * np.float32(1.0000152))
    with pytest.warns(CalibrationWarning, match=r"labels in .* not exactly whole numbers.*rounded, by at most 0.001"):
        case = open_folder(tmp_path)[0]
    np.testing.assert_array_equal(case.labels, labels_of())
    save(tmp_path / "labels/a.npy", labels_of() + np.float32(0.002))
    assert "labels must be whole numbers, got" in complaint(tmp_path)


@pytest.mark.parametrize("extension", [".npy", ".nii.gz"])
def test_whole_floats_are_labels_and_fractions_are_not(tmp_path: Path, extension: str) -> None:
    save(tmp_path / "logits/a.npy", logits_of(3))
    labels = labels_of(3).astype(np.float32)
    save(tmp_path / f"labels/a{extension}", labels)
    case = open_folder(tmp_path)[0]
    np.testing.assert_array_equal(case.labels, labels_of(3))
    assert case.labels.dtype == np.int64
    labels[1, 2, 3] = 1.5
    save(tmp_path / f"labels/a{extension}", labels)
    assert f"whole numbers, got 1.5 at (1, 2, 3) in '{tmp_path}/labels/a{extension}'" in complaint(tmp_path)
    labels[1, 2, 3] = np.nan
    save(tmp_path / f"labels/a{extension}", labels)
    assert "whole numbers, got nan at (1, 2, 3)" in complaint(tmp_path)


def test_npz_keys(tmp_path: Path) -> None:
    write_arrays(tmp_path, "ab")
    for name in "ab":
        (tmp_path / f"logits/{name}.npy").unlink()
        (tmp_path / f"labels/{name}.npy").unlink()
    np.savez(tmp_path / "logits/a.npz", other=np.zeros(3), logits=logits_of())
    np.savez(tmp_path / "logits/b.npz", anything=logits_of(seed=1))
    np.savez(tmp_path / "labels/a.npz", zeros=np.zeros(3), labels=labels_of())
    np.savez(tmp_path / "labels/b.npz", seg=labels_of(seed=1))
    first, second = open_folder(tmp_path)
    np.testing.assert_array_equal(first.logits, logits_of())
    np.testing.assert_array_equal(first.labels, labels_of())
    np.testing.assert_array_equal(second.logits, logits_of(seed=1))
    np.testing.assert_array_equal(second.labels, labels_of(seed=1))


@pytest.mark.parametrize("extension", [".npy", ".nii"])
def test_logits_stay_on_disk(tmp_path: Path, extension: str) -> None:
    save(tmp_path / f"logits/a{extension}", logits_of(3))
    save(tmp_path / "labels/a.nii.gz", labels_of(3))
    folder = open_folder(tmp_path)
    for _ in range(2):
        assert isinstance(folder[0].logits, np.memmap)
        assert not folder[0].logits.flags.writeable


def test_a_truncated_first_case_opens_by_its_header(tmp_path: Path) -> None:
    write_arrays(tmp_path, "ab")
    whole = (tmp_path / "logits/a.npy").read_bytes()
    (tmp_path / "logits/a.npy").write_bytes(whole[:-100])
    folder = open_folder(tmp_path)
    assert folder.num_classes == 5
    with pytest.raises(InputError, match=r"logits/a\.npy"):
        folder[0]
    (tmp_path / "logits/a.npy").write_bytes(b"no header at all")
    assert open_folder(tmp_path, num_classes=5)[1].name == "b"


@pytest.mark.parametrize("slab", [1, 1 << 24])
def test_large_scores_are_checked_in_slabs(tmp_path: Path, slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.cases.stream.SLAB", slab)
    monkeypatch.setattr("segcal.cases.stream._WHOLE", 1)
    monkeypatch.setattr("segcal.cases.stream.HOST_MEMORY", 0)
    write_arrays(tmp_path, "a", dims=3)
    read_all(open_folder(tmp_path))
    broken = logits_of(3)
    broken[4, 2, 1, 5] = np.inf
    save(tmp_path / "logits/a.npy", broken)
    assert "class, got inf at (4, 2, 1, 5) of case 'a'" in complaint(tmp_path)
    save(tmp_path / "logits/a.npy", logits_of(3).astype(np.int32))
    assert "floating point, got torch.int32" in complaint(tmp_path)
    save(tmp_path / "logits/a.npy", logits_of(3))
    assert "num_classes=4" in complaint(tmp_path, num_classes=4)


def test_npz_is_decompressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "logits/a.npz", logits_of(), key="logits")
    save(tmp_path / "labels/a.npy", labels_of())
    folder = open_folder(tmp_path)
    streams: list[Any] = []
    decompressed = arrays.decompressed
    monkeypatch.setattr(arrays, "decompressed", lambda *given: streams.append(given) or decompressed(*given))
    _ = folder[0]
    assert len(streams) == 1


def test_missing_folders(tmp_path: Path) -> None:
    assert f"'{tmp_path}/x' does not exist" in complaint(tmp_path / "x")
    (tmp_path / "file").write_text("")
    assert "is a file; give a folder" in complaint(tmp_path / "file")
    assert "must hold scores as logits/NAME" in complaint(tmp_path)
    (tmp_path / "logits").mkdir()
    assert "must hold scores as logits/NAME" in complaint(tmp_path)
    save(tmp_path / "logits/a.npy", logits_of())
    assert f"are needed, got none in '{tmp_path}/labels'" in complaint(tmp_path)
    write_arrays(tmp_path)
    assert f"the labels folder '{tmp_path}/truth' does not exist" in complaint(tmp_path, labels=tmp_path / "truth")


def test_missing_and_double_files(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    save(tmp_path / "labels/unused.npy", labels_of())
    (tmp_path / "logits/.hidden.npy").write_bytes(b"")
    (tmp_path / "logits/notes.txt").write_text("")
    with pytest.warns(CalibrationWarning, match=r"1 label file \('unused'\) in .* without scores: left out"):
        assert open_folder(tmp_path).names == ("a", "b")
    save(tmp_path / "labels/b.png", labels_of())
    assert f"label file, got '{tmp_path}/labels/b.npy' and '{tmp_path}/labels/b.png'" in complaint(tmp_path)
    (tmp_path / "labels/b.png").unlink()
    (tmp_path / "labels/b.npy").unlink()
    assert f"case 'b' must have one label file, got none at '{tmp_path}/labels/b.png'" in complaint(tmp_path)
    save(tmp_path / "labels/b.npy", labels_of())
    save(tmp_path / "logits/b.npz", logits_of())
    assert "case 'b' must have one score file, got" in complaint(tmp_path)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("extension", [".npy", ".npz"])
def test_nobody_labelled_them(tmp_path: Path, dims: int, extension: str) -> None:
    save(tmp_path / f"logits/a{extension}", logits_of(dims))
    save(tmp_path / "images/a.npy", np.ones((2, *SHAPES[dims]), np.float32))
    folder = open_folder(tmp_path, require_labels=False)
    assert (folder.num_classes, folder.spatial_dims, folder.image_channels) == (5, dims, 2)
    case = folder[0]
    assert case.labels is None
    np.testing.assert_array_equal(case.logits, logits_of(dims))
    assert case.image.shape == (2, *SHAPES[dims])
    assert write_map(tmp_path / "out", "a", np.ones(SHAPES[dims]), folder) == tmp_path / "out/a.npy"
    assert f"are needed, got none in '{tmp_path}/labels'" in complaint(tmp_path)


def test_some_have_labels(tmp_path: Path) -> None:
    write_arrays(tmp_path, "abc")
    (tmp_path / "labels/a.npy").unlink()
    first, second, _ = open_folder(tmp_path, require_labels=False)
    assert first.labels is None
    np.testing.assert_array_equal(second.labels, labels_of(seed=1))
    assert "case 'a' must have one label file, got none" in complaint(tmp_path)
    save(tmp_path / "labels/c.png", labels_of())
    assert "case 'c' must have one label file, got" in complaint(tmp_path, require_labels=False)
    message = complaint(tmp_path, labels=tmp_path / "truth", require_labels=False)
    assert f"the labels folder '{tmp_path}/truth' does not exist" in message  # it was asked for


def test_a_labelled_case_tells_the_class_axis_of_the_others(tmp_path: Path) -> None:
    write_nifti_case(tmp_path, "first")
    (tmp_path / "logits/a.nii.gz").rename(tmp_path / "logits/b.nii.gz")
    (tmp_path / "labels/a.nii.gz").rename(tmp_path / "labels/b.nii.gz")
    write_nifti_case(tmp_path, "first")
    (tmp_path / "labels/a.nii.gz").unlink()
    unlabelled, labelled = open_folder(tmp_path, require_labels=False)
    assert unlabelled.labels is None
    np.testing.assert_array_equal(unlabelled.logits, labelled.logits)


def test_cases_without_labels_are_checked(tmp_path: Path) -> None:
    save(tmp_path / "logits/a.npy", logits_of())
    save(tmp_path / "logits/b.npy", logits_of(3))
    message = complaint(tmp_path, require_labels=False)
    assert "must have 2 spatial axes as the first one, got scores of shape (5, 3, 4, 6) of case 'b'" in message
    save(tmp_path / "logits/b.npy", np.full((5, 4, 6), np.nan, np.float32))
    assert "class, got nan at (0, 0, 0) of case 'b'" in complaint(tmp_path, require_labels=False)
    save(tmp_path / "logits/a.npy", np.zeros((5, 7), np.float32))
    message = complaint(tmp_path, require_labels=False)
    assert "scores, without their class axis, must have shape [H, W] or [D, H, W], got (7,)" in message
    save(tmp_path / "logits/a.npy", np.float32(1.0))
    assert "got a single number" in complaint(tmp_path, require_labels=False)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("extension", [".npy", ".npz"])
def test_arrays_there_and_back(tmp_path: Path, dims: int, extension: str) -> None:
    save(tmp_path / f"logits/v1.5 a{extension}", logits_of(dims))
    save(tmp_path / "labels/v1.5 a.npy", labels_of(dims))
    folder = open_folder(tmp_path)
    path = write_scores(tmp_path / "out/logits", "v1.5 a", logits_of(dims, seed=3).astype(np.float16), folder)
    assert path == tmp_path / "out/logits/v1.5 a.npy"
    again = open_folder(tmp_path / "out", labels=tmp_path / "labels")[0]
    assert again.logits.dtype == np.float16
    np.testing.assert_array_equal(again.logits, logits_of(dims, seed=3).astype(np.float16))
    path = write_map(tmp_path / "maps", "v1.5 a", torch.full(SHAPES[dims], 2.0, dtype=torch.bfloat16), folder)
    assert path == tmp_path / "maps/v1.5 a.npy"
    np.testing.assert_array_equal(np.load(path), np.full(SHAPES[dims], 2.0))
    with pytest.raises(InputError, match="'b' must be a case of"):
        write_scores(tmp_path / "out", "b", logits_of(dims), folder)
    for write, values in ((write_scores, logits_of(dims)), (write_map, labels_of(dims))):
        with pytest.raises(InputError, match=r"exists, and a file that ends in '\.npy' cannot tell"):
            write(tmp_path / "maps", "v1.5 a", values, folder)
