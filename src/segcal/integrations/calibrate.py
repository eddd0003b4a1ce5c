"""A network and its calibrator as one module, and `segcal.calibrate`, which makes it of a network and a loader."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from segcal.calibrators import Calibrator, FitReport, check_method, create
from segcal.calibrators.progress import fit_with_progress
from segcal.cases import no_cases
from segcal.integrations.outputs import logits_of
from segcal.integrations.passes import PassRunner, Wanted
from segcal.integrations.predict import device_of, predict_cases
from segcal.integrations.spill import IN_MEMORY, SpilledCases
from segcal.progress import progress_of
from segcal.text import CalibrationWarning
from segcal.training.processes import rank_and_world
from segcal.types import Case, Image, Logits, Passes, Probs, public


@public
class CalibratedModel(nn.Module):
    """Image to calibrated probabilities; with a method that preserves labels, they keep the labels of the network.

    The network may return any output that `segcal.integrations.outputs` reads; logits of another resolution are
    interpolated to the size of the image. The calibrator receives the image as the network does, so fit it on such
    images: `segcal.calibrate` and `segcal.predict_cases` do so.

    Args:
        network: Any segmentation network.
        calibrator: A fitted calibrator.
        passes: Further passes over each image, as they were when the calibrator was fitted (see `segcal.calibrate`).
            They are run only if the calibrator uses them.
    """

    def __init__(self, network: nn.Module, calibrator: Calibrator, passes: Wanted = None) -> None:
        super().__init__()
        self.network, self.calibrator = network, calibrator
        self.passes = PassRunner(passes if calibrator.fitted and calibrator.uses_passes else None)

    @property
    def fit_report_(self) -> FitReport:
        """The report of the calibrator's fit: NLL before and after, seconds, warnings."""
        return self.calibrator.fit_report_

    def logits(self, image: Image) -> Logits:
        """Return calibrated logits `[B, L, *S]`; the network's own are `logits_of(network(image), image)`."""
        calibrated: Logits = self.calibrator(*self._seen(image))
        return calibrated

    def forward(self, image: Image) -> Probs:
        """Return calibrated probabilities `[B, L, *S]`."""
        return self.calibrator.predict_proba(*self._seen(image))

    def _seen(self, image: Image) -> tuple[Logits, Image, Passes | None]:
        """Return what the calibrator is given."""
        passes = self.passes(self.network, image, image.shape[2:])
        return logits_of(self.network(image), image), image, passes


@public
def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    method: str = "auto",
    *,
    raters: int | None = None,
    validation: Iterable[Any] | None = None,
    logits_only: bool = False,
    passes: Wanted = None,
    fit_settings: Mapping[str, Any] | None = None,
    in_memory: int = IN_MEMORY,
    progress: bool = True,
    **settings: Any,
) -> CalibratedModel:
    """Calibrate a network on a loader of images and labels that it was not trained on.

    The network runs once over the loader, in evaluation mode and without gradients. Its device, its weights and the
    mode of each of its modules stay as they are. Where `torch.distributed` is initialised, each process gives its own
    part of the data, as a distributed sampler does, and every process returns the same calibrator, fitted on all parts.

    Examples:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> network = nn.Conv2d(3, 4, kernel_size=1)
        >>> images = torch.rand(6, 3, 16, 16)
        >>> labels = (network(images) + torch.randn(6, 4, 16, 16)).argmax(1)
        >>> calibrated = calibrate(network, DataLoader(TensorDataset(images, labels), batch_size=2), method="ts")
        >>> calibrated(images).shape, calibrated.logits(images).shape  # probabilities and calibrated logits
        (torch.Size([6, 4, 16, 16]), torch.Size([6, 4, 16, 16]))
        >>> calibrated.fit_report_.cases
        6

    A network of channels that may overlap needs its activation, and masks `[B, C, *S]`; it returns a probability for
    each channel:

    Examples:
        >>> masks = (network(images) + torch.randn(6, 4, 16, 16) > 0).long()
        >>> calibrated = calibrate(network, [(images, masks)], method="ts", activation="sigmoid")
        >>> calibrated(images).shape
        torch.Size([6, 4, 16, 16])

    Args:
        model: Any segmentation network; see `segcal.integrations.outputs` for what it may return.
        loader: Any iterable of batches with labels; see `segcal.integrations.loaders` for what they may be.
        method: Name of the method, see `segcal.methods()`; "auto" chooses one by cross-validation.
        raters: Number of raters if the labels are soft: the share of the raters that chose each class, `[B, L, *S]`.
        validation: Another loader, on which trained methods choose their weights.
        logits_only: Whether methods that can look at the image must not.
        passes: Further passes over each image, which the result runs as well: "mirror" (left and right), "mirror:AXES"
            (such as "mirror:0,1", all of these axes at once), "scale:FACTOR", both as "mirror+scale:FACTOR", "dropout"
            or "dropout:RUNS", other networks, functions `f(network, image)` that return logits in the place of the
            image, or a list of such. True is five: mirrored, 0.75 and 1.25 of the size, and these two mirrored, which
            takes 6.25 (3D: 6.75) times the pixels of one run. Methods "pool" and "auto" learn how much to trust each;
            others run none.
        fit_settings: Arguments of the method's `fit`: epochs, learning_rate, seed, ...
        in_memory: Bytes of predictions kept in memory; further ones go to temporary files.
        progress: Whether to show progress bars in a terminal or notebook.
        settings: Arguments of `segcal.create`: `ignore_index`, the label or labels left out of the fit; `background`,
            the class left out of the fit except near boundaries; `activation`, "sigmoid" for channels that may overlap,
            with labels `[B, C, *S]` of 0 and 1; and the settings of the method.

    Returns:
        The network with its fitted calibrator, on the device of the network; the report of the fit is its
        `fit_report_`. The network in it is the one that was given, in its own mode: call `eval()` to predict.
    """
    passes = passes if check_method(method).reads_passes else None  # before the network runs
    remarks = dict[str, None]()
    activation = settings.get("activation")
    predict = partial(
        predict_cases, model, activation=activation, raters=raters, passes=passes, remark=remarks.setdefault
    )
    rank, world = rank_and_world()
    prefix, progress = f"rank{rank}-" if world > 1 else "", progress and rank == 0
    with torch.random.fork_rng(devices=[]):  # each loop over a DataLoader draws a number
        with progress_of("predicting", hidden=not progress) as bar:
            predicted = predict(bar.track(loader, task_id=bar.task_ids[0]), prefix=prefix)
            if (first := next(predicted, None)) is None:
                raise no_cases(loader, "batch", "loader")
            calibrator = _created(method, first, settings, reads_image=not logits_only)
            calibrator.check_fit_settings(fit_settings or {})
            reads_images = bool(getattr(calibrator, "image_channels", 0))
            kept, held_out = (SpilledCases(in_memory, images=reads_images) for _ in range(2))
            kept.extend(chain([first], predicted))
            if validation is not None:
                batches = bar.track(validation, description="predicting validation")
                held_out.extend(predict(batches, prefix=f"{prefix}validation-"))
        kept.share()
        held_out.share()
        if validation is not None and not held_out.cases:
            raise no_cases(validation, "batch", "loader")
        if reads_images and any(case.image is None for case in (*kept.cases, *held_out.cases)):
            calibrator = _created(method, first, settings, reads_image=False)  # methods can look at the logits only
        fit_with_progress(calibrator, kept.cases, held_out.cases or None, fit_settings or {}, hidden=not progress)
    report = calibrator.fit_report_
    calibrator.fit_report_ = replace(report, warnings=(*remarks, *report.warnings))
    for warning in calibrator.fit_report_.warnings:
        warnings.warn(warning, CalibrationWarning, stacklevel=2)
    return CalibratedModel(model, calibrator.to(device_of(model)), passes)


def _created(method: str, case: Case, settings: Mapping[str, Any], *, reads_image: bool) -> Calibrator:
    """Return an unfitted calibrator for cases like this one."""
    classes, *space = case.logits.shape
    channels = len(case.image) if reads_image and case.image is not None else 0
    return create(
        method, **{"num_classes": classes, "spatial_dims": len(space), "image_channels": channels, **settings}
    )
