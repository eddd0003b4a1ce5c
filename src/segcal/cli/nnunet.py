"""Calibrate a trained nnU-Net: `fit` on its cross-validation, then `predict` new images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import Answer, say
from segcal.cli.options import (
    OUTPUT,
    Device,
    FitCommand,
    FitOptions,
    FolderFitOptions,
    FolderOptions,
    SavedCalibrator,
    option,
)
from segcal.text import counted

_NETWORK = "Network"


def fit(
    model: Annotated[Path, typer.Argument(help="Trained model: the folder with fold_0, plans.json and dataset.json.")],
    fit_command: FitCommand,
    folder_options: FolderOptions,
    fit_options: FitOptions,
) -> Answer | None:
    """Fit a calibrator on the cross-validation of a trained nnU-Net: every case as predicted by the fold without it.

    The result is for single folds ('predict --folds 0'). For the mean of several, predict labelled images that no fold
    was trained on with nnUNetv2_predict --save_probabilities, and fit on these: segcal fit PREDICTIONS --labels LABELS.

    The folds must hold probabilities: nnUNetv2_train DATASET CONFIGURATION FOLD --val --npz, for every fold.

    Example: segcal nnunet fit nnUNet_results/Dataset004_Hippocampus/nnUNetTrainer__nnUNetPlans__3d_fullres --out cal/
    """
    from segcal.cli.fit import fit as fit_folder
    from segcal.types import InputError

    if not any(model.glob("fold_*/validation/*.npz")):
        raise InputError(
            f"'{model}' must hold probabilities in fold_*/validation, got none; "
            "run nnUNetv2_train DATASET CONFIGURATION FOLD --val --npz for every fold"
        )
    answer = fit_folder(model, fit_command, folder_options, FolderFitOptions(**vars(fit_options), logits_only=True))
    if answer is None or len(list(model.glob("fold_*"))) == 1:
        return answer

    def show() -> None:
        answer.print(as_json=False)
        say("for single folds: predict with --folds 0, or another one; 'segcal nnunet fit --help' says more")

    return answer._replace(shown=show)


def predict(
    calibrator: SavedCalibrator,
    images: Annotated[Path, typer.Argument(help="Folder of images named as nnU-Net needs them: NAME_0000.nii.gz.")],
    model: Annotated[Path, typer.Option(help="Trained model: the folder with fold_0 and plans.json.")],
    out: Annotated[Path, option(OUTPUT, "Folder to write.")],
    folds: Annotated[list[int] | None, option(_NETWORK, "Folds to average; all by default.")] = None,
    checkpoint: Annotated[
        str, option(_NETWORK, "Weights in each fold; read with pickle, so they must be trusted.")
    ] = "checkpoint_final.pth",
    device: Device = "auto",
    step_size: Annotated[float, option(_NETWORK, "Step of nnU-Net's tiles, as a fraction of their size.")] = 0.5,
    mirroring: Annotated[bool, option(_NETWORK, "Average over mirrored images, as nnU-Net does.")] = True,
) -> Answer:
    """Predict new images with a trained nnU-Net: its own segmentations, with calibrated probabilities.

    Example: segcal nnunet predict cal/ imagesTs/ --model MODEL --out predictions/ --device cpu
    """
    import sys
    from contextlib import redirect_stdout

    from segcal.calibrators import load
    from segcal.files import check_output_folder
    from segcal.integrations.nnunet import predict as run

    check_output_folder(out, "probabilities", calibrator, images, model)
    fitted = load(calibrator)
    with redirect_stdout(sys.stderr):  # nnU-Net prints as it goes
        count = run(
            fitted,
            images,
            out,
            model=model,
            folds=folds or None,
            checkpoint=checkpoint,
            device=device,
            step_size=step_size,
            mirroring=mirroring,
        )
    kept = "every segmentation as nnU-Net predicts it" if fitted.preserves_labels else "labels of the calibrator"
    return Answer({"out": str(out), "cases": count}, f"{counted(count, 'case')}, {kept}; written to {out}")


COMMANDS = (fit, predict)
