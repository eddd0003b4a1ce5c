"""MONAI with Ignite: calibration metrics of an engine, beside MONAI's own handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from segcal.integrations.extras import needs_extra
from segcal.integrations.monai import CalibrationMetric
from segcal.types import IgnoreIndex

with needs_extra("monai"):
    from monai.handlers.ignite_metric import IgniteMetricHandler


class CalibrationHandler(IgniteMetricHandler):
    """`CalibrationMetric` attached to an Ignite engine; the value appears in `engine.state.metrics`.

    Args:
        num_classes: Number of classes L.
        scores: Whether the engine's predictions are "logits" or "probabilities".
        ignore_index: Label, or labels, left out.
        metric: Name of the metric, such as "ece".
        bins: Number of confidence bins.
        output_transform: Function from the engine's output to predictions and labels, as in all handlers of MONAI.
        save_details: Whether to keep counts and sums of each image in `engine.state.metric_details`.
    """

    def __init__(
        self,
        num_classes: int,
        scores: Literal["logits", "probabilities"],
        ignore_index: IgnoreIndex = None,
        metric: str = "ece",
        bins: int = 10,
        output_transform: Callable[[Any], Any] = lambda x: x,
        save_details: bool = False,
    ) -> None:
        metric_fn = CalibrationMetric(num_classes, scores, ignore_index, metric, bins)
        super().__init__(metric_fn=metric_fn, output_transform=output_transform, save_details=save_details)
