"""nnU-Net 2: calibrated probabilities from its own prediction, hooked in after its resampling.

nnU-Net predicts logits on a resampled grid, interpolates them back to the grid of the image, and only then takes the
softmax. The calibrator is applied at that point, at the grid of the image: the cross-validation folds that it was
fitted on have that grid, and there a local temperature cannot change a label, as it could before interpolation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.files import MARKER, read_json, staged_folder, write_json
from segcal.functional.probability import (
    keep_labels,
    keep_sides,
    logits_from_probabilities,
    logits_from_sigmoid,
    probabilities,
)
from segcal.integrations import needs_extra
from segcal.text import warn_caller
from segcal.training.processes import choose_device
from segcal.types import Case, InputError
from segcal.version import __version__


class _LabelManager:
    """nnU-Net's label manager, some of whose methods subclasses replace."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        if name == "_manager":  # of a copy that is being made and has none yet
            raise AttributeError(name)
        return getattr(self._manager, name)


class CalibratedLabelManager(_LabelManager):
    """nnU-Net's label manager with its softmax, or sigmoid of regions, replaced by a calibrator.

    Args:
        manager: nnU-Net's own.
        calibrator: A fitted one.
        passes: Logits of each fold at the grid of the image, for calibrators that pool them.
    """

    def __init__(self, manager: Any, calibrator: Calibrator, passes: Sequence[Tensor] = ()) -> None:
        wanted = "sigmoid" if manager.has_regions else "softmax"
        if calibrator.activation != wanted:
            raise InputError(
                f"the model predicts {'regions, which may overlap' if manager.has_regions else 'exclusive classes'}, "
                f"and the calibrator was fitted for activation='{calibrator.activation}'; fit one on the folds of this "
                "model"
            )
        if manager.num_segmentation_heads != calibrator.num_classes:
            raise InputError(
                f"the calibrator was fitted for num_classes={calibrator.num_classes}, but the model predicts "
                f"{manager.num_segmentation_heads}; fit one on the folds of this model"
            )
        super().__init__(manager)
        self._calibrator, self._passes = calibrator, passes
        self._own_segmentation: Any = None

    def apply_inference_nonlin(self, logits: Any) -> Tensor:
        """Return calibrated probabilities `[L, *S]` of logits at the grid of the image, computed slab by slab.

        The calibrator is given log-probabilities: it was fitted on those of the archives that nnU-Net's validation
        wrote, and methods with one offset per class would not give the same for raw logits.
        """
        scores = torch.as_tensor(logits).float()
        sigmoid, keeps = self._calibrator.activation == "sigmoid", self._calibrator.preserves_labels
        known, *passes = (_as_archived(one, sigmoid) for one in (scores, *self._passes))
        probs = torch.empty_like(scores)
        for slab in self._calibrator.calibrate_case(Case("prediction", known, None, passes=passes or None)):
            raw, calibrated = scores[None, :, slab.rows], slab.logits()
            own = (torch.sigmoid(calibrated) if sigmoid else probabilities(calibrated)).to(scores)
            if keeps:
                own = keep_sides(own, raw) if sigmoid else keep_labels(own, raw)
            probs[:, slab.rows] = own[0]
        if not keeps:
            plain = self._manager.apply_inference_nonlin(scores)
            self._own_segmentation = self._manager.convert_probabilities_to_segmentation(plain)
        return probs

    def convert_probabilities_to_segmentation(self, probs: Any) -> Any:
        """Return nnU-Net's own segmentation, even if the calibrator can change labels."""
        if self._own_segmentation is None:
            return self._manager.convert_probabilities_to_segmentation(probs)
        found, self._own_segmentation = self._own_segmentation, None
        return found


def _as_archived(scores: Tensor, sigmoid: bool) -> Tensor:
    """Return the logits that would be read from an archive of probabilities."""
    if sigmoid:
        return logits_from_sigmoid(torch.sigmoid(scores))
    return logits_from_probabilities(torch.softmax(scores[None], dim=1))[0]


class _Resampled(_LabelManager):
    """nnU-Net's label manager, which keeps the logits at the grid of the image."""

    def apply_inference_nonlin(self, logits: Any) -> Any:
        self.logits = torch.as_tensor(logits).float()
        return self._manager.apply_inference_nonlin(logits)


def _run_folds_apart(predictor: Any) -> list[Tensor]:
    """Let a predictor of nnU-Net run its folds one by one; return the list that holds the logits of each afterwards."""
    run, folds, kept = predictor.predict_logits_from_preprocessed_data, predictor.list_of_parameters, list[Tensor]()

    def each_fold(data: Tensor) -> Tensor:
        kept.clear()
        try:
            for fold in folds:
                predictor.list_of_parameters = [fold]
                kept.append(run(data))
        finally:
            predictor.list_of_parameters = folds
        return torch.stack(kept).mean(dim=0)

    predictor.predict_logits_from_preprocessed_data = each_fold
    return kept


@contextmanager
def calibrated_export(calibrator: Calibrator, folds: Sequence[Tensor] = ()) -> Iterator[None]:
    """Let nnU-Net export calibrated probabilities inside this block, in this process.

    `folds` holds the logits of each fold, before resampling, whenever a prediction is exported.

    Every export goes through `convert_predicted_logits_to_segmentation_with_correct_shape`, whose label manager is
    replaced; worker processes of `predict_from_files` do not see the change, `predict_from_files_sequential` does.
    """
    with needs_extra("nnunet"):
        from nnunetv2.inference import export_prediction  # noqa: PLC0415

    name = "convert_predicted_logits_to_segmentation_with_correct_shape"
    own = getattr(export_prediction, name)

    def convert(logits: Any, plans: Any, configuration: Any, labels: Any, *others: Any, **options: Any) -> Any:
        passes = []
        for fold in folds:
            own(fold, plans, configuration, seen := _Resampled(labels), *others, **options)
            passes.append(seen.logits)
        return own(logits, plans, configuration, CalibratedLabelManager(labels, calibrator, passes), *others, **options)

    setattr(export_prediction, name, convert)
    try:
        yield
    finally:
        setattr(export_prediction, name, own)


def predict(
    calibrator: Calibrator,
    images: str | Path,
    out: str | Path,
    *,
    model: str | Path,
    folds: Sequence[int | str] | None = None,
    checkpoint: str = "checkpoint_final.pth",
    device: str = "auto",
    step_size: float = 0.5,
    mirroring: bool = True,
) -> int:
    """Predict images with a trained nnU-Net and write segmentations and calibrated probabilities; return their number.

    The folder has the files of `nnUNetv2_predict --save_probabilities`, so that nnU-Net's ensembling and every command
    of segcal read it. The segmentations are those of nnU-Net itself.

    A calibrator that was fitted on the validation cases of the folds knows single networks and mirrored images. Applied
    to the mean of several networks, which is less confident, or to images that are not mirrored, it is not calibrated,
    and a warning says what to do. One that pools passes needs those of the folds, in their order.

    Args:
        calibrator: Fitted on predictions of the same model and folds; one that uses the logits only.
        images: Folder of images named as nnU-Net needs them (`NAME_0000.nii.gz`).
        out: Folder to write.
        model: The trained model: the folder that holds `fold_0`, `plans.json` and `dataset.json`.
        folds: Folds whose networks are averaged; all that are there by default.
        checkpoint: File of the weights in each fold. nnU-Net reads it with pickle, so it must be trusted.
        device: Where the network runs: "cuda", "cpu" or "mps"; "auto" is a GPU if there is one.
        step_size: Overlap of nnU-Net's tiles, as a share of their size.
        mirroring: Whether to average over mirrored images, as nnU-Net does by default.
    """
    place = choose_device(device)
    if getattr(calibrator.applied, "image_channels", 0):
        raise InputError("this calibrator uses the image; fit one on the logits only (--logits-only) for nnU-Net")
    if not (Path(model) / "plans.json").is_file() or not (Path(model) / "dataset.json").is_file():
        raise InputError(
            f"'{model}' is not a trained nnU-Net; give the folder with fold_0, plans.json and dataset.json"
        )
    if not Path(images).is_dir():
        raise InputError(f"the image folder '{images}' does not exist")
    _check_images(Path(images), read_json(Path(model) / "dataset.json"))
    with needs_extra("nnunet"):
        from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor  # noqa: PLC0415

    predictor = nnUNetPredictor(tile_step_size=step_size, use_mirroring=mirroring, device=place, allow_tqdm=False)
    try:
        predictor.initialize_from_trained_model_folder(str(model), None if folds is None else tuple(folds), checkpoint)
    except FileNotFoundError as error:
        raise InputError(f"'{error.filename}', which must hold the weights of a fold, does not exist") from error
    except Exception as error:  # nnU-Net and pickle raise almost anything for a file that is damaged or not theirs
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(f"nnU-Net cannot load '{model}' ({type(error).__name__}: {reason})") from error
    CalibratedLabelManager(predictor.label_manager, calibrator)  # raises before anything is predicted
    mirrors = mirroring or not predictor.allowed_mirroring_axes
    _warn_of_mismatch(calibrator, Path(model), len(predictor.list_of_parameters), mirrors)
    each = _run_folds_apart(predictor) if calibrator.uses_passes else []
    with staged_folder(out) as folder, calibrated_export(calibrator.applied, each):
        predictor.predict_from_files_sequential(str(images), str(folder), save_probabilities=True)
        written = len(list(folder.glob("*.npz")))
        write_json(folder / MARKER, {"format": 1, "segcal": __version__, "probabilities": {"cases": written}})
    return written


def _warn_of_mismatch(calibrator: Calibrator, model: Path, folds: int, mirrors: bool) -> None:
    """Warn if the calibrator was fitted on cross-validation, and folds are averaged, or images are not mirrored."""
    validated = {path.stem for path in model.glob("fold_*/validation/*.npz")}
    if not validated.intersection(calibrator.fit_report_.names):
        return
    if not mirrors:
        warn_caller(
            "the calibrator was fitted on cross-validation, where nnU-Net averages over mirrored images, and is "
            "applied to images as they are; predict with mirroring, or fit on predictions without it"
        )
    if folds > 1:
        warn_caller(
            "the calibrator was fitted on cross-validation, where one network predicts each case, and is applied to "
            f"the mean of {folds} networks, which is less confident; predict labelled images that no fold was trained "
            "on with 'nnUNetv2_predict --save_probabilities', and fit on these with 'segcal fit PREDICTIONS --labels "
            "LABELS', or predict with one fold"
        )


def _check_images(images: Path, dataset: Any) -> None:
    """Raise unless the folder holds every channel of its images, named as nnU-Net needs them."""
    known = dataset if isinstance(dataset, dict) else {}
    ending = str(known.get("file_ending", ".nii.gz"))
    names = sorted(path.name for path in images.iterdir() if path.name.endswith(ending))
    if not names:
        raise InputError(f"'{images}' must hold images named NAME_0000{ending}, got none")
    for name in names:
        found = re.fullmatch(r"(.+)_\d{4}", name.removesuffix(ending))
        if found is None:
            raise InputError(f"images in '{images}' must be named NAME_0000{ending}, got '{name}'; rename it")
        for channel in range(len(known.get("channel_names") or "0")):
            if (needed := f"{found[1]}_{channel:04d}{ending}") not in names:
                raise InputError(f"channel {channel} of '{found[1]}' is missing; add '{needed}' to '{images}'")
