"""Figures in the tracker of an experiment: TensorBoard, Weights & Biases, MLflow, and Lightning's loggers of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from segcal.types import InputError

_Logger = Callable[[str, Any, int], None]


def log_figures(tracker: Any, figures: Mapping[str, Any], step: int = 0) -> None:
    """Log matplotlib figures, such as those of `reliability_diagram`, `CalibrationSuite.plot` and `draw_figure`.

    Args:
        tracker: A `SummaryWriter` of TensorBoard, a run of Weights & Biases (or the module `wandb`), the module
            `mlflow`, or a Lightning logger of one of them.
        figures: Figures by the name under which they are logged.
        step: Step of the training.

    Examples:
        >>> class Writer:  # as TensorBoard's
        ...     def add_figure(self, tag, figure, global_step):
        ...         print(tag, global_step)
        >>> log_figures(Writer(), {"reliability": None}, step=3)
        reliability 3
    """
    log = figure_logger(tracker)
    if log is None:
        raise InputError(
            f"figures cannot be logged to {type(tracker).__name__}; give a SummaryWriter, a run of Weights & Biases, "
            "the module mlflow, or a Lightning logger of one of them"
        )
    for name, figure in figures.items():
        log(name, figure, step)


def figure_logger(tracker: Any) -> _Logger | None:
    """Return the function that logs a figure of a name at a step; None for other trackers."""
    if hasattr(tracker, "add_figure"):  # TensorBoard
        return lambda name, figure, step: tracker.add_figure(name, figure, global_step=step)
    if hasattr(tracker, "log_figure"):  # MLflow keeps files, which have no step
        return lambda name, figure, step: tracker.log_figure(figure, _file_name(name, step))
    if hasattr(tracker, "run_id") and hasattr(tracker.experiment, "log_figure"):  # Lightning's MLFlowLogger
        client, run = tracker.experiment, tracker.run_id
        return lambda name, figure, step: client.log_figure(run, figure, _file_name(name, step))
    if _module_of(tracker) == "wandb":
        from wandb import Image  # noqa: PLC0415  (installed, since this is one of its objects)

        return lambda name, figure, step: tracker.log({name: Image(figure)}, step=step or None)
    if _module_of(tracker) in ("lightning", "pytorch_lightning") and hasattr(tracker, "experiment"):
        return figure_logger(tracker.experiment)
    return None


def _file_name(name: str, step: int) -> str:
    return f"{name}_{step:06d}.png"


def _module_of(tracker: Any) -> str:
    """Return the package that an object comes from, or the name of a module."""
    name = getattr(tracker, "__name__", None) or type(tracker).__module__
    return str(name).partition(".")[0]
