"""MONAI: a transform in place of `Activationsd`, an exact metric, and its Ignite handler.

Each can be named by `_target_` in the configuration of a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators import Calibrator, load
from segcal.evidence import Evidence, describe, read
from segcal.evidence.scores import Scores, check_scores, logits_of
from segcal.functional.catalogue import METRICS
from segcal.functional.channels import exclusive_problems
from segcal.functional.checks import activation_of, check_labels, check_logits
from segcal.functional.counting import positions
from segcal.integrations import needs_extra
from segcal.integrations.loaders import whole_labels
from segcal.text import suggestion
from segcal.types import MOST_BINS, MOST_CLASSES, Activation, IgnoreIndex, InputError, check_whole

with needs_extra("monai"):
    from monai.config import KeysCollection
    from monai.data import MetaTensor
    from monai.handlers.ignite_metric import IgniteMetricHandler
    from monai.metrics import CumulativeIterationMetric
    from monai.transforms import MapTransform

_NOT_POOLED = ("ace",)  # needs equal-mass bins of all pixels, which counts of single images do not hold


class CalibratedSoftmaxd(MapTransform):
    """Calibrated probabilities from logits `[L, *S]`, where `Activationsd(softmax=True)` gives overconfident ones.

    With a calibrator of sigmoid channels it takes the place of `Activationsd(sigmoid=True)`.

    Args:
        keys: Keys of the logits.
        calibrator: A fitted calibrator, or the folder of a saved one.
        image_key: Key of the image, for calibrators that use it; it must be the image that the network was given.
        allow_missing_keys: Whether keys may be missing.
    """

    def __init__(
        self,
        keys: KeysCollection,
        calibrator: Calibrator | str | Path,
        image_key: Hashable | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.calibrator = calibrator if isinstance(calibrator, Calibrator) else load(calibrator)
        self.image_key = image_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with probabilities instead of logits; meta data and applied operations are kept."""
        found = dict(data)
        for key in self.key_iterator(found):
            image = None if self.image_key is None else _plain(found[self.image_key])[None]
            given, logits = found[key], _plain(found[key])
            self.calibrator.to(logits.device)
            with torch.no_grad():
                probs = self.calibrator.predict_proba(logits[None], image)[0]
            # with the operations that were applied, which `Invertd` needs
            found[key] = MetaTensor(probs).copy_meta_from(given) if isinstance(given, MetaTensor) else probs
        return found


class CalibrationMetric(CumulativeIterationMetric):
    """ECE and other calibration metrics over all pixels shown, exact for any number of them.

    Each image adds its evidence to the buffer, which MONAI gathers from all processes. It is held in float64, where
    counts are exact up to 2^53; unlike in `monai.metrics.CalibrationErrorMetric` nothing is counted in float32, ignored
    labels are left out, and the mean is over pixels, not over images.

    Of sigmoid channels, whose labels are masks `[B, C, *S]`, each is measured as two classes, and metrics are means
    over the channels, as in `segcal.CalibrationSuite`.

    Args:
        num_classes: Number of classes L, or of sigmoid channels C.
        scores: Whether `y_pred` holds "logits" or "probabilities".
        ignore_index: Label, or labels, left out.
        metric: Name of the metric that `aggregate` returns: ece, mce, sce, nll, brier, entropy, accuracy or miou.
        bins: Number of confidence bins.
        activation: "softmax" for exclusive classes, "sigmoid" for channels that may overlap; by default a softmax, or a
            sigmoid if `num_classes` is 1.
    """

    def __init__(
        self,
        num_classes: int,
        scores: Scores,
        ignore_index: IgnoreIndex = None,
        metric: str = "ece",
        bins: int = 10,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        check_whole("num_classes", num_classes, 1, MOST_CLASSES)
        check_whole("bins", bins, 1, MOST_BINS)
        self.num_classes, self.scores, self.ignore_index = num_classes, check_scores(scores), ignore_index
        self.metric, self.bins = metric, bins
        self.activation = activation_of(activation, num_classes)
        self._problems, self._classes = (num_classes, 2) if self.activation == "sigmoid" else (1, num_classes)
        self.aggregate(metric)  # raises now if there is no such metric

    def _compute_tensor(self, y_pred: Tensor, y: Tensor | None = None, **_: Any) -> Tensor:
        """Return evidence `[B, problems, E]` of a batch: scores `[B, L, *S]`, labels `[B, 1, *S]` or one-hot."""
        if y is None:
            raise InputError("the metric needs labels, got y=None")
        logits, labels = logits_of(_plain(y_pred), self.scores, self.activation), self._labels(_plain(y))
        rows = []
        for scores, truth in exclusive_problems(logits, labels, self.num_classes, self.activation):
            finite = check_logits(scores, self._classes, class_axis=1)
            known = check_labels(truth, self._classes, self.ignore_index)
            rows.append(torch.stack([self._row(*image) for image in zip(finite, known, strict=True)]))
        return torch.stack(rows, dim=1)

    def aggregate(self, metric: str | None = None) -> Tensor:
        """Return a metric over all pixels of all images: the chosen one, or another by name."""
        known, name = self.aggregate_all(), metric or self.metric
        if name not in known:
            raise InputError(f"metric must be one of {', '.join(known)}, got '{name}'{suggestion(name, known)}")
        return known[name]

    def aggregate_all(self) -> dict[str, Tensor]:
        """Return every metric by name."""
        kept = self.get_buffer()
        nothing = Evidence.zeros(self._problems, self._classes, self.bins)
        pooled = nothing if kept is None else Evidence.from_vectors(kept.sum(dim=0), self._classes)
        each = read(pooled, [name for name in METRICS if name not in _NOT_POOLED])
        pixels = each.pop("pixels").sum()
        return {**{name: values.double().nanmean() for name, values in each.items()}, "pixels": pixels}

    def _labels(self, y: Tensor) -> Tensor:
        if self.activation == "sigmoid":
            return whole_labels(y)
        if y.shape[1] == 1:
            return whole_labels(y[:, 0])
        if y.shape[1] != self.num_classes:
            raise InputError(f"y must have 1 channel or one for each of {self.num_classes} classes, got {y.shape[1]}")
        return y.argmax(dim=1)

    def _row(self, logits: Tensor, labels: Tensor) -> Tensor:
        inside = positions(labels >= 0)
        found = Evidence.of(
            describe(logits, labels), [inside], num_classes=self._classes, bins=self.bins, equal_mass=False
        )
        return found.to_vectors()[0]


class CalibrationHandler(IgniteMetricHandler):
    """`CalibrationMetric` attached to an Ignite engine; the value appears in `engine.state.metrics`.

    Args:
        settings: Arguments of `CalibrationMetric`: `num_classes`, `scores`, `metric`, ...
        output_transform: Function from the engine's output to predictions and labels, as in all handlers of MONAI.
        save_details: Whether to keep the evidence of each image in `engine.state.metric_details`.
        named: Arguments of `CalibrationMetric` by name.
    """

    def __init__(
        self,
        *settings: Any,
        output_transform: Callable[[Any], Any] = lambda x: x,
        save_details: bool = False,
        **named: Any,
    ) -> None:
        metric_fn = CalibrationMetric(*settings, **named)
        super().__init__(metric_fn=metric_fn, output_transform=output_transform, save_details=save_details)


def _plain(values: Any) -> Tensor:
    """Return a tensor without meta data, which operations on it would carry along."""
    plain: Tensor = values.as_tensor() if isinstance(values, MetaTensor) else torch.as_tensor(values)
    return plain
