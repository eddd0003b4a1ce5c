"""Fits with a progress bar: over epochs for methods that are trained, over cases for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from segcal.calibrators.base import Calibrator
from segcal.progress import Tracked, progress_of
from segcal.training.progress import progress_bar
from segcal.types import Case


def fit_shown(
    calibrator: Calibrator,
    cases: Sequence[Case],
    validation: Sequence[Case] | None,
    settings: Mapping[str, Any],
    *,
    hidden: bool = False,
) -> None:
    """Fit a calibrator and show a progress bar, unless it is hidden."""
    if "watch" in calibrator.fit_settings:
        with progress_bar(description=f"training {calibrator.method}", hidden=hidden) as watch:
            calibrator.fit(cases, validation=validation, watch=watch, **settings)  # type: ignore[call-arg]
    else:
        with progress_of(f"fitting {calibrator.method}", hidden=hidden) as progress:
            calibrator.fit(Tracked(cases, progress), validation=validation, **settings)
