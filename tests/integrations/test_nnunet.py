"""A real nnU-Net with random weights: fitted on its folds, predicting with calibrated probabilities."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segcal.calibrators import create, load
from segcal.data.folders.folder import open_folder
from segcal.functional.probability import logits_from_probabilities
from segcal.text import CalibrationWarning
from segcal.types import InputError
from support.commands import refuse, succeed, succeed_json

pytest.importorskip("nnunetv2", reason="nnunetv2 is not installed: make test-integrations")
nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")

from segcal.integrations.nnunet import CalibratedLabelManager, predict  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # nnU-Net and its packages have many
SHAPE, BOX = (12, 14, 16), (slice(1, 11), slice(2, 13), slice(0, 14))
AFFINE = np.diag([1.0, 1.5, 2.0, 1.0])
LABELS = {"background": 0, "left": 1, "right": 2}
RESAMPLING = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}


def plans() -> dict[str, Any]:
    """Plans of a network with two stages, at another spacing than the images, so that nnU-Net resamples."""
    layers = {
        "n_stages": 2,
        "features_per_stage": [4, 8],
        "conv_op": "torch.nn.modules.conv.Conv3d",
        "kernel_sizes": [[3, 3, 3], [3, 3, 3]],
        "strides": [[1, 1, 1], [2, 2, 2]],
        "n_conv_per_stage": [1, 1],
        "n_conv_per_stage_decoder": [1],
        "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
        "norm_op_kwargs": {"eps": 1e-5, "affine": True},
        "dropout_op": None,
        "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    }
    resampling = {f"resampling_fn_{what}": "resample_data_or_seg_to_shape" for what in ("data", "seg", "probabilities")}
    options = {
        f"resampling_fn_{what}_kwargs": {**RESAMPLING, "is_seg": what == "seg"}
        for what in ("data", "seg", "probabilities")
    }
    configuration = {
        "data_identifier": "none",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": [8, 8, 8],
        "median_image_size_in_voxels": list(SHAPE),
        "spacing": [1.6, 1.2, 1.4],
        "normalization_schemes": ["ZScoreNormalization"],
        "use_mask_for_norm": [False],
        **resampling,
        **options,
        "architecture": {
            "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
            "arch_kwargs": layers,
            "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
        },
        "batch_dice": True,
    }
    intensity = dict.fromkeys(("mean", "std", "min", "max", "median", "percentile_00_5", "percentile_99_5"), 1.0)
    return {
        "dataset_name": "Dataset001_Tiny",
        "plans_name": "nnUNetPlans",
        "image_reader_writer": "NibabelIO",
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {"0": intensity},
        "configurations": {"3d_fullres": configuration},
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, labels, a model with one fold, and what nnU-Net itself predicts, in the fold and in a folder."""
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.utilities.get_network_from_plans import get_network_from_plans

    folder = tmp_path_factory.mktemp("home")
    random = np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / name).mkdir()
    for name in ("a", "b"):
        image = np.zeros(SHAPE, np.float32)  # nnU-Net crops what is 0
        image[BOX] = random.normal(size=image[BOX].shape) + 3
        labels = np.zeros(SHAPE, np.uint8)
        labels[BOX] = random.integers(0, 3, labels[BOX].shape)
        nibabel.save(nibabel.Nifti1Image(image.T, AFFINE), folder / "images" / f"{name}_0000.nii.gz")
        nibabel.save(nibabel.Nifti1Image(labels.T, AFFINE), folder / "labels" / f"{name}.nii.gz")
    model = folder / "model"
    (model / "fold_0" / "validation").mkdir(parents=True)
    dataset = {"labels": LABELS, "file_ending": ".nii.gz", "channel_names": {"0": "MRI"}, "numTraining": 2}
    (model / "dataset.json").write_text(json.dumps(dataset))
    (model / "plans.json").write_text(json.dumps(plans()))
    torch.manual_seed(0)
    layout = plans()["configurations"]["3d_fullres"]["architecture"]
    network = get_network_from_plans(
        layout["network_class_name"],
        layout["arch_kwargs"],
        layout["_kw_requires_import"],
        1,
        3,
        deep_supervision=False,
    )
    state = {name: 8 * value if "seg_layers" in name else value for name, value in network.state_dict().items()}
    content = {
        "network_weights": state,
        "trainer_name": "nnUNetTrainer",
        "init_args": {"configuration": "3d_fullres"},
        "inference_allowed_mirroring_axes": (0, 1, 2),
    }
    torch.save(content, model / "fold_0" / "checkpoint_final.pth")
    predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(str(model), (0,), "checkpoint_final.pth")
    for out in (model / "fold_0" / "validation", folder / "plain"):
        out.mkdir(exist_ok=True)
        predictor.predict_from_files_sequential(str(folder / "images"), str(out), save_probabilities=True)
    return folder


def archive(path: Path) -> np.ndarray:
    with np.load(path) as content:
        return np.asarray(content["probabilities"])


@pytest.fixture(params=["ts", "lts"])
def calibrator(home: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Fitted through the command line on the folds."""
    options = ["--epochs", 1, "--set", "learning_rate=1e-2"] if request.param == "lts" else []
    arguments = ("nnunet", "fit", home / "model", "--labels", home / "labels", "--method", request.param, *options)
    report = succeed_json(*arguments, "--out", tmp_path / "calibrator")
    assert (report["method"], report["cases"]) == (request.param, 2)
    inside = np.zeros(SHAPE, bool)
    inside[BOX] = True
    assert report["pixels"] == 2 * inside.sum()  # voxels outside of nnU-Net's crop are left out
    return tmp_path / "calibrator"


def test_predicts_as_nnunet_with_calibrated_probabilities(home: Path, calibrator: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("nnunet", "predict", calibrator, home / "images", "--model", home / "model", "--out", out)
    assert succeed_json(*arguments, "--device", "cpu") == {"out": str(out), "cases": 2}
    fitted = load(calibrator)
    for name in ("a", "b"):
        plain, found = archive(home / "plain" / f"{name}.npz"), archive(out / f"{name}.npz")
        own, other = (nibabel.load(folder / f"{name}.nii.gz") for folder in (out, home / "plain"))
        np.testing.assert_array_equal(np.asarray(own.dataobj), np.asarray(other.dataobj))
        np.testing.assert_array_equal(own.affine, other.affine)
        np.testing.assert_array_equal(found.argmax(0), plain.argmax(0))
        crop = (slice(None), *BOX)
        logits = logits_from_probabilities(torch.from_numpy(plain[crop]))[None]
        with torch.no_grad():
            expected = fitted.predict_proba(logits)[0].numpy()
        np.testing.assert_allclose(found[crop], expected, atol=1e-4)
        assert np.abs(found - plain).max() > 1e-3
        outside = np.ones(SHAPE, bool)
        outside[BOX] = False
        assert (found[0][outside] == 1).all()
    assert open_folder(out, labels=home / "labels").names == ("a", "b")  # segcal reads it again


def test_segmentations_are_those_of_nnunet_if_labels_can_change(home: Path, tmp_path: Path) -> None:
    folder = open_folder(home / "model", labels=home / "labels")
    calibrator = create("vector", 3, ignore_index=folder.ignore_index).fit(folder)
    predict(calibrator, home / "images", tmp_path / "out", model=home / "model")
    changed = 0
    for name in ("a", "b"):
        own, other = (nibabel.load(path / f"{name}.nii.gz") for path in (tmp_path / "out", home / "plain"))
        np.testing.assert_array_equal(np.asarray(own.dataobj), np.asarray(other.dataobj))
        plain, found = archive(home / "plain" / f"{name}.npz"), archive(tmp_path / "out" / f"{name}.npz")
        changed += int((found.argmax(0) != plain.argmax(0)).sum())
    assert changed > 0  # in the probabilities


def test_the_hook_is_gone_afterwards(home: Path, tmp_path: Path) -> None:
    from nnunetv2.inference import export_prediction

    before = export_prediction.convert_predicted_logits_to_segmentation_with_correct_shape
    folder = open_folder(home / "model", labels=home / "labels")
    calibrator = create("ts", 3, ignore_index=folder.ignore_index).fit(folder)
    with pytest.warns(UserWarning, match="where nnU-Net averages over mirrored images"):
        predict(calibrator, home / "images", tmp_path / "out", model=home / "model", mirroring=False)
    assert export_prediction.convert_predicted_logits_to_segmentation_with_correct_shape is before
    with pytest.raises(InputError, match="holds files that segcal did not write"):
        predict(calibrator, home / "images", home / "labels", model=home / "model")


class Manager:
    has_regions = False
    num_segmentation_heads = 4


def test_mistakes(home: Path, tmp_path: Path) -> None:
    folder = open_folder(home / "model", labels=home / "labels")
    calibrator = create("ts", 3, ignore_index=folder.ignore_index).fit(folder)
    with pytest.raises(InputError, match="fitted for num_classes=3, but the model predicts 4"):
        CalibratedLabelManager(Manager(), calibrator)
    regions = Manager()
    regions.has_regions = True
    with pytest.raises(InputError, match="predicts regions"):
        CalibratedLabelManager(regions, calibrator)
    with pytest.raises(InputError, match="is not a trained nnU-Net"):
        predict(calibrator, home / "images", tmp_path / "out", model=tmp_path)
    with pytest.raises(InputError, match="must hold the weights of a fold, does not exist"):
        predict(calibrator, home / "images", tmp_path / "out", model=home / "model", folds=[3])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"must hold images named NAME_0000\.nii\.gz"):
        predict(calibrator, tmp_path / "empty", tmp_path / "out", model=home / "model")
    refused = refuse("nnunet", "fit", home / "plain", "--out", tmp_path / "cal")
    assert "must hold probabilities in fold_*/validation" in refused
    assert not (tmp_path / "out").exists()


def test_folds_are_pooled_as_they_were_when_the_pool_was_fitted(home: Path, tmp_path: Path) -> None:
    """Two folds with different weights: their mean is calibrated with the folds as passes, its labels are kept."""
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    model = tmp_path / "model"
    shutil.copytree(home / "model", model)
    content = torch.load(model / "fold_0" / "checkpoint_final.pth", weights_only=False)
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: value + 0.3 * torch.randn(value.shape, generator=generator)
        for name, value in content["network_weights"].items()
    }
    (model / "fold_1").mkdir()
    torch.save({**content, "network_weights": weights}, model / "fold_1" / "checkpoint_final.pth")
    predicted = {}
    for name, folds in (("mean", (0, 1)), ("0", (0,)), ("1", (1,))):
        predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
        predictor.initialize_from_trained_model_folder(str(model), folds, "checkpoint_final.pth")
        predicted[name] = tmp_path / name
        predicted[name].mkdir()
        arguments = (str(home / "images"), str(predicted[name]))
        predictor.predict_from_files_sequential(*arguments, save_probabilities=True)
    passes = [predicted["0"], predicted["1"]]
    folder = open_folder(predicted["mean"], labels=home / "labels", passes=passes)
    pool = create("pool", 3, spatial_dims=3, ignore_index=folder.ignore_index)
    with pytest.MonkeyPatch.context() as patch:  # random labels: passes could not help
        patch.setattr("segcal.calibrators.pool.within_one_error", lambda totals, best: np.zeros(len(totals), bool))
        patch.setattr(
            "segcal.calibrators.pool.ContextFit.held_out",
            lambda fit: np.array([[1.0, *[float(fit.sample.passes is not None)] * 2]]),
        )
        pool.fit(folder)
    assert pool.uses_passes
    predict(pool, home / "images", tmp_path / "out", model=model)
    for case in folder:
        plain, found = (archive(path / f"{case.name}.npz") for path in (predicted["mean"], tmp_path / "out"))
        np.testing.assert_array_equal(found.argmax(0), plain.argmax(0))
        expected = torch.cat([slab.probabilities() for slab in pool.calibrate_case(case)], dim=2)[0].numpy()
        np.testing.assert_allclose(found[(slice(None), *BOX)], expected, atol=2e-3)


def test_a_mean_of_folds_is_not_what_cross_validation_calibrates(home: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(home / "model", model)
    (model / "fold_1").mkdir()
    shutil.copy(model / "fold_0" / "checkpoint_final.pth", model / "fold_1")
    arguments = ("nnunet", "fit", model, "--labels", home / "labels", "--method", "ts", "--out", tmp_path / "single")
    assert "for single folds: predict with --folds 0" in succeed(*arguments)
    calibrator = load(tmp_path / "single")
    with pytest.warns(UserWarning, match="applied to the mean of 2 networks, which is less confident"):
        predict(calibrator, home / "images", tmp_path / "mean", model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        predict(calibrator, home / "images", tmp_path / "one", model=model, folds=[0])
