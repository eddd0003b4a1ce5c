"""Fits with a progress bar: over epochs for methods that are trained, over cases for the others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from segcal.calibrators.base import Calibrator
from segcal.progress import Tracked, announcements, progress_of, stages_shown
from segcal.text import CalibrationWarning
from segcal.training.processes import is_first_process
from segcal.training.settings import Epoch, Watch
from segcal.types import Case

if TYPE_CHECKING:
    from rich.progress import Progress


def fit_with_progress(
    calibrator: Calibrator,
    cases: Sequence[Case],
    validation: Sequence[Case] | None,
    settings: Mapping[str, Any],
    *,
    hidden: bool = False,
) -> None:
    """Fit a calibrator; the first process shows a progress bar and what the fit announces, unless it is hidden.

    Warnings are in the report only, for the caller to show.
    """
    hidden, trained = hidden or not is_first_process(), "watch" in calibrator.fit_settings
    title = f"fitting {calibrator.method}"
    with (
        announcements(hidden=hidden),
        warnings.catch_warnings(),
        progress_of(title, note=trained, hidden=hidden) as bar,
    ):
        warnings.simplefilter("ignore", CalibrationWarning)
        if trained:
            with _epochs_shown(bar, title) as watch:
                calibrator.fit(cases, validation=validation, **{"watch": watch, **settings})
        else:
            calibrator.fit(Tracked(cases, bar), validation=validation, **settings)


@contextmanager
def _epochs_shown(bar: Progress, title: str) -> Iterator[Watch]:
    """Show the stages of a fit and the losses of each epoch."""
    (task,) = bar.task_ids
    staged = False

    def show(text: str, number: int, of: int) -> None:
        nonlocal staged
        staged = True
        bar.update(task, description=f"{title}: {text}", completed=number - 1, total=of, note="")

    def watch(epoch: Epoch) -> None:
        note = f"loss {epoch.loss:.5f}"
        if epoch.validation is not None:
            note += f"  validation {epoch.validation:.5f}{' *' if epoch.best else ''}"
        if staged:
            bar.update(task, note=f"epoch {epoch.number} of {epoch.of}  {note}")
        else:
            bar.update(task, completed=epoch.number, total=epoch.of, note=note)

    with stages_shown(show):
        yield watch
