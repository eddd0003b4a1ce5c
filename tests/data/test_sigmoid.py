"""Folders of sigmoid heads: masks stored by channel or made from label maps, one channel with or without its axis."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

import segcal
from segcal.apply import apply_to_folder
from segcal.data.folders.folder import Folder, open_folder
from segcal.data.folders.writer import write_folder
from segcal.types import Case
from support.scenes import AFFINE, complaint, save

IMAGE, VOLUME = (5, 6), (3, 4, 5)
TWO = 'activation = "sigmoid"\nclasses = ["a", "b"]\n'
PROBABILITIES = f'{TWO}scores = "probabilities"\n'


def scores_of(shape: tuple[int, ...], channels: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(channels, *shape)).astype(np.float32)


def masks_of(shape: tuple[int, ...], channels: int = 1, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (channels, *shape)).astype(np.uint8)


def make(root: Path, scores: np.ndarray, labels: np.ndarray, end: str = ".npy", toml: str = "") -> Path:
    save(root / "logits" / f"a{end}", scores)
    save(root / "labels" / f"a{end}", labels)
    if toml:
        (root / "segcal.toml").write_text(toml)
    return root


def assert_holds(folder: Folder, scores: np.ndarray, masks: np.ndarray) -> None:
    assert (folder.activation, folder.num_classes) == ("sigmoid", len(scores))
    assert folder.spatial_dims == scores.ndim - 1
    case = folder[0]
    np.testing.assert_array_equal(np.asarray(case.logits), scores)
    np.testing.assert_array_equal(np.asarray(case.labels).reshape(masks.shape), masks)


@pytest.mark.parametrize("end", [".npy", ".npz", ".nii.gz"])
@pytest.mark.parametrize("axis_of_scores", [True, False])
@pytest.mark.parametrize("axis_of_labels", [True, False])
def test_one_channel(tmp_path: Path, end: str, axis_of_scores: bool, axis_of_labels: bool) -> None:
    """The channel axis of length 1 may be there or not, in volumes; the output has the axes of the input."""
    scores, masks = scores_of(VOLUME), masks_of(VOLUME)
    stored = scores if axis_of_scores else scores[0]
    toml = 'activation = "sigmoid"\nclasses = ["outside", "vessel"]\n'
    make(tmp_path / "data", stored, masks if axis_of_labels else masks[0], end, toml)
    folder = open_folder(tmp_path / "data")
    assert_holds(folder, scores, masks)
    assert folder.class_names == ("outside", "vessel")
    ts = segcal.create("ts", 1).fit(folder)
    unlabelled = open_folder(tmp_path / "data", num_classes=1, activation="sigmoid", labels=None, require_labels=False)
    apply_to_folder(ts, unlabelled, out=tmp_path / "out", maps=["temperature"])
    expected = ts.predict_proba(torch.from_numpy(scores)[None])[0].numpy()
    if end == ".nii.gz":
        found = nibabel.load(tmp_path / "out" / "a.nii.gz")
        np.testing.assert_array_equal(found.affine, AFFINE)
        assert found.shape == stored.T.shape
        np.testing.assert_allclose(np.asarray(found.dataobj).T.reshape(expected.shape), expected, rtol=1e-6)
    else:
        np.testing.assert_allclose(np.load(tmp_path / "out" / "a.npy"), expected, rtol=1e-6)


def test_declarations_that_one_channel_needs(tmp_path: Path) -> None:
    """None with its axis; the activation without; and the number of channels where no labels tell volumes apart."""
    scores, masks = scores_of(IMAGE), masks_of(IMAGE)
    assert_holds(open_folder(make(tmp_path / "axis", scores, masks[0])), scores, masks)
    make(tmp_path / "no axis", scores[0], masks[0], toml='activation = "sigmoid"\n')
    assert_holds(open_folder(tmp_path / "no axis"), scores, masks)
    make(tmp_path, scores_of(VOLUME)[0], masks_of(VOLUME)[0], ".nii.gz")
    (tmp_path / "labels" / "a.nii.gz").unlink()
    folder = open_folder(tmp_path, num_classes=1, activation="sigmoid", require_labels=False)
    assert np.asarray(folder[0].logits).shape == (1, *VOLUME)


@pytest.mark.parametrize("end", [".npy", ".npz", ".nii.gz"])
@pytest.mark.parametrize("shape", [IMAGE, VOLUME])
def test_masks_by_channel(tmp_path: Path, shape: tuple[int, ...], end: str) -> None:
    if end == ".nii.gz" and shape == IMAGE:
        pytest.skip("NIfTI images of several channels look like volumes")
    scores, masks = scores_of(shape, 3), masks_of(shape, 3)
    make(tmp_path, scores, masks, end, 'activation = "sigmoid"\nclasses = ["whole", "core", "edge"]\n')
    folder = open_folder(tmp_path)
    assert_holds(folder, scores, masks)
    assert folder.class_names == ("whole", "core", "edge")
    assert folder[0].spacing == ((4.0, 3.0, 2.0) if end == ".nii.gz" else None)


def test_three_axes_beside_three_must_be_declared(tmp_path: Path) -> None:
    """They may be channels of images, or slices of a volume with one channel."""
    shape = (3, 5, 6)
    make(tmp_path, scores_of(shape)[0], masks_of(shape)[0], toml='activation = "sigmoid"\n')
    assert "are masks of 3 channels, or one mask of a volume" in complaint(tmp_path)
    assert_holds(open_folder(tmp_path, num_classes=3), scores_of(shape)[0], masks_of(shape)[0])
    assert_holds(open_folder(tmp_path, num_classes=1), scores_of(shape), masks_of(shape))


def test_masks_from_a_label_map(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 5, IMAGE).astype(np.uint8)
    labels[0] = 255
    toml = 'ignore_index = 255\nbackground = 0\n[channels]\n"whole tumour" = [1, 2, 3]\ncore = [2, 3]\nedge = 3\n'
    make(tmp_path, scores_of(IMAGE, 3), labels, toml=toml)
    folder = open_folder(tmp_path)
    assert folder.class_names == ("whole tumour", "core", "edge")
    assert (folder.ignore_index, folder.background) == ((-1,), 0)
    expected = np.stack([np.isin(labels, own) for own in ([1, 2, 3], [2, 3], [3])]).astype(int)
    np.testing.assert_array_equal(folder[0].labels, np.where(labels == 255, -1, expected))


def test_masks_of_0_and_255(tmp_path: Path) -> None:
    """The complaint names the setting that reads them."""
    mask = 255 * masks_of(IMAGE)[0]
    make(tmp_path, scores_of(IMAGE), mask)
    (tmp_path / "labels" / "a.npy").unlink()
    save(tmp_path / "labels" / "a.png", mask)
    message = complaint(tmp_path)
    assert "labels must be in 0..1, got 255" in message
    assert "[channels] and foreground = 255 in segcal.toml" in message
    (tmp_path / "segcal.toml").write_text("[channels]\nforeground = 255\n")
    np.testing.assert_array_equal(open_folder(tmp_path)[0].labels, mask[None] // 255)


@pytest.mark.parametrize(("dtype", "in_memory"), [(np.float16, 1 << 28), (np.float32, 1 << 28), (np.float32, 16)])
def test_sigmoid_probabilities(tmp_path: Path, dtype: type, in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.data.io.base.IN_MEMORY", in_memory)
    probs = np.random.default_rng(0).random((2, *IMAGE)).astype(dtype)
    probs[:, 0, 0], probs[:, 0, 1] = 0, 1
    make(tmp_path, probs, masks_of(IMAGE, 2), toml=PROBABILITIES)
    logits = torch.as_tensor(np.asarray(open_folder(tmp_path)[0].logits))
    assert logits.isfinite().all()
    torch.testing.assert_close(torch.sigmoid(logits), torch.from_numpy(probs).float())
    assert torch.equal(logits > 0, torch.from_numpy(probs) > 0.5)


def test_written_folders_are_read_back(tmp_path: Path) -> None:
    cases = [Case(f"c{k}", scores_of(IMAGE, 2, k), masks_of(IMAGE, 2, k)) for k in range(2)]
    write_folder(tmp_path / "two", {"fit": cases}, class_names=["a", "b"], activation="sigmoid", background=0)
    assert_holds(open_folder(tmp_path / "two"), np.asarray(cases[0].logits), np.asarray(cases[0].labels))
    write_folder(tmp_path / "unnamed", {"fit": cases}, activation="sigmoid")
    assert open_folder(tmp_path / "unnamed").class_names == ("0", "1")  # or it could be one channel of a volume
    one = [Case("c", scores_of(IMAGE), masks_of(IMAGE)[0])]
    write_folder(tmp_path / "one", {"fit": one}, class_names=["outside", "inside"])
    assert open_folder(tmp_path / "one").class_names == ("outside", "inside")


@pytest.mark.parametrize(
    ("channels", "labels", "toml", "message"),
    [
        (2, masks_of(IMAGE)[0], 'activation = "sigmoid"', "labels of a sigmoid head must have shape (2, 5, 6)"),
        (2, masks_of(IMAGE, 2), "", "or activation='sigmoid' if they overlap"),
        (1, masks_of(IMAGE)[0], 'classes = ["a", "b"]', "set num_classes=1 and activation='sigmoid'"),
        (1, masks_of(IMAGE)[0], 'activation = "tanh"', 'activation must be "softmax" or "sigmoid", got \'tanh\''),
        (2, masks_of(IMAGE)[0], "[channels]\na = []", "channels must be a table of channel names and the label"),
        (
            2,
            masks_of(IMAGE)[0],
            "[channels]\na = 1",
            "logits must have shape (1, *S) with num_classes=1, got (2, 5, 6)",
        ),
        (1, masks_of(IMAGE)[0], 'activation = "softmax"\n[channels]\na = 1', "lists the labels of sigmoid channels"),
        (2, masks_of(IMAGE, 2), f"{TWO}background = 2", "background must be a class in 0..1"),
        (2, masks_of(IMAGE, 2), PROBABILITIES, "probabilities must be in 0..1"),
    ],
)
def test_refusals(tmp_path: Path, channels: int, labels: np.ndarray, toml: str, message: str) -> None:
    assert message in complaint(make(tmp_path, scores_of(IMAGE, channels), labels, toml=toml))


def test_probabilities_that_do_not_sum_to_one_name_the_remedies(tmp_path: Path) -> None:
    make(tmp_path, masks_of(IMAGE, 2) * np.float32(0.5), masks_of(IMAGE)[0], toml='scores = "probabilities"')
    message = complaint(tmp_path)
    assert 'activation = "sigmoid"' in message
    assert "logits_from_scores" in message


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["liver", "spleen", "left kidney"], ["liver", "spleen", "left kidney"]),
        (["a/b", "0", "2"], ["0", "1", "2"]),
        (["a", "A", "b"], ["0", "1", "2"]),
        (["..", "a", "b"], ["0", "1", "2"]),
        (["a\\b", "a", "b"], ["0", "1", "2"]),
        (["a" * 300, "a", "b"], ["0", "1", "2"]),
        (["\u00e9", "e\u0301", "b"], ["0", "1", "2"]),
        (["segcal.json", "a", "b"], ["0", "1", "2"]),
        (["a", "Result", "b"], ["0", "1", "2"]),
    ],
)
def test_every_channel_has_its_own_folder_of_maps(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    toml = f'activation = "sigmoid"\nclasses = {json.dumps(names)}\n'
    folder = open_folder(make(tmp_path / "data", scores_of(IMAGE, 3), masks_of(IMAGE, 3), toml=toml))
    assert folder.map_folders(tmp_path / "maps") == [tmp_path / "maps" / name for name in expected]
    for odd in (("", "a", "b"), ("a", "a", "b")):
        assert replace(folder, class_names=odd).map_folders(tmp_path) == [tmp_path / str(k) for k in range(3)]
