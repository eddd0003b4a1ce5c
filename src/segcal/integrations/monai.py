"""MONAI: a transform in place of `Activationsd(softmax=True)`, an exact metric and an Ignite handler.

All three can be named by `_target_` in the configuration of a bundle.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from segcal.calibrators import Calibrator, load
from segcal.functional import binning
from segcal.functional.binning import Evidence, Histogram
from segcal.functional.catalogue import readings
from segcal.functional.checks import check_labels, check_logits, check_same_space
from segcal.functional.probability import logits_from_probabilities
from segcal.integrations.extras import needs_extra
from segcal.types import IgnoreIndex, InputError

with needs_extra("monai"):
    from monai.config import KeysCollection
    from monai.data import MetaTensor
    from monai.metrics import CumulativeIterationMetric
    from monai.transforms import MapTransform

_NOT_POOLED = ("ace",)  # needs equal-mass bins of all pixels, which counts of single images do not hold


class CalibratedSoftmaxd(MapTransform):
    """Calibrated probabilities from logits `[L, *S]`, where `Activationsd(softmax=True)` gives overconfident ones.

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
        """Return the data with probabilities instead of logits; meta data are kept."""
        found = dict(data)
        image = None if self.image_key is None else _plain(found[self.image_key])[None]
        for key in self.key_iterator(found):
            logits = _plain(found[key])
            self.calibrator.to(logits.device)
            with torch.no_grad():
                probs = self.calibrator.predict_proba(logits[None], image)[0]
            whole = isinstance(found[key], MetaTensor)
            found[key] = MetaTensor(probs, meta=found[key].meta) if whole else probs
        return found


class CalibrationMetric(CumulativeIterationMetric):
    """ECE and other calibration metrics over all pixels shown, exact for any number of them.

    Each image adds one row of int64 counts and one of float64 sums to the buffers, which MONAI gathers from all
    processes; unlike `monai.metrics.CalibrationErrorMetric` nothing is counted in float32, ignored labels are left
    out, and the mean is over pixels, not over images.

    Args:
        num_classes: Number of classes L.
        scores: Whether `y_pred` holds "logits" or "probabilities".
        ignore_index: Label, or labels, left out.
        metric: Name of the metric that `aggregate` returns: ece, mce, sce, nll, brier, entropy, accuracy or miou.
        bins: Number of confidence bins.
    """

    def __init__(
        self,
        num_classes: int,
        scores: Literal["logits", "probabilities"],
        ignore_index: IgnoreIndex = None,
        metric: str = "ece",
        bins: int = 10,
    ) -> None:
        super().__init__()
        if scores not in ("logits", "probabilities"):
            raise InputError(f"scores must be 'logits' or 'probabilities', got '{scores}'")
        self.num_classes, self.scores, self.ignore_index = num_classes, scores, ignore_index
        self.metric, self.bins = metric, bins
        known = _read(*_nothing(num_classes, bins), num_classes, bins)
        if metric not in known:
            raise InputError(f"metric must be one of {', '.join(known)}, got '{metric}'")

    def _compute_tensor(self, y_pred: Tensor, y: Tensor | None = None, **_: Any) -> list[Tensor]:
        """Return counts `[B, K]` and sums `[B, M]` of a batch: scores `[B, L, *S]`, labels `[B, 1, *S]` or one-hot."""
        if y is None:
            raise InputError("the metric needs labels, got y=None")
        scores, labels = _plain(y_pred), self._labels(_plain(y))
        logits = scores if self.scores == "logits" else logits_from_probabilities(scores)
        logits = check_logits(logits, self.num_classes, class_axis=1)
        check_same_space(logits, labels, class_axis=1)
        truth = check_labels(labels, self.num_classes, self.ignore_index)
        rows = [self._row(image, own) for image, own in zip(logits, truth, strict=True)]
        return [torch.stack(field) for field in zip(*rows, strict=True)]

    def aggregate(self, metric: str | None = None) -> Tensor:
        """Return a metric over all pixels of all images: the chosen one, or another by name."""
        return self.aggregate_all()[metric or self.metric]

    def aggregate_all(self) -> dict[str, Tensor]:
        """Return every metric by name."""
        kept = self.get_buffer()
        counts, sums = (part.sum(dim=0) for part in kept) if kept else _nothing(self.num_classes, self.bins)
        return _read(counts, sums, self.num_classes, self.bins)

    def _labels(self, y: Tensor) -> Tensor:
        if y.shape[1] == 1:
            return y[:, 0].long()
        if y.shape[1] != self.num_classes:
            raise InputError(f"y must have 1 channel or one for each of {self.num_classes} classes, got {y.shape[1]}")
        return y.argmax(dim=1)

    def _row(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        pixels = binning.describe(logits, labels)
        inside = binning.index_of(labels.reshape(-1) >= 0)
        edges = binning.equal_edges(self.bins, pixels.confidence)  # equal bins twice: adaptive ones cannot be pooled
        found = binning.region_evidence(
            pixels, [inside], num_classes=self.num_classes, bins=self.bins, adaptive_edges=edges
        )
        counts = torch.cat([found.top.pixels.flatten(), found.top.hit.flatten(), found.support.flatten()])
        return counts, torch.cat([found.top.confidence.flatten(), found.sums.flatten()])


def _read(counts: Tensor, sums: Tensor, num_classes: int, bins: int) -> dict[str, Tensor]:
    """Return the metrics of summed counts and sums."""
    cells = num_classes * bins
    pixels, hit, support = counts[:cells], counts[cells : 2 * cells], counts[2 * cells :]
    shape = (num_classes, bins)
    top = Histogram(pixels.view(shape), hit.view(shape), sums[:cells].view(shape))
    found = readings(Evidence(top, top, top, support, sums[cells:]))
    return {name: value for name, value in found.items() if name not in _NOT_POOLED}


def _nothing(num_classes: int, bins: int) -> tuple[Tensor, Tensor]:
    """Return the counts and sums of no pixels."""
    cells = num_classes * bins
    return torch.zeros(2 * cells + num_classes, dtype=torch.int64), torch.zeros(cells + 3, dtype=torch.float64)


def _plain(values: Any) -> Tensor:
    """Return a tensor without meta data, which operations on it would carry along."""
    plain: Tensor = values.as_tensor() if isinstance(values, MetaTensor) else torch.as_tensor(values)
    return plain
