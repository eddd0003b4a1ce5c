"""Folders of nnU-Net and TotalSegmentator: predictions, cross-validation of a trained model, the crop, the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

import segcal
from segcal.apply import apply_to_folder
from segcal.data.folders.crop import Crop, crop_of
from segcal.data.folders.folder import open_folder, write_map, write_scores
from segcal.data.folders.probabilities import LazyLogits
from segcal.text import CalibrationWarning
from segcal.types import InputError
from support.commands import succeed
from support.scenes import AFFINE, labels_of, logits_of, read_all, save, save_nifti, softmax

SHAPE = (5, 6, 7)
LABELS = {"background": 0, "left": 1, "right": 2, "ignore": 3}


def probabilities(seed: int, crop: bool = True) -> np.ndarray:
    """Random softmax inside of a box, background of exactly 1 around it, as nnU-Net writes them."""
    random = np.random.default_rng(seed)
    probs = np.zeros((3, *SHAPE), np.float32)
    probs[0] = 1
    box = (slice(1, 4), slice(2, 6), slice(0, 5)) if crop else (slice(None),) * 3
    inside = torch.from_numpy(random.normal(size=probs[(slice(None), *box)].shape)).float().softmax(0).numpy()
    probs[(slice(None), *box)] = inside
    return probs


def truth(seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 50).integers(0, 4, SHAPE).astype(np.uint8)


def save_prediction(folder: Path, name: str, seed: int, **options: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    probs = probabilities(seed, **options)
    np.savez_compressed(folder / f"{name}.npz", probabilities=probs)
    save_nifti(folder / f"{name}.nii.gz", probs.argmax(0).astype(np.uint8))
    (folder / f"{name}.pkl").write_bytes(b"\x80\x04not to be read.")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A trained model with two folds, and its data set in the folders that nnU-Net's documentation suggests."""
    root = tmp_path / "nnUNet_results" / "Dataset004_Hippocampus" / "nnUNetTrainer__nnUNetPlans__3d_fullres"
    for k, names in enumerate((("a", "b"), ("c",))):
        for name in names:
            save_prediction(root / f"fold_{k}" / "validation", name, ord(name))
        (root / f"fold_{k}" / "validation" / "summary.json").write_text("{}")
    (root / "dataset.json").write_text(json.dumps({"labels": LABELS, "file_ending": ".nii.gz"}))
    (root / "plans.json").write_text("{}")
    preprocessed = tmp_path / "nnUNet_preprocessed" / "Dataset004_Hippocampus"
    for name in "abc":
        save_nifti(preprocessed / "gt_segmentations" / f"{name}.nii.gz", truth(ord(name)))
    splits = [{"train": ["c"], "val": ["a", "b"]}, {"train": ["a", "b"], "val": ["c"]}]
    (preprocessed / "splits_final.json").write_text(json.dumps(splits))
    return root


def test_cross_validation_of_a_trained_model(model: Path) -> None:
    folder = open_folder(model)
    assert folder.names == ("a", "b", "c")
    assert (folder.num_classes, folder.class_names) == (3, ("background", "left", "right"))
    assert folder.ignore_index == (3, -1)
    assert folder.splits == {"fold_0": ("a", "b"), "fold_1": ("c",)}
    assert open_folder(model, split="fold_1").names == ("c",)
    for case in folder:
        np.testing.assert_array_equal(case.labels, truth(ord(case.name))[1:4, 2:6, 0:5])
        expected = probabilities(ord(case.name))
        inside = torch.from_numpy(expected[:, 1:4, 2:6, 0:5])
        torch.testing.assert_close(torch.as_tensor(case.logits).softmax(0), inside)
        written = write_scores(model / "again", case.name, torch.as_tensor(case.logits).softmax(0), folder)
        np.testing.assert_allclose(np.load(written)["probabilities"], expected, atol=1e-6)
        heat = write_map(model / "again", case.name, np.ones((3, 4, 5)), folder)
        assert np.isfinite(nibabel.load(heat).get_fdata()).sum() == 60
        assert case.spacing == (4.0, 3.0, 2.0)


def test_truth_from_the_environment_or_as_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = model.parents[2]
    other = base / "elsewhere"
    (base / "nnUNet_preprocessed").rename(other)
    with pytest.raises(InputError, match=r"the true labels of .* are needed, got none"):
        open_folder(model)
    monkeypatch.setenv("nnUNet_preprocessed", str(other))
    assert len(open_folder(model)) == 3
    monkeypatch.delenv("nnUNet_preprocessed")
    assert len(open_folder(model, labels=other / "Dataset004_Hippocampus" / "gt_segmentations")) == 3


def test_a_fold_that_trained_on_its_cases_is_refused(model: Path) -> None:
    splits = model.parents[2] / "nnUNet_preprocessed" / "Dataset004_Hippocampus" / "splits_final.json"
    splits.write_text(json.dumps([{"train": ["b"], "val": ["a"]}, {"train": ["a"], "val": ["c"]}]))
    with pytest.raises(InputError, match="cases that fold_0 did not train on, got 'b'"):
        open_folder(model)
    splits.write_text("[]")
    with pytest.raises(InputError, match="must list the training cases of fold_0"):
        open_folder(model)
    splits.unlink()
    save_prediction(model / "fold_1" / "validation", "a", 0)
    with pytest.raises(InputError, match="each case must be predicted by one fold, got 'a'"):
        open_folder(model)
    (model / "fold_1").rename(model / "fold_all")
    with pytest.raises(InputError, match="fold_all trains on every case"):
        open_folder(model)


def test_regions_are_sigmoid_channels(model: Path, tmp_path: Path) -> None:
    """Channels are in the order of dataset.json, and nnU-Net fills the outside of its crop with zeros."""
    regions = {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3}
    (model / "dataset.json").write_text(json.dumps({"labels": regions, "regions_class_order": [1, 2]}))
    box = (slice(None), slice(1, 4), slice(2, 6), slice(0, 5))
    for archive in model.glob("fold_*/validation/*.npz"):
        probs = np.zeros((2, *SHAPE), np.float16)
        probs[box] = np.random.default_rng(ord(archive.stem)).random(probs[box].shape)
        np.savez_compressed(archive, probabilities=probs)
    folder = open_folder(model)
    assert (folder.activation, folder.num_classes, folder.class_names) == ("sigmoid", 2, ("whole", "core"))
    assert folder.ignore_index == (-1,)
    for case in folder:
        true = truth(ord(case.name))[box[1:]]
        expected = np.stack([(true == 1) | (true == 2), true == 2]).astype(int)
        np.testing.assert_array_equal(case.labels, np.where(true != 3, expected, -1))
        stored = np.load(model / f"fold_{case.name == 'c':d}/validation/{case.name}.npz")["probabilities"][box]
        torch.testing.assert_close(torch.sigmoid(torch.as_tensor(case.logits)), torch.from_numpy(stored).float())
    fitted = segcal.create("ts", num_classes=2, activation="sigmoid", ignore_index=-1).fit(folder)
    apply_to_folder(fitted, folder, out=tmp_path / "out", dtype="float16", maps=["temperature"])
    written = np.load(tmp_path / "out" / "a.npz")["probabilities"]
    raw = np.load(model / "fold_0" / "validation" / "a.npz")["probabilities"]
    assert written.dtype == np.float16
    np.testing.assert_array_equal(written > 0.5, raw > 0.5)  # so nnU-Net makes the same segmentation of them
    outside = crop_of(raw, "sigmoid").put_back(np.zeros_like(raw[box], bool), outside=True)
    assert not written[outside].any()
    heat = nibabel.load(tmp_path / "out" / "temperature" / "core" / "a.nii.gz")
    assert heat.shape == SHAPE[::-1]
    np.testing.assert_array_equal(heat.affine, AFFINE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, r"dataset\.json' must") for content in (None, [1], {"labels": "background"}, {"labels": [0, 1]})),
        ({"labels": {"a": float("inf")}}, r"dataset\.json' is not readable JSON"),
        ({"labels": {"background": 0, "left": 1e300}}, "must be whole numbers"),
        ({"labels": {"background": [1e300, 1e300], "left": 1}}, "must be whole numbers"),
        ({"labels": {"background": 0, "left": 1.5}}, "must be whole numbers"),
        ({"labels": {"left": 1, "ignore": [2, 3]}}, r"'ignore' in .* must be one label, got \[2, 3\]"),
    ],
)
def test_a_dataset_json_without_labels_that_a_pixel_can_have_is_refused(
    model: Path, content: object, message: str
) -> None:
    (model / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        open_folder(model)


def test_settings_override_dataset_json(model: Path) -> None:
    (model / "segcal.toml").write_text('class_names = ["none", "l", "r"]\nignore_index = 3\nbackground = 0\n')
    folder = open_folder(model)
    assert folder.class_names == ("none", "l", "r")
    assert (folder.ignore_index, folder.background) == ((3, -1), 0)


@pytest.mark.parametrize("named", [False, True])
def test_totalsegmentator(tmp_path: Path, named: bool) -> None:
    """The geometry is that of a NIfTI file beside the archive, or in the folder that the settings name."""
    save_prediction(tmp_path / "data", "s01", 1)
    save_nifti(tmp_path / "data" / "labels" / "s01.nii.gz", truth(1).clip(0, 2))
    if named:
        (tmp_path / "space").mkdir()
        (tmp_path / "data" / "s01.nii.gz").rename(tmp_path / "space" / "s01.nii.gz")
        (tmp_path / "data" / "segcal.toml").write_text('geometry = "../space"\n')
    folder = open_folder(tmp_path / "data", require_labels=False)
    assert (folder.scores, folder.num_classes, folder.spatial_dims) == ("probabilities", 3, 3)
    assert folder[0].spacing == (4.0, 3.0, 2.0)
    (tmp_path / "data" / "labels" / "s01.nii.gz").unlink()
    folder = open_folder(tmp_path / "data", require_labels=False)
    heat = nibabel.load(write_map(tmp_path / "out", "s01", np.ones(SHAPE, np.float32), folder))
    np.testing.assert_array_equal(heat.affine, AFFINE)
    (tmp_path / ("space" if named else "data") / "s01.nii.gz").unlink()
    folder = open_folder(tmp_path / "data", require_labels=False)
    assert (folder.spatial_dims, folder[0].spacing) == (3, None)
    assert write_map(tmp_path / "out", "s01", np.ones(SHAPE), folder).suffix == ".npy"
    (tmp_path / "data" / "segcal.toml").write_text('geometry = "nowhere"\n')
    with pytest.raises(InputError, match=r"geometry in .* must be a folder of NIfTI files, got 'nowhere'"):
        open_folder(tmp_path / "data", require_labels=False)


def test_large_probabilities_are_converted_part_by_part(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same logits, labels and files, though the probabilities never are whole in memory."""
    at_once = open_folder(model)[0]
    calibrator = segcal.create("ts", 3, ignore_index=(3, -1)).fit([at_once])
    folder = open_folder(model, require_labels=False)
    apply_to_folder(calibrator, folder, out=model.parent / "whole")
    monkeypatch.setattr("segcal.data.io.base.IN_MEMORY", 100)
    monkeypatch.setattr("segcal.cases.stream.SLAB", 1)
    monkeypatch.setattr("segcal.cases.stream._WHOLE", 2)
    folder = open_folder(model)
    lazy = folder[0]
    assert isinstance(lazy.logits, LazyLogits)
    assert isinstance(lazy.logits.probs, np.memmap)
    assert lazy.logits.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(lazy.logits), np.asarray(at_once.logits))
    np.testing.assert_array_equal(lazy.labels, at_once.labels)
    apply_to_folder(calibrator, folder, out=model.parent / "slabs")
    for name in "abc":
        with np.load(model.parent / f"whole/{name}.npz") as whole, np.load(model.parent / f"slabs/{name}.npz") as slabs:
            np.testing.assert_allclose(slabs["probabilities"], whole["probabilities"], rtol=1e-6)


@pytest.mark.parametrize("in_memory", [1, 1 << 28])
def test_wrong_probabilities_are_named_by_place(model: Path, in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.data.io.base.IN_MEMORY", in_memory)
    monkeypatch.setattr("segcal.cases.stream.SLAB", in_memory)
    monkeypatch.setattr("segcal.cases.stream._WHOLE", 2)
    monkeypatch.setattr("segcal.cases.stream.HOST_MEMORY", 0)
    path = model / "fold_0" / "validation" / "a.npz"
    probs = np.repeat(probabilities(0), 5, axis=1)
    save_nifti(
        model.parents[2] / "nnUNet_preprocessed/Dataset004_Hippocampus/gt_segmentations/a.nii.gz",
        probs.argmax(0).astype(np.uint8),
    )
    probs[1, 20, 3, 2] = 1.5
    np.savez(path, probabilities=probs)
    with pytest.raises(InputError, match=r"in 0..1, got 1.5 at \(1, 20, 3, 2\) of case 'a'"):
        read_all(open_folder(model).subset(["a"]))
    probs[1, 20, 3, 2] = 0.9
    probs[0, 20, 3, 2] = 0.8
    np.savez(path, probabilities=probs)
    with pytest.raises(InputError, match=r"sum to 1 over the classes, got \d.* at \(20, 3, 2\) of case 'a'"):
        read_all(open_folder(model).subset(["a"]))


# ---- the crop -----------------------------------------------------------------------------------------


def test_crop_by_hand() -> None:
    probs = np.zeros((2, 4, 5))
    probs[0] = 1
    probs[:, 1, 1] = 0.5
    probs[:, 2, 3] = 0.5
    crop = crop_of(probs)
    assert crop == Crop((4, 5), (slice(1, 3), slice(1, 4))), "a box, so that saturated pixels inside of it stay"
    whole = crop.put_back(np.array([[1, 2, 3], [4, 5, 6]]), outside=9)
    assert whole.tolist() == [[9, 9, 9, 9, 9], [9, 1, 2, 3, 9], [9, 4, 5, 6, 9], [9, 9, 9, 9, 9]]
    assert crop.cut(whole).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_no_crop() -> None:
    assert crop_of(probabilities(0, crop=False)) is None
    probs = np.zeros((2, 3, 3), np.float32)
    probs[0] = 1
    probs[1] = 1e-30  # a softmax that saturates leaves something to the others
    assert crop_of(probs) is None
    probs[1, 0, 0] = probs[1, 2, 2] = 0  # forced or not, they are corners of nothing smaller
    assert crop_of(probs) is None


def test_everything_outside(tmp_path: Path) -> None:
    probs = np.zeros((3, *SHAPE), np.float32)
    probs[0] = 1
    assert crop_of(probs).is_empty
    write_predictions(tmp_path, {"a": probs})
    case = open_folder(tmp_path, labels=tmp_path / "truth")[0]
    assert (np.asarray(case.labels) == -1).all()


def write_predictions(folder: Path, archives: dict[str, np.ndarray], shape: tuple[int, ...] = SHAPE) -> None:
    """Write a folder of predictions, with true labels in `truth` and a `dataset.json`."""
    for name, probs in archives.items():
        np.savez_compressed(folder / f"{name}.npz", probabilities=probs)
        save_nifti(folder / f"{name}.nii.gz", probs.argmax(0).astype(np.uint8))
        save_nifti(folder / "truth" / f"{name}.nii.gz", blob(shape))
    (folder / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "left": 1, "right": 2}}))


def blob(shape: tuple[int, ...]) -> np.ndarray:
    """Two halves of a box in the middle of a volume."""
    labels = np.zeros(shape, np.uint8)
    labels[tuple(slice(length // 3, 2 * length // 3) for length in shape)] = 1
    labels[:, :, shape[2] // 2 :] *= 2
    return labels


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The same predictions twice, without and with a crop that leaves out background only."""
    shape, random = (12, 15, 18), np.random.default_rng(3)
    sure = 3.0 * np.eye(3)[blob(shape)].transpose(3, 0, 1, 2) + random.normal(size=(3, *shape))
    whole = torch.from_numpy(sure).float().softmax(0).numpy()
    cropped = np.zeros_like(whole)
    cropped[0] = 1
    box = (slice(None), slice(1, 11), slice(1, 14), slice(2, 16))
    cropped[box] = whole[box]
    for name, probs in (("whole", whole), ("cropped", cropped)):
        (tmp_path / name).mkdir()
        write_predictions(tmp_path / name, {"a": probs, "b": probs[:, ::-1]}, shape)
    return tmp_path / "whole", tmp_path / "cropped"


def test_the_faces_of_the_crop_are_no_boundary(pair: tuple[Path, Path]) -> None:
    """The crop leaves out background far from any structure: *Boundary*, and *All* with a background, stay the same."""
    found, fitted = [], []
    for folder in pair:
        cases = open_folder(folder, labels=folder / "truth", background=0)
        results = segcal.evaluate(cases, {"UC": None}, num_classes=3, background=0, repetitions=2)
        frame = results.to_frame().query("region in ('all', 'boundary')").drop(columns="case")
        found.append(frame.reset_index(drop=True))
        fitted.append(segcal.create("ts", 3, background=0).fit(cases).fit_report_)
    assert found[0].equals(found[1])
    assert fitted[0].pixels == fitted[1].pixels
    assert fitted[0].nll_after == pytest.approx(fitted[1].nll_after, rel=1e-12)  # its search starts from a sample


@pytest.mark.parametrize("method", ["ts", "vector"])
def test_the_output_has_what_nnunet_needs_beside_its_archives(model: Path, tmp_path: Path, method: str) -> None:
    """Its segmentation only as long as that is the most probable class."""
    folder, out = open_folder(model), tmp_path / "out"
    apply_to_folder(segcal.create(method, 3, ignore_index=folder.ignore_index).fit(folder), folder, out=out)
    shared = {"dataset.json", "plans.json", "segcal.json"}
    own = {f"{name}{suffix}" for name in "abc" for suffix in (".npz", ".pkl")}
    labels = {f"{name}.nii.gz" for name in "abc"} if method == "ts" else set()
    assert {path.name for path in out.iterdir()} == shared | own | labels
    for name in sorted(labels):
        (written,) = model.glob(f"fold_*/validation/{name}")
        assert (out / name).read_bytes() == written.read_bytes()
    again = open_folder(out, labels=model.parents[2] / "nnUNet_preprocessed" / model.parent.name / "gt_segmentations")
    assert again.class_names == folder.class_names
    assert method != "ts" or [case.spacing for case in again] == [case.spacing for case in folder]


def test_a_file_that_vanishes_before_it_is_copied_is_named(model: Path, tmp_path: Path) -> None:
    folder = open_folder(model)
    calibrator = segcal.create("ts", 3, ignore_index=folder.ignore_index).fit(folder)
    (model / "plans.json").unlink()
    with pytest.raises(InputError, match=r"plans\.json' must stay until its output is complete"):
        apply_to_folder(calibrator, folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("method", "dtype"), [("ts", "float16"), ("cts", "float32")])
def test_voxels_outside_the_crop_stay_what_they_are(
    pair: tuple[Path, Path], tmp_path: Path, method: str, dtype: str
) -> None:
    cases = open_folder(pair[1], labels=pair[1] / "truth")
    settings = {"spatial_dims": 3} if method == "cts" else {}
    calibrator = segcal.create(method, 3, **settings).fit(cases)
    apply_to_folder(calibrator, cases, out=tmp_path / "out", dtype=dtype, maps=["temperature"])
    for name in ("a", "b"):
        before = np.load(pair[1] / f"{name}.npz")["probabilities"]
        after = np.load(tmp_path / "out" / f"{name}.npz")["probabilities"]
        crop = crop_of(before)
        assert crop_of(after) == crop, "the crop is recognised again"
        outside = crop.put_back(np.zeros(before.shape, bool)[(slice(None), *crop.box)], outside=True)
        np.testing.assert_array_equal(after[outside], before[outside])
        case = cases[cases.names.index(name)]
        own = calibrator.predict_proba(torch.as_tensor(case.logits)[None])[0].numpy()
        np.testing.assert_allclose(crop.cut(after), own, atol=1e-3 if dtype == "float16" else 1e-6)
        heat = np.asarray(nibabel.load(tmp_path / "out" / "temperature" / f"{name}.nii.gz").dataobj).T
        assert (heat[outside[0]] == 1).all()
        assert crop.cut(heat) == pytest.approx(calibrator.temperature(torch.as_tensor(case.logits)[None])[0, 0].numpy())
    again = open_folder(tmp_path / "out", labels=pair[1] / "truth")
    assert again[0].logits.shape == cases[0].logits.shape
    assert (again.class_names, again.scores) == (cases.class_names, "probabilities")


def test_maps_of_a_diagnosis_cover_the_volume(pair: tuple[Path, Path], tmp_path: Path) -> None:
    truth = ("--labels", str(pair[1] / "truth"))
    succeed("diagnose", str(pair[1]), *truth, "--maps", str(tmp_path / "maps"))
    found = np.asarray(nibabel.load(tmp_path / "maps" / "a.nii.gz").dataobj).T
    crop = crop_of(np.load(pair[1] / "a.npz")["probabilities"])
    inside = crop.put_back(np.ones_like(crop.cut(found), bool), outside=False)
    assert np.isfinite(found[inside]).all()
    assert np.isnan(found[~inside]).all()


def test_background_is_no_structure(pair: tuple[Path, Path]) -> None:
    cases = open_folder(pair[0], labels=pair[0] / "truth")
    results = segcal.evaluate(
        cases, {"UC": None}, num_classes=3, surfaces=True, class_names=cases.class_names, repetitions=2
    )
    assert set(results.surfaces()["label"]) == {"left", "right"}


def test_labels_that_are_missing_are_asked_for(model: Path, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    save_prediction(tmp_path / "alone", "a", 0)
    (tmp_path / "alone" / "dataset.json").write_text(json.dumps({"labels": LABELS}))
    with pytest.raises(InputError, match="give their folder with --labels"):
        open_folder(tmp_path / "alone")
    with pytest.raises(InputError, match="nnU-Net wrote its own predictions"):
        open_folder(tmp_path / "alone", labels=tmp_path / "alone")
    fold = open_folder(model / "fold_0" / "validation")
    assert fold[0].labels is not None, "those of the model are found"


# ---- the package itself -------------------------------------------------------------------------------


@pytest.fixture
def package() -> Any:
    return pytest.importorskip("nnunetv2", reason="nnunetv2 is not installed")


@pytest.mark.parametrize("reader", ["SimpleITKIO", "NibabelIO"])
def test_what_nnunet_writes_is_read_and_what_is_written_nnunet_reads(package: Any, tmp_path: Path, reader: str) -> None:
    """nnU-Net's own export writes the folder, with its crop; its own reader and averaging take ours."""
    from nnunetv2.ensembling.ensemble import average_probabilities, ensemble_folders
    from nnunetv2.imageio.nibabel_reader_writer import NibabelIO
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO
    from nnunetv2.inference.export_prediction import export_prediction_from_logits
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    kind = {"SimpleITKIO": SimpleITKIO, "NibabelIO": NibabelIO}[reader]
    affine = np.array([[-1.0, 0, 0, 10], [0, -2.0, 0, 20], [0, 0, 3.0, -30], [0, 0, 0, 1]])
    images = tmp_path / "images"
    images.mkdir()
    nibabel.save(nibabel.Nifti1Image(np.zeros(SHAPE[::-1], np.float32), affine), images / "a_0000.nii.gz")
    _, properties = kind().read_images([str(images / "a_0000.nii.gz")])
    bbox = [[1, 4], [2, 6], [0, 5]]
    inner = tuple(stop - start for start, stop in bbox)
    properties |= {
        "shape_before_cropping": SHAPE,
        "bbox_used_for_cropping": bbox,
        "shape_after_cropping_and_before_resampling": inner,
    }
    dataset = {"labels": {"background": 0, "left": 1, "right": 2}, "file_ending": ".nii.gz"}
    resampling = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}
    configuration = {
        "architecture": {},  # not needed to export, but nnU-Net asks for it
        "spacing": list(properties["spacing"]),
        "resampling_fn_probabilities": "resample_data_or_seg_to_shape",
        "resampling_fn_probabilities_kwargs": resampling,
    }
    plans = PlansManager(
        {
            "image_reader_writer": reader,
            "transpose_forward": [0, 1, 2],
            "transpose_backward": [0, 1, 2],
            "label_manager": "LabelManager",
            "configurations": {"3d_fullres": configuration},
        }
    )
    logits = np.random.default_rng(0).normal(size=(3, *inner)).astype(np.float32)
    pred = tmp_path / "pred"
    pred.mkdir()
    export_prediction_from_logits(
        logits, properties, plans.get_configuration("3d_fullres"), plans, dataset, str(pred / "a"), True
    )
    (pred / "dataset.json").write_text(json.dumps(dataset))
    (pred / "plans.json").write_text(json.dumps(plans.plans))
    true = np.random.default_rng(1).integers(0, 3, SHAPE).astype(np.uint8)
    (tmp_path / "truth").mkdir()
    nibabel.save(nibabel.Nifti1Image(true.T, affine), tmp_path / "truth" / "a.nii.gz")

    folder = open_folder(pred, labels=tmp_path / "truth")
    assert folder.class_names == ("background", "left", "right")
    box = (slice(1, 4), slice(2, 6), slice(0, 5))
    np.testing.assert_array_equal(folder[0].labels, true[box])
    calibrator = segcal.create("ts", 3, ignore_index=folder.ignore_index).fit(list(folder))
    assert calibrator.fit_report_.pixels == 3 * 4 * 5

    out = tmp_path / "out"
    apply_to_folder(calibrator, folder, out=out, maps=["temperature"])
    with np.load(pred / "a.npz") as before, np.load(out / "a.npz") as after:
        assert before["probabilities"].shape == after["probabilities"].shape
        np.testing.assert_array_equal(before["probabilities"].argmax(0), after["probabilities"].argmax(0))
        for probs in (before["probabilities"], after["probabilities"]):
            assert crop_of(probs) == Crop(SHAPE, box), "outside of the crop they stay exactly what nnU-Net wrote"
        np.testing.assert_allclose(average_probabilities([str(out / "a.npz")]), after["probabilities"])
    seen, found = kind().read_seg(str(out / "temperature" / "a.nii.gz"))
    assert seen.shape == (1, *SHAPE)
    np.testing.assert_allclose(found["spacing"], properties["spacing"])
    ensemble_folders([str(out), str(out)], str(tmp_path / "merged"), num_processes=1)
    np.testing.assert_array_equal(
        nibabel.load(tmp_path / "merged" / "a.nii.gz").get_fdata(), nibabel.load(pred / "a.nii.gz").get_fdata()
    )


# ---- what is missing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("labelled", [True, False])
def test_flat_nnunet_predictions(tmp_path: Path, labelled: bool) -> None:
    probs = softmax(logits_of(2))
    save(tmp_path / "a.npz", probs[:, None], key="probabilities")
    save(tmp_path / ("labels/a.png" if labelled else "a.png"), labels_of(2))
    folder = open_folder(tmp_path, require_labels=labelled)
    assert (folder.spatial_dims, folder.num_classes) == (2, 5)
    assert tuple(folder[0].logits.shape) == (5, 4, 6)
    assert (folder[0].labels is not None) == labelled
    with np.load(write_scores(tmp_path / "out", "a", probs, folder)) as archive:
        np.testing.assert_array_equal(archive["probabilities"], probs[:, None])
    assert write_map(tmp_path / "out", "a", probs[0], folder) == tmp_path / "out/a.npy"


def test_missing_folds_are_counted(model: Path) -> None:
    for path in (model / "fold_1" / "validation").iterdir():
        path.unlink()
    with pytest.warns(
        CalibrationWarning, match=r"1 fold \('fold_1'\) without probabilities of validation cases.*--npz"
    ):
        assert open_folder(model).names == ("a", "b")


def test_predictions_without_archives_are_counted(tmp_path: Path) -> None:
    for seed, name in enumerate("abcd"):
        save_prediction(tmp_path / "predictions", name, seed)
        save_nifti(tmp_path / "labels" / f"{name}.nii.gz", truth(seed) % 3)
    (tmp_path / "predictions" / "dataset.json").write_text(json.dumps({"labels": LABELS}))
    for name in "bcd":
        (tmp_path / "predictions" / f"{name}.npz").unlink()
    with pytest.warns(CalibrationWarning) as caught:
        assert open_folder(tmp_path / "predictions", labels=tmp_path / "labels").names == ("a",)
    messages = [str(warning.message) for warning in caught]
    assert (
        "3 predictions ('b', 'c', 'd') without .npz: left out; predict again with --save_probabilities" in messages[0]
    )
    assert "3 label files ('b', 'c', 'd')" in messages[1]
