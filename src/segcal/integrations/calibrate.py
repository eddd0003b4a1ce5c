"""`segcal.calibrate`: a network and a loader in, a calibrated network out."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from segcal.calibrators import Calibrator, check_method, create
from segcal.calibrators.shown import fit_shown
from segcal.cases import no_cases
from segcal.integrations.calibrated_model import CalibratedModel
from segcal.integrations.predict import check_network, device_of, predict_cases
from segcal.integrations.spill import IN_MEMORY, SpilledCases
from segcal.progress import progress_of
from segcal.text import CalibrationWarning, suggestion
from segcal.types import Case, InputError, public


@public
def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    method: str = "auto",
    *,
    raters: int | None = None,
    validation: Iterable[Any] | None = None,
    logits_only: bool = False,
    prefix: str = "",
    fit_settings: Mapping[str, Any] | None = None,
    in_memory: int = IN_MEMORY,
    progress: bool = True,
    **settings: Any,
) -> CalibratedModel:
    """Calibrate a network on a loader of images and labels that it was not trained on.

    The network runs once over the loader, in evaluation mode and without gradients. Its device, its weights and the
    mode of each of its modules stay as they are.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> network = nn.Conv2d(3, 4, kernel_size=1)
    >>> data = TensorDataset(torch.rand(6, 3, 16, 16), torch.randint(4, (6, 16, 16)))
    >>> calibrated = calibrate(network, DataLoader(data, batch_size=2), method="ts")
    >>> calibrated(torch.rand(1, 3, 16, 16)).shape  # probabilities
    torch.Size([1, 4, 16, 16])
    >>> calibrated.fit_report_.cases
    6

    A network of channels that may overlap needs its activation, and masks `[B, C, *S]`; it returns a probability for
    each channel:

    >>> masks = TensorDataset(torch.rand(6, 3, 16, 16), torch.randint(2, (6, 4, 16, 16)))
    >>> calibrated = calibrate(network, DataLoader(masks, batch_size=2), method="ts", activation="sigmoid")
    >>> calibrated(torch.rand(1, 3, 16, 16)).shape
    torch.Size([1, 4, 16, 16])

    Args:
        model: Any segmentation network; see `segcal.integrations.outputs` for what it may return.
        loader: Any iterable of batches with labels; see `segcal.integrations.loaders` for what they may be.
        method: Name of the method, see `segcal.methods()`; "auto" chooses one by cross-validation.
        raters: Number of raters if the labels are soft: the share of the raters that chose each class, `[B, L, *S]`.
        validation: Another loader, on which trained methods choose their weights.
        logits_only: Whether methods that can look at the image must not.
        prefix: Start of the names of cases whose batch has no names; they are numbered.
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
    check_network(model)
    check_method(method)  # before the network runs
    remarks = dict[str, None]()
    with SpilledCases(in_memory) as cases, SpilledCases(in_memory) as held_out:
        predict = partial(
            predict_cases, model, activation=settings.get("activation"), raters=raters, remark=remarks.setdefault
        )
        _collect(cases, loader, partial(predict, prefix=prefix), "predicting", progress)
        if validation is not None:
            named = partial(predict, prefix=f"{prefix}validation-")
            _collect(held_out, validation, named, "predicting validation", progress)
        calibrator = _created(method, cases, logits_only, settings)
        _check_settings(calibrator, fit_settings or {})
        fit_shown(calibrator, cases, held_out if len(held_out) else None, fit_settings or {}, hidden=not progress)
    for remark in remarks:
        warnings.warn(remark, CalibrationWarning, stacklevel=2)
    report = calibrator.fit_report_
    calibrator.fit_report_ = replace(report, warnings=(*remarks, *report.warnings))
    return CalibratedModel(model, calibrator.to(device_of(model)))


def _collect(
    into: SpilledCases,
    loader: Iterable[Any],
    predict: Callable[[Iterable[Any]], Iterator[Case]],
    what: str,
    progress: bool,
) -> None:
    """Run the network over a loader and keep its cases."""
    batches = len(loader) if isinstance(loader, Sized) else None
    with progress_of(what, total=batches, hidden=not progress) as bar:
        (task,) = bar.task_ids

        def advancing() -> Iterator[Any]:
            for batch in loader:
                yield batch
                bar.advance(task)

        into.extend(predict(advancing()))
    if not len(into):
        raise no_cases(loader, "batch", "loader")


def _created(method: str, cases: Sequence[Case], logits_only: bool, settings: Mapping[str, Any]) -> Calibrator:
    """Return an unfitted calibrator for the cases."""
    shape = tuple(cases[0].logits.shape)
    # without an image for every case, at the size of its labels, methods can look at the logits only
    images = [] if logits_only else [case.image for case in cases if case.image is not None]
    channels = len(images[0]) if len(images) == len(cases) else 0
    seen = {"num_classes": shape[0], "spatial_dims": len(shape) - 1, "image_channels": channels}
    return create(method, **{**seen, **settings})


def _check_settings(calibrator: Calibrator, settings: Mapping[str, Any]) -> None:
    known = inspect.signature(calibrator.fit).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    if unknown := [name for name in settings if name not in known or name in ("cases", "validation")]:
        names = sorted({*known} - {"cases", "validation", "watch"})
        choice, hint = ", ".join(names) or "none", suggestion(unknown[0], names)
        raise InputError(f"'{calibrator.method}' has no fit setting '{unknown[0]}'; it has {choice}{hint}")
