"""Folders on disk: every format there and back, laziness, nnU-Net, and a clear sentence for every mistake."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from segcal.data.folders.folder import Folder, open_folder, write_map, write_scores
from segcal.data.io import formats, nifti, npz
from segcal.types import InputError
from support.folder_reading import complaint, read_all

SHAPES = {2: (4, 6), 3: (3, 4, 6)}
AFFINE = np.array([[-2.0, 0, 0, 10], [0, 0, 4, -20], [0, 3, 0, 30], [0, 0, 0, 1]])  # x 2 mm, y 3 mm, z 4 mm


def logits_of(dims: int = 2, classes: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(classes, *SHAPES[dims])).astype(np.float32)


def labels_of(dims: int = 2, classes: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + 100).integers(0, classes, SHAPES[dims]).astype(np.uint8)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(0))
    return powers / powers.sum(0)


def save(path: Path, array: np.ndarray, **options: Any) -> None:
    """Write an array `[*S]` the way its extension asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez_compressed(path, **{options.get("key", "arr_0"): array})
    elif ".nii" in path.suffixes:
        nibabel.save(nibabel.Nifti1Image(array.T, AFFINE), path)
    else:
        Image.fromarray(array).save(path, **({"lossless": True} if path.suffix == ".webp" else {}))


def make(root: Path, names: str = "ab", dims: int = 2, toml: str = "") -> Path:
    """A folder of .npy logits and .npy labels, and a segcal.toml if there is something to say."""
    for seed, name in enumerate(names):
        save(root / f"logits/{name}.npy", logits_of(dims, seed=seed))
        save(root / f"labels/{name}.npy", labels_of(dims, seed=seed))
    if toml:
        (root / "segcal.toml").write_text(toml)
    return root


# ---- what is read -------------------------------------------------------------------------------------


def test_attributes_and_sequence(tmp_path: Path) -> None:
    folder = open_folder(make(tmp_path, "bca", dims=3))
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
    save(tmp_path / f"logits/a{score_end}", logits_of(dims))
    save(tmp_path / f"labels/a{label_end}", labels_of(dims))
    folder = open_folder(tmp_path)
    assert (folder.num_classes, folder.spatial_dims) == (5, dims)
    np.testing.assert_array_equal(folder[0].logits, logits_of(dims))
    np.testing.assert_array_equal(folder[0].labels, labels_of(dims))
    assert folder[0].labels.dtype == np.uint8
    expected = (3.0, 2.0) if dims == 2 else (4.0, 3.0, 2.0)
    assert folder[0].spacing == (expected if ".nii" in score_end + label_end else None)


@pytest.mark.parametrize("extension", [".png", ".PNG", ".webp"])
def test_label_pictures(tmp_path: Path, extension: str) -> None:
    make(tmp_path, "a")
    (tmp_path / "labels/a.npy").unlink()
    Image.fromarray(labels_of()).save(
        tmp_path / f"labels/a{extension}", **({"lossless": True} if "w" in extension else {})
    )
    np.testing.assert_array_equal(open_folder(tmp_path)[0].labels, labels_of())


def test_label_pictures_with_palette_sixteen_bits_and_one_bit(tmp_path: Path) -> None:
    make(tmp_path, "abc")
    for name in "abc":
        (tmp_path / f"labels/{name}.npy").unlink()
    palette = Image.new("P", (6, 4))
    palette.putdata(labels_of().ravel().tolist())
    palette.putpalette([200, 7, 9] * 256)
    palette.save(tmp_path / "labels/a.png")
    wide = labels_of().astype(np.uint16)
    wide[0, 0] = 40000
    Image.fromarray(wide).save(tmp_path / "labels/b.png")
    Image.fromarray(labels_of() > 2).save(tmp_path / "labels/c.png")
    palette_case, wide_case, bit_case = open_folder(tmp_path, ignore_index=40000)
    np.testing.assert_array_equal(palette_case.labels, labels_of())
    np.testing.assert_array_equal(wide_case.labels, wide)  # the ignored label stays as it is
    np.testing.assert_array_equal(bit_case.labels, labels_of() > 2)
    assert all(case.labels.dtype.kind in "iu" for case in (palette_case, wide_case, bit_case))


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
    make(tmp_path, "ab")
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


def test_other_byte_order_is_read(tmp_path: Path) -> None:
    save(tmp_path / "logits/a.npy", logits_of().astype(">f4"))
    save(tmp_path / "labels/a.npy", labels_of().astype(">i2"))
    case = open_folder(tmp_path)[0]
    np.testing.assert_array_equal(case.logits, logits_of())
    assert torch.from_numpy(np.array(case.labels)).sum() == labels_of().sum()


# ---- laziness -----------------------------------------------------------------------------------------


def test_logits_stay_on_disk(tmp_path: Path) -> None:
    folder = open_folder(make(tmp_path))
    for _ in range(2):
        assert isinstance(folder[0].logits, np.memmap)
        assert not folder[0].logits.flags.writeable


def test_uncompressed_nifti_stays_on_disk(tmp_path: Path) -> None:
    save(tmp_path / "logits/a.nii", logits_of(3))
    save(tmp_path / "labels/a.nii.gz", labels_of(3))
    assert isinstance(open_folder(tmp_path)[0].logits, np.memmap)


@pytest.mark.parametrize("extension", [".npy", ".npz", ".nii.gz", ".nii"])
def test_a_damaged_case_is_not_touched_until_loaded(tmp_path: Path, extension: str) -> None:
    make(tmp_path, "a", dims=3)
    save(tmp_path / "labels/b.nii.gz", labels_of(3))
    noise = np.random.default_rng(0).normal(size=(5, 3, 4, 6)).astype(np.float32)
    save(tmp_path / f"logits/b{extension}", noise)
    whole = (tmp_path / f"logits/b{extension}").read_bytes()
    (tmp_path / f"logits/b{extension}").write_bytes(whole[: len(whole) // 2])
    folder = open_folder(tmp_path)
    assert folder[0].name == "a"
    with pytest.raises(InputError, match=rf"logits/b{extension}' must be a readable.*; write it again"):
        folder[1]


def test_a_truncated_first_case_opens_by_its_header(tmp_path: Path) -> None:
    make(tmp_path, "ab")
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
    monkeypatch.setattr("segcal.cases.reading.SLAB", slab)
    monkeypatch.setattr("segcal.cases.reading._WHOLE", 1)
    monkeypatch.setattr("segcal.cases.stream.HOST_MEMORY", 0)
    make(tmp_path, "a", dims=3)
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
    decompressed = npz.decompressed
    monkeypatch.setattr(npz, "decompressed", lambda *given: streams.append(given) or decompressed(*given))
    _ = folder[0]
    assert len(streams) == 1


# ---- images -------------------------------------------------------------------------------------------


def with_image(root: Path, extension: str, image: np.ndarray, **options: Any) -> Folder:
    make(root, "a", dims=options.get("dims", 2))
    (root / "images").mkdir()
    if extension == ".npy":
        np.save(root / "images/a.npy", image)
    elif "nii" in extension:
        nibabel.save(nibabel.Nifti1Image(image, AFFINE), root / f"images/a{extension}")
    else:
        Image.fromarray(image).save(root / f"images/a{extension}", **options.get("save", {}))
    return open_folder(root)


@pytest.mark.parametrize("extension", [".png", ".webp"])
def test_colour_pictures(tmp_path: Path, extension: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    folder = with_image(tmp_path, extension, pixels, save={"lossless": True} if extension == ".webp" else {})
    image = folder[0].image
    assert folder.image_channels == 3
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, pixels.transpose(2, 0, 1) / 255, rtol=1e-6)


@pytest.mark.parametrize("extension", [".jpg", ".jpeg"])
def test_jpeg_pictures(tmp_path: Path, extension: str) -> None:
    image = with_image(tmp_path, extension, np.full((4, 6, 3), 51, np.uint8))[0].image
    assert image.shape == (3, 4, 6)
    np.testing.assert_allclose(image, 0.2, atol=0.01)


def test_grey_pictures_of_eight_and_sixteen_bits(tmp_path: Path) -> None:
    (tmp_path / "8").mkdir()
    (tmp_path / "16").mkdir()
    eight = with_image(tmp_path / "8", ".png", np.full((4, 6), 255, np.uint8))
    assert eight.image_channels == 1
    np.testing.assert_array_equal(eight[0].image, np.ones((1, 4, 6), np.float32))
    sixteen = with_image(tmp_path / "16", ".png", np.full((4, 6), 13107, np.uint16))
    assert sixteen[0].image.shape == (1, 4, 6)
    np.testing.assert_allclose(sixteen[0].image, 0.2, rtol=1e-6)


def test_palette_picture_as_image_is_its_colours(tmp_path: Path) -> None:
    make(tmp_path, "a")
    (tmp_path / "images").mkdir()
    picture = Image.new("P", (6, 4), 1)
    picture.putpalette([0, 0, 0, 255, 51, 0])
    picture.save(tmp_path / "images/a.png")
    image = open_folder(tmp_path)[0].image
    np.testing.assert_allclose(image[:, 0, 0], [1.0, 0.2, 0.0], rtol=1e-6)


@pytest.mark.parametrize(("shape", "channels"), [((4, 6), 1), ((2, 4, 6), 2)])
def test_npy_images_are_taken_as_they_are(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    folder = with_image(tmp_path, ".npy", values)
    assert folder.image_channels == channels
    np.testing.assert_array_equal(folder[0].image, values.reshape(channels, 4, 6))


@pytest.mark.parametrize("channels", [1, 2])
def test_nifti_images(tmp_path: Path, channels: int) -> None:
    values = np.random.default_rng(0).normal(size=(6, 4, 3, channels)).astype(np.float32)  # x y z c
    folder = with_image(tmp_path, ".nii.gz", values if channels == 2 else values[..., 0], dims=3)
    assert folder.image_channels == channels
    np.testing.assert_array_equal(folder[0].image, values.T)
    assert folder[0].spacing == (4.0, 3.0, 2.0)


def test_all_images_or_none(tmp_path: Path) -> None:
    make(tmp_path, "abc")
    (tmp_path / "images").mkdir()
    assert open_folder(tmp_path)[0].image is None  # an empty folder is none
    for name in "ac":
        Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / f"images/{name}.png")
    assert f"case 'b' must have one image file, got none at '{tmp_path}/images/b.png'" in complaint(tmp_path)


def test_images_that_disagree(tmp_path: Path) -> None:
    make(tmp_path, "ab")
    save(tmp_path / "images/a.npy", np.zeros((3, 4, 6), np.float32))
    save(tmp_path / "images/b.npy", np.zeros((3, 4, 5), np.float32))
    assert "image must have shape (C, 4, 6)" in (message := complaint(tmp_path))
    assert "got (3, 4, 5) of case 'b'" in message
    save(tmp_path / "images/b.npy", np.zeros((4, 6), np.float32))
    assert "images must have 3 channels" in (message := complaint(tmp_path))
    assert "got shape (1, 4, 6) of case 'b'" in message
    save(tmp_path / "images/b.npy", np.full((3, 4, 6), np.inf, np.float32))
    assert "images must be finite" in complaint(tmp_path)


# ---- segcal.toml and splits.json ----------------------------------------------------------------------


def test_settings_and_what_overrides_them(tmp_path: Path) -> None:
    toml = 'classes = ["sky", "road", "car", "tree", "void"]\nignore_index = [4, 255]\nbackground = 0\n'
    make(tmp_path, toml=toml)
    folder = open_folder(tmp_path)
    assert folder.class_names == ("sky", "road", "car", "tree", "void")
    assert (folder.num_classes, folder.ignore_index, folder.background) == (5, (4, 255), 0)
    other = open_folder(tmp_path, ignore_index=3, background=1, num_classes=5)
    assert (other.ignore_index, other.background) == ((3,), 1)
    (tmp_path / "segcal.toml").write_text("ignore_index = 255")
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
        ("spacing = [1, 1, 1]", "spacing must have 2 lengths, one for each spatial axis, got (1, 1, 1) of case 'a'"),
        ("classes = [", "segcal.toml' must be readable TOML"),
        ("background = 5", "background must be a class in 0..4, got 5"),
    ],
)
def test_wrong_settings(tmp_path: Path, toml: str, expected: str) -> None:
    assert expected in complaint(make(tmp_path, toml=toml))


def test_wrong_arguments(tmp_path: Path) -> None:
    make(tmp_path, toml='classes = ["a", "b", "c", "d", "e"]')
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
    make(tmp_path, "ab", toml='[group]\na = "patient 7"\n[spacing]\nb = [0.5, 2]\n')
    first, second = open_folder(tmp_path)
    assert (first.group, first.spacing) == ("patient 7", None)
    assert (second.group, second.spacing) == (None, (0.5, 2))
    (tmp_path / "segcal.toml").write_text("spacing = [0.5, 2]")
    assert [case.spacing for case in open_folder(tmp_path)] == [(0.5, 2)] * 2


def test_spacing_of_a_header_goes_before_the_settings(tmp_path: Path) -> None:
    nifti_case(tmp_path, "last")
    (tmp_path / "segcal.toml").write_text("spacing = [1, 1, 1]")
    assert open_folder(tmp_path)[0].spacing == (4.0, 3.0, 2.0)


def test_splits(tmp_path: Path) -> None:
    make(tmp_path, "abcd")
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
    make(tmp_path)
    (tmp_path / "splits.json").write_text(json.dumps(splits))
    assert expected in complaint(tmp_path)


def test_split_without_file_and_broken_file(tmp_path: Path) -> None:
    make(tmp_path)
    assert "got 'fit'; present: no splits.json" in complaint(tmp_path, split="fit")
    (tmp_path / "splits.json").write_text("{")
    assert "not readable JSON" in complaint(tmp_path)


# ---- folders that are wrong ---------------------------------------------------------------------------


def test_missing_folders(tmp_path: Path) -> None:
    assert f"'{tmp_path}/x' must exist, got nothing" in complaint(tmp_path / "x")
    (tmp_path / "file").write_text("")
    assert "got a file there" in complaint(tmp_path / "file")
    assert "must hold scores as logits/NAME" in complaint(tmp_path)
    (tmp_path / "logits").mkdir()
    assert "must hold scores as logits/NAME" in complaint(tmp_path)
    save(tmp_path / "logits/a.npy", logits_of())
    assert f"the labels folder '{tmp_path}/labels' must exist" in complaint(tmp_path)
    make(tmp_path)
    assert f"the labels folder '{tmp_path}/truth' must exist" in complaint(tmp_path, labels=tmp_path / "truth")


def test_missing_and_double_files(tmp_path: Path) -> None:
    make(tmp_path)
    save(tmp_path / "labels/unused.npy", labels_of())
    (tmp_path / "logits/.hidden.npy").write_bytes(b"")
    (tmp_path / "logits/notes.txt").write_text("")
    assert open_folder(tmp_path).names == ("a", "b")
    save(tmp_path / "labels/b.png", labels_of())
    assert f"label file, got '{tmp_path}/labels/b.npy' and '{tmp_path}/labels/b.png'" in complaint(tmp_path)
    (tmp_path / "labels/b.png").unlink()
    (tmp_path / "labels/b.npy").unlink()
    assert f"case 'b' must have one label file, got none at '{tmp_path}/labels/b.png'" in complaint(tmp_path)
    save(tmp_path / "labels/b_.npy", labels_of())
    assert "did you mean 'b_.npy'? rename it" in complaint(tmp_path)
    (tmp_path / "labels/b_.npy").unlink()
    save(tmp_path / "labels/b.npy", labels_of())
    save(tmp_path / "logits/b.npz", logits_of())
    assert "case 'b' must have one score file, got" in complaint(tmp_path)


def test_labels_from_elsewhere(tmp_path: Path) -> None:
    make(tmp_path / "data", "a")
    other = labels_of(seed=9)
    save(tmp_path / "truth/a.png", other)
    np.testing.assert_array_equal(open_folder(tmp_path / "data", labels=str(tmp_path / "truth"))[0].labels, other)


# ---- folders without labels ---------------------------------------------------------------------------


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
    assert f"the labels folder '{tmp_path}/labels' must exist" in complaint(tmp_path)


def test_some_have_labels(tmp_path: Path) -> None:
    make(tmp_path, "abc")
    (tmp_path / "labels/a.npy").unlink()
    first, second, _ = open_folder(tmp_path, require_labels=False)
    assert first.labels is None
    np.testing.assert_array_equal(second.labels, labels_of(seed=1))
    assert "case 'a' must have one label file, got none" in complaint(tmp_path)
    save(tmp_path / "labels/c.png", labels_of())
    assert "case 'c' must have one label file, got" in complaint(tmp_path, require_labels=False)
    message = complaint(tmp_path, labels=tmp_path / "truth", require_labels=False)
    assert f"the labels folder '{tmp_path}/truth' must exist" in message  # it was asked for


def test_a_labelled_case_tells_the_class_axis_of_the_others(tmp_path: Path) -> None:
    nifti_case(tmp_path, "first")
    (tmp_path / "logits/a.nii.gz").rename(tmp_path / "logits/b.nii.gz")
    (tmp_path / "labels/a.nii.gz").rename(tmp_path / "labels/b.nii.gz")
    nifti_case(tmp_path, "first")
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


# ---- content that is wrong ----------------------------------------------------------------------------


def test_shapes_and_classes_that_disagree(tmp_path: Path) -> None:
    make(tmp_path)
    save(tmp_path / "logits/b.npy", logits_of(classes=4))
    message = complaint(tmp_path)
    assert "num_classes=5" in message
    assert "case 'b'" in message
    save(tmp_path / "logits/b.npy", logits_of()[:, :, :-1])
    assert "labels must have shape (4, 5)" in (message := complaint(tmp_path))
    assert "got (4, 6) of case 'b'" in message
    save(tmp_path / "labels/a.npy", np.zeros(7, np.uint8))
    assert "labels must have shape [H, W] or [D, H, W], got (7,)" in complaint(tmp_path)
    save(tmp_path / "logits/a.npy", np.float32(1.0))
    assert "scores must have shape [L, *S], got a single number" in complaint(make_labels(tmp_path))


def test_pictures_among_volumes(tmp_path: Path) -> None:
    make(tmp_path, "a", dims=2)
    save(tmp_path / "logits/b.npy", logits_of(3))
    save(tmp_path / "labels/b.npy", labels_of(3))
    message = complaint(tmp_path)
    assert "must have 2 spatial axes" in message
    assert "got scores of shape (5, 3, 4, 6) of case 'b'" in message


def make_labels(root: Path) -> Path:
    save(root / "labels/a.npy", labels_of())
    return root


def test_labels_out_of_range(tmp_path: Path) -> None:
    make(tmp_path)
    labels = labels_of(seed=1)
    labels[2, 3] = 255
    save(tmp_path / "labels/b.npy", labels)
    assert "labels must be in 0..4, got 255 at (2, 3) of case 'b'" in complaint(tmp_path)
    assert "or ignore_index=-1, got 255" in complaint(tmp_path, ignore_index=-1)
    np.testing.assert_array_equal(open_folder(tmp_path, ignore_index=255)[1].labels, labels)


def test_logits_that_are_no_floats(tmp_path: Path) -> None:
    make(tmp_path)
    save(tmp_path / "logits/b.npy", logits_of().astype(np.int32))
    assert "floating point, got torch.int32 of case 'b'" in complaint(tmp_path)
    save(tmp_path / "logits/b.npy", logits_of().astype(np.complex64))
    assert "plain numbers of at most 64 bits, got complex64" in complaint(tmp_path)


@pytest.mark.parametrize("where", ["logits", "labels"])
@pytest.mark.parametrize("extension", [".npy", ".npz"])
def test_pickles_are_never_loaded(tmp_path: Path, where: str, extension: str) -> None:
    make(tmp_path)
    (tmp_path / where / "b.npy").unlink()
    save(tmp_path / where / f"b{extension}", np.array([{"a": 1}], dtype=object))
    assert f"{where}/b{extension}' must hold a plain array of numbers, got pickled objects" in complaint(tmp_path)
    (tmp_path / where / f"b{extension}").write_bytes(pickle.dumps([1, 2]))
    assert f"{where}/b{extension}' must hold a plain array of numbers" in complaint(tmp_path)


@pytest.mark.parametrize("extension", [".npy", ".npz", ".nii.gz", ".nii"])
@pytest.mark.parametrize("keep", [0.0, 0.03, 0.5, 0.97])
def test_truncated_arrays(tmp_path: Path, extension: str, keep: float) -> None:
    make(tmp_path, "a", dims=3)
    (tmp_path / "logits/a.npy").unlink()
    path = tmp_path / f"logits/a{extension}"
    save(path, logits_of(3))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    message = complaint(tmp_path)
    assert message.startswith(f"'{path}' must ")
    assert message.endswith(("; write it again", "with np.save or np.savez"))


def test_damaged_bytes_inside_an_archive(tmp_path: Path) -> None:
    make(tmp_path, "a")
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
    make(tmp_path, "a", dims=3)
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


def test_a_header_that_promises_too_much_takes_no_memory(tmp_path: Path) -> None:
    make(tmp_path, "a", dims=3)
    (tmp_path / "logits/a.npy").unlink()
    image = nibabel.Nifti1Image(np.zeros((6, 4, 3, 5), np.float32), AFFINE)
    content = bytearray(image.to_bytes())
    content[48:50] = (30000).to_bytes(2, "little")  # dim[4]
    (tmp_path / "logits/a.nii.gz").write_bytes(gzip.compress(content))
    tracemalloc.start()
    message = complaint(tmp_path, num_classes=30000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "must be a readable .nii.gz file" in message
    assert peak < 6 * 4 * 3 * 30000 * 4 / 2


def test_compressed_nifti_is_held_once(tmp_path: Path) -> None:
    values = np.zeros((96, 96, 48, 5), np.float32)
    save(tmp_path / "logits/a.nii.gz", values.T)
    tracemalloc.start()
    nifti.read_channels(tmp_path / "logits/a.nii.gz", values.shape[2::-1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * values.nbytes


@pytest.mark.parametrize("where", ["labels", "images"])
@pytest.mark.parametrize("keep", [0, 20, 60])
def test_unreadable_pictures(tmp_path: Path, where: str, keep: int) -> None:
    make(tmp_path, "a")
    if where == "labels":
        (tmp_path / "labels/a.npy").unlink()
    path = tmp_path / where / "a.png"
    save(path, labels_of())
    path.write_bytes(path.read_bytes()[:keep])
    assert f"'{path}' must be a readable .png file" in complaint(tmp_path)


def test_pictures_that_are_no_labels(tmp_path: Path) -> None:
    make(tmp_path, "a")
    (tmp_path / "labels/a.npy").unlink()
    colours = np.random.default_rng(0).integers(0, 5, (4, 6, 3), dtype=np.uint8)
    save(tmp_path / "labels/a.png", colours)
    assert f"one number per pixel, got mode RGB in '{tmp_path}/labels/a.png'" in complaint(tmp_path)
    (tmp_path / "labels/a.png").unlink()
    save(tmp_path / "labels/a.webp", colours)
    assert "one number per pixel, got colours in" in complaint(tmp_path)
    Image.fromarray(labels_of()).save(tmp_path / "labels/a.webp", lossless=False)
    assert "stored without loss, got a lossy WebP" in complaint(tmp_path)


def test_archives_and_arrays_under_the_other_name(tmp_path: Path) -> None:
    make(tmp_path, "a")
    save(tmp_path / "x.npz", logits_of())
    (tmp_path / "logits/a.npy").write_bytes((tmp_path / "x.npz").read_bytes())
    assert "must be a .npy file, got a .npz archive" in complaint(tmp_path, num_classes=5)
    (tmp_path / "logits/a.npy").unlink()
    save(tmp_path / "x.npy", logits_of())
    (tmp_path / "logits/a.npz").write_bytes((tmp_path / "x.npy").read_bytes())
    assert "must be a .npz archive, got a .npy file" in complaint(tmp_path, num_classes=5)


def test_a_file_that_vanished(tmp_path: Path) -> None:
    folder = open_folder(make(tmp_path))
    (tmp_path / "logits/b.npy").unlink()
    with pytest.raises(InputError, match=r"b.npy' must exist, but it is gone"):
        folder[1]


def test_nibabel_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a", dims=3)
    (tmp_path / "labels/a.npy").unlink()
    save(tmp_path / "labels/a.nii.gz", labels_of(3))
    monkeypatch.setitem(sys.modules, "nibabel", None)
    assert complaint(tmp_path).endswith("; pip install segcal[medical]")


# ---- probabilities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("extension", [".npy", ".npz"])
def test_probabilities_become_logits(tmp_path: Path, dtype: Any, extension: str) -> None:
    probs = softmax(logits_of()).astype(dtype)
    save(tmp_path / f"logits/a{extension}", probs, key="probabilities")
    save(tmp_path / "labels/a.npy", labels_of())
    (tmp_path / "segcal.toml").write_text('scores = "probabilities"')
    folder = open_folder(tmp_path)
    assert folder.scores == "probabilities"
    logits = folder[0].logits
    assert isinstance(logits, torch.Tensor)
    torch.testing.assert_close(logits.softmax(0).double(), torch.from_numpy(probs).double(), rtol=2e-3, atol=1e-6)
    np.testing.assert_array_equal(logits.argmax(0), probs.argmax(0))


def test_certain_probabilities_stay_finite(tmp_path: Path) -> None:
    probs = np.zeros((5, 4, 6), np.float32)
    probs[2] = 1
    save(tmp_path / "logits/a.npy", probs)
    save(tmp_path / "labels/a.npy", labels_of())
    logits = open_folder(tmp_path, scores="probabilities")[0].logits
    assert torch.isfinite(torch.as_tensor(logits)).all()


def test_scores_that_are_no_probabilities(tmp_path: Path) -> None:
    make(tmp_path, "a")
    assert "probabilities must be in 0..1" in (message := complaint(tmp_path, scores="probabilities"))
    assert "of case 'a'; if these are logits, set scores" in message
    probs = softmax(logits_of())
    probs[:, 1, 2] *= 0.98
    save(tmp_path / "logits/a.npy", probs)
    message = complaint(tmp_path, scores="probabilities")
    assert "must sum to 1 over the classes, got 0.98 at (1, 2) of case 'a'" in message
    probs[3, 1, 2] = np.nan
    save(tmp_path / "logits/a.npy", probs)
    assert "got nan at (3, 1, 2) of case 'a'" in complaint(tmp_path, scores="probabilities")
    save(tmp_path / "logits/a.npy", np.ones((5, 4, 6), np.int64))
    assert "floating point, got int64 of case 'a'" in complaint(tmp_path, scores="probabilities")


def test_key_and_declared_scores_disagree(tmp_path: Path) -> None:
    save(tmp_path / "labels/a.npy", labels_of())
    save(tmp_path / "logits/a.npz", softmax(logits_of()), key="probabilities")
    assert "declared to be logits, got 'probabilities'; set scores = \"probabilities\"" in complaint(tmp_path)
    save(tmp_path / "logits/a.npz", logits_of(), key="logits")
    assert "declared to be probabilities, got 'logits'" in complaint(tmp_path, scores="probabilities")
    np.savez(tmp_path / "logits/a.npz", x=logits_of(), y=logits_of())
    assert "an array 'logits' or a single array, got ['x', 'y']" in complaint(tmp_path)


# ---- NIfTI geometry -----------------------------------------------------------------------------------


def nifti_case(root: Path, layout: str, extension: str = ".nii.gz") -> np.ndarray:
    """Scores whose value at class l and voxel (x, y, z) is 1000 l + 100 x + 10 y + z."""
    digits = [np.arange(size) for size in (2, 6, 4, 3)]
    scores = sum(w * grid for w, grid in zip((1000, 100, 10, 1), np.meshgrid(*digits, indexing="ij"), strict=True))
    stored = {
        "first": scores,
        "last": np.moveaxis(scores, 0, -1),
        "vector": np.moveaxis(scores, 0, -1)[:, :, :, None],
    }
    for where in ("logits", "labels"):
        (root / where).mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(stored[layout].astype(np.float32), AFFINE)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, root / f"logits/a{extension}")
    labels = np.zeros((6, 4, 3), np.int16)
    labels[5, 2, 1] = 1  # x, y, z
    truth = nibabel.Nifti1Image(labels, AFFINE)
    truth.header.set_xyzt_units("mm")
    truth.header.set_intent("label")
    nibabel.save(truth, root / f"labels/a{extension}")
    return scores


@pytest.mark.parametrize("layout", ["first", "last", "vector"])
def test_nifti_voxel_by_hand(tmp_path: Path, layout: str) -> None:
    nifti_case(tmp_path, layout)
    folder = open_folder(tmp_path)
    case = folder[0]
    assert (folder.num_classes, folder.spatial_dims) == (2, 3)
    assert case.logits.shape == (2, 3, 4, 6)
    assert case.logits[1, 2, 3, 5] == 1532  # class 1, z 2, y 3, x 5
    assert case.logits[0, 1, 0, 4] == 401
    assert np.argwhere(case.labels).tolist() == [[1, 2, 5]]
    assert case.spacing == (4.0, 3.0, 2.0)


@pytest.mark.parametrize("layout", ["first", "last"])
def test_spacing_from_scores_alone(tmp_path: Path, layout: str) -> None:
    nifti_case(tmp_path, layout)
    (tmp_path / "labels/a.nii.gz").unlink()
    np.save(tmp_path / "labels/a.npy", np.zeros((3, 4, 6), np.uint8))
    assert open_folder(tmp_path)[0].spacing == (4.0, 3.0, 2.0)


def test_class_axis_first_where_both_fit(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 3, 3, 3)).astype(np.float32)
    for where, array in (("logits", values), ("labels", np.zeros((3, 3, 3), np.uint8))):
        (tmp_path / where).mkdir()
        nibabel.save(nibabel.Nifti1Image(array, AFFINE), tmp_path / where / "a.nii")
    logits = open_folder(tmp_path)[0].logits
    assert logits[2, 0, 1, 2] == values[2, 2, 1, 0]


def test_nifti_shapes_that_disagree(tmp_path: Path) -> None:
    nifti_case(tmp_path, "last")
    nibabel.save(nibabel.Nifti1Image(np.zeros((6, 4, 4), np.uint8), AFFINE), tmp_path / "labels/a.nii.gz")
    message = complaint(tmp_path)
    assert "logits/a.nii.gz' must have NIfTI shape (L, 6, 4, 4) or (6, 4, 4, L)" in message
    assert "got (6, 4, 3, 2)" in message


def test_labels_with_a_time_axis_of_one(tmp_path: Path) -> None:
    nifti_case(tmp_path, "last")
    labels = np.zeros((6, 4, 3, 1), np.uint8)
    labels[5, 2, 1] = 1
    nibabel.save(nibabel.Nifti1Image(labels, AFFINE), tmp_path / "labels/a.nii.gz")
    folder = open_folder(tmp_path)
    assert np.argwhere(folder[0].labels).tolist() == [[1, 2, 5]]
    path = write_map(tmp_path / "out", "a", np.ones((3, 4, 6), np.float32), folder)
    assert nibabel.load(path).shape == (6, 4, 3, 1)


@pytest.mark.parametrize("layout", ["first", "last", "vector"])
@pytest.mark.parametrize("extension", [".nii.gz", ".nii"])
def test_nifti_there_and_back(tmp_path: Path, layout: str, extension: str) -> None:
    nifti_case(tmp_path, layout, extension)
    folder = open_folder(tmp_path)
    path = write_scores(tmp_path / "out", "a", np.asarray(folder[0].logits, np.float16), folder)
    assert path == tmp_path / f"out/a{extension}"
    written, source = nibabel.load(path), nibabel.load(tmp_path / f"logits/a{extension}")
    np.testing.assert_array_equal(written.get_fdata(), np.float16(source.get_fdata()))
    np.testing.assert_array_equal(written.affine, AFFINE)
    assert written.header.get_zooms() == source.header.get_zooms()
    assert written.header.get_xyzt_units() == source.header.get_xyzt_units()
    assert written.get_data_dtype() == np.float32
    assert sorted(file.name for file in path.parent.iterdir()) == [f"a{extension}"]  # nothing temporary is left


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("nifti_labels", [True, False])
def test_maps_of_nifti_scores(tmp_path: Path, layout: str, nifti_labels: bool) -> None:
    nifti_case(tmp_path, layout)
    if not nifti_labels:
        (tmp_path / "labels/a.nii.gz").unlink()
        np.save(tmp_path / "labels/a.npy", np.zeros((3, 4, 6), np.uint8))
    folder = open_folder(tmp_path)
    temperature = torch.ones(3, 4, 6)
    temperature[1, 2, 5] = 7.5
    written = nibabel.load(write_map(tmp_path / "out", "a", temperature, folder))
    assert np.argwhere(written.get_fdata() == 7.5).tolist() == [[5, 2, 1]]
    np.testing.assert_array_equal(written.affine, AFFINE)
    assert written.header.get_zooms() == (2.0, 3.0, 4.0)
    assert written.header.get_xyzt_units()[0] == "mm"
    assert written.header.get_intent()[0] == "none"  # temperatures are no labels
    assert written.get_data_dtype() == np.float32
    with pytest.raises(InputError, match="NIfTI shape"):
        write_map(tmp_path / "out", "a", torch.ones(3, 4, 5), folder)


def test_scaled_nifti_is_read_and_written_in_true_values(tmp_path: Path) -> None:
    nifti_case(tmp_path, "last")
    image = nibabel.load(tmp_path / "logits/a.nii.gz")
    image.header.set_data_dtype(np.int16)
    image.header.set_slope_inter(0.5, 10)
    nibabel.save(nibabel.Nifti1Image(image.get_fdata(), AFFINE, image.header), tmp_path / "logits/b.nii.gz")
    (tmp_path / "logits/b.nii.gz").rename(tmp_path / "logits/a.nii.gz")
    folder = open_folder(tmp_path)
    np.testing.assert_allclose(folder[0].logits[1, 2, 3, 5], 1532, atol=0.1)
    written = nibabel.load(write_scores(tmp_path / "out", "a", folder[0].logits, folder))
    np.testing.assert_allclose(written.get_fdata()[5, 3, 2, 1], 1532, atol=0.1)


def test_class_axis_without_labels(tmp_path: Path) -> None:
    nifti_case(tmp_path, "first")  # NIfTI shape 2 6 4 3
    (tmp_path / "labels/a.nii.gz").unlink()
    message = complaint(tmp_path, require_labels=False)
    assert f"the class axis of '{tmp_path}/logits/a.nii.gz' must be known, got NIfTI shape (2, 6, 4, 3)" in message
    assert "; give num_classes" in message
    folder = open_folder(tmp_path, require_labels=False, num_classes=2)
    assert folder.spatial_dims == 3
    assert folder[0].logits[1, 2, 3, 5] == 1532
    assert folder[0].spacing == (4.0, 3.0, 2.0)
    (tmp_path / "segcal.toml").write_text('classes = ["a", "b"]')
    assert open_folder(tmp_path, require_labels=False)[0].logits[0, 1, 0, 4] == 401
    (tmp_path / "segcal.toml").unlink()
    assert "must have num_classes=7 entries along the first or the last" in complaint(
        tmp_path, require_labels=False, num_classes=7
    )


@pytest.mark.parametrize("layout", ["last", "vector"])
@pytest.mark.parametrize("num_classes", [None, 2])
def test_class_axis_last_without_labels(tmp_path: Path, layout: str, num_classes: int | None) -> None:
    nifti_case(tmp_path, layout)
    (tmp_path / "labels/a.nii.gz").unlink()
    folder = open_folder(tmp_path, require_labels=False, num_classes=num_classes)
    assert (folder.num_classes, folder.spatial_dims) == (2, 3)
    assert folder[0].logits[1, 2, 3, 5] == 1532
    assert folder[0].labels is None


def test_flat_nifti_without_labels(tmp_path: Path) -> None:
    save(tmp_path / "logits/a.nii.gz", logits_of(2))  # NIfTI shape 6 4 5
    assert "class axis" in complaint(tmp_path, require_labels=False)
    folder = open_folder(tmp_path, require_labels=False, num_classes=5)
    assert folder.spatial_dims == 2
    np.testing.assert_array_equal(folder[0].logits, logits_of(2))


@pytest.mark.parametrize("layout", ["first", "last", "vector"])
def test_written_without_labels_with_the_affine_of_the_scores(tmp_path: Path, layout: str) -> None:
    nifti_case(tmp_path, layout)
    (tmp_path / "labels/a.nii.gz").unlink()
    folder = open_folder(tmp_path, require_labels=False, num_classes=2)
    temperature = np.ones((3, 4, 6), np.float32)
    temperature[1, 2, 5] = 7.5
    written = nibabel.load(write_map(tmp_path / "out", "a", temperature, folder))
    assert np.argwhere(written.get_fdata() == 7.5).tolist() == [[5, 2, 1]]
    np.testing.assert_array_equal(written.affine, AFFINE)
    scores = nibabel.load(write_scores(tmp_path / "scores", "a", folder[0].logits, folder))
    source = nibabel.load(tmp_path / "logits/a.nii.gz")
    np.testing.assert_array_equal(scores.get_fdata(), source.get_fdata())
    np.testing.assert_array_equal(scores.affine, AFFINE)


def moved(path: Path, by: float) -> None:
    """Write the file again with another origin."""
    image, affine = nibabel.load(path), AFFINE.copy()
    affine[1, 3] += by
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), affine), path)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("where", ["labels", "logits", "images"])
def test_files_in_different_places(tmp_path: Path, layout: str, where: str) -> None:
    nifti_case(tmp_path, layout)
    save(tmp_path / "images/a.nii.gz", np.zeros((3, 4, 6), np.float32))
    path = tmp_path / where / "a.nii.gz"
    moved(path, 5e-4)  # what rounding may do
    read_all(open_folder(tmp_path))
    moved(path, 0.5)
    message = complaint(tmp_path)
    assert f"{tmp_path}/labels/a.nii.gz' of case 'a' lie in different places (affines differ), by up to 0.5" in message
    assert message.endswith("; resample one to the other")


def test_scores_and_image_in_different_places_without_labels(tmp_path: Path) -> None:
    nifti_case(tmp_path, "last")
    (tmp_path / "labels/a.nii.gz").unlink()
    save(tmp_path / "images/a.nii.gz", np.zeros((3, 4, 6), np.float32))
    assert open_folder(tmp_path, require_labels=False)[0].image is not None
    moved(tmp_path / "images/a.nii.gz", 2)
    assert "of case 'a' lie in different places" in complaint(tmp_path, require_labels=False)


# ---- writing arrays -----------------------------------------------------------------------------------


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


# ---- nnU-Net ------------------------------------------------------------------------------------------


def nnunet(root: Path) -> tuple[np.ndarray, np.ndarray]:
    """What `nnUNetv2_predict --save_probabilities` leaves, and the true labels in another folder."""
    probs, truth = softmax(logits_of(3)), labels_of(3)
    save(root / "pred/case_1.npz", probs, key="probabilities")
    save(root / "pred/case_1.nii.gz", probs.argmax(0).astype(np.uint8))
    (root / "pred/case_1.pkl").write_bytes(b"")
    for name in ("plans.json", "dataset.json", "predict_from_raw_data_args.json"):
        (root / "pred" / name).write_text("{}")
    save(root / "truth/case_1.nii.gz", truth)
    return probs, truth


def test_nnunet_folder(tmp_path: Path) -> None:
    probs, truth = nnunet(tmp_path)
    folder = open_folder(tmp_path / "pred", labels=tmp_path / "truth")
    assert (folder.names, folder.scores, folder.num_classes, folder.spatial_dims) == (
        ("case_1",),
        "probabilities",
        5,
        3,
    )
    case = folder[0]
    torch.testing.assert_close(torch.as_tensor(case.logits).softmax(0), torch.from_numpy(probs))
    np.testing.assert_array_equal(case.labels, truth)
    assert (truth != probs.argmax(0)).any()  # so the prediction was not taken for the truth
    assert case.spacing == (4.0, 3.0, 2.0)
    (tmp_path / "truth").rename(tmp_path / "pred/labels")
    np.testing.assert_array_equal(open_folder(tmp_path / "pred")[0].labels, truth)


def test_nnunet_predictions_are_never_the_truth(tmp_path: Path) -> None:
    nnunet(tmp_path)
    assert f"got none in '{tmp_path}/pred/labels'; give their folder with --labels" in complaint(tmp_path / "pred")
    assert "nnU-Net wrote its own predictions" in complaint(tmp_path / "pred", labels=tmp_path / "pred")
    assert "declared to be logits, got 'probabilities'" in complaint(
        tmp_path / "pred", labels=tmp_path / "truth", scores="logits"
    )


def test_nnunet_there_and_back(tmp_path: Path) -> None:
    probs, truth = nnunet(tmp_path)
    folder = open_folder(tmp_path / "pred", labels=tmp_path / "truth")
    path = write_scores(tmp_path / "out", "case_1", probs[::-1], folder)
    assert path == tmp_path / "out/case_1.npz"
    with np.load(path) as archive:
        assert archive.files == ["probabilities"]
        np.testing.assert_array_equal(archive["probabilities"], probs[::-1])
    temperature = np.arange(truth.size, dtype=np.float32).reshape(truth.shape)
    written = nibabel.load(write_map(tmp_path / "maps", "case_1", temperature, folder))
    assert written.get_filename() == str(tmp_path / "maps/case_1.nii.gz")
    np.testing.assert_array_equal(written.get_fdata(), temperature.T)
    np.testing.assert_array_equal(written.affine, AFFINE)


def test_flat_nnunet_predictions(tmp_path: Path) -> None:
    probs = softmax(logits_of(2))
    save(tmp_path / "a.npz", probs[:, None], key="probabilities")
    save(tmp_path / "labels/a.png", labels_of(2))
    folder = open_folder(tmp_path)
    assert (folder.spatial_dims, folder.num_classes) == (2, 5)
    assert tuple(folder[0].logits.shape) == (5, 4, 6)
    with np.load(write_scores(tmp_path / "out", "a", probs, folder)) as archive:
        np.testing.assert_array_equal(archive["probabilities"], probs[:, None])
    assert write_map(tmp_path / "out", "a", probs[0], folder) == tmp_path / "out/a.npy"


def test_nnunet_without_labels_has_the_geometry_of_its_prediction(tmp_path: Path) -> None:
    probs, truth = nnunet(tmp_path)
    folder = open_folder(tmp_path / "pred", require_labels=False)
    case = folder[0]
    assert (folder.spatial_dims, case.labels, case.spacing) == (3, None, (4.0, 3.0, 2.0))
    torch.testing.assert_close(torch.as_tensor(case.logits).softmax(0), torch.from_numpy(probs))
    written = nibabel.load(write_map(tmp_path / "maps", "case_1", np.ones(truth.shape, np.float32), folder))
    np.testing.assert_array_equal(written.affine, AFFINE)
    (tmp_path / "pred/case_1.nii.gz").unlink()
    folder = open_folder(tmp_path / "pred", require_labels=False)
    assert folder.spatial_dims == 3
    assert write_map(tmp_path / "maps", "case_1", np.ones(truth.shape), folder).suffix == ".npy"


def test_flat_nnunet_predictions_without_labels(tmp_path: Path) -> None:
    probs = softmax(logits_of(2))
    save(tmp_path / "a.npz", probs[:, None], key="probabilities")
    save(tmp_path / "a.png", probs.argmax(0).astype(np.uint8))
    folder = open_folder(tmp_path, require_labels=False)
    assert folder.spatial_dims == 2
    assert tuple(folder[0].logits.shape) == (5, 4, 6)
    assert folder[0].labels is None


def test_extensions_are_told_by_the_longest() -> None:
    assert formats.extension_of(Path("a.nii.gz"), formats.SCORES) == ".nii.gz"
    assert formats.extension_of(Path("a.gz"), formats.SCORES) is None
