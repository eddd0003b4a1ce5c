"""MONAI with Ignite: calibration metrics of an engine, beside MONAI's own handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segcal.integrations.extras import needs_extra
from segcal.integrations.monai import CalibrationMetric

with needs_extra("monai"):
    from monai.handlers.ignite_metric import IgniteMetricHandler


class CalibrationHandler(IgniteMetricHandler):
    """`CalibrationMetric` attached to an Ignite engine; the value appears in `engine.state.metrics`.

    Args:
        settings: Arguments of `segcal.integrations.monai.CalibrationMetric`: `num_classes`, `scores`, `metric`, ...
        output_transform: Function from the engine's output to predictions and labels, as in all handlers of MONAI.
        save_details: Whether to keep counts and sums of each image in `engine.state.metric_details`.
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
