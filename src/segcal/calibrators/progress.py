"""Fits with a progress bar: over epochs for methods that are trained, over cases for the others."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from segcal.calibrators.base import Calibrator
from segcal.progress import Tracked, announcements, progress_of
from segcal.text import CalibrationWarning
from segcal.training.processes import is_first_process
from segcal.training.progress import progress_bar
from segcal.types import Case


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
    hidden = hidden or not is_first_process()
    with announcements(hidden=hidden), warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        if "watch" in calibrator.fit_settings:
            with progress_bar(description=f"fitting {calibrator.method}", hidden=hidden) as watch:
                calibrator.fit(cases, validation=validation, **{"watch": watch, **settings})
        else:
            with progress_of(f"fitting {calibrator.method}", hidden=hidden) as progress:
                calibrator.fit(Tracked(cases, progress), validation=validation, **settings)
