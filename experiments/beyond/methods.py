"""The methods that are compared, each fitted as its users would; LTS with the learning rate and epochs of its folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from experiments.fitting import on_device
from segcal.calibrators import Calibrator, LocalTemperatureScaling, create
from segcal.calibrators.automatic import CANDIDATES
from segcal.cases import Part
from segcal.statistics.folds import folds_of
from segcal.training.processes import choose_device
from segcal.types import Case, InputError

RATES = (1e-4, 1e-3)
_FOLDS = 3
_PATIENCE = 20


@dataclass(frozen=True)
class Training:
    """Of LTS: how long at most, on crops of which side (whole images if None), and where."""

    epochs: int = 100
    crop: int | None = None
    device: str = "auto"


Fit = Callable[[Sequence[Case], Mapping[str, Any], Training], tuple[Calibrator, dict[str, Any]]]
"""From cases, what is known of them and how LTS trains to a fitted calibrator and notes."""


def tuned_lts(
    cases: Sequence[Case], about: Mapping[str, Any], training: Training, **settings_of_lts: Any
) -> tuple[Calibrator, dict[str, Any]]:
    """Return LTS with the learning rate of least NLL on groups left out, and the epochs that were best there.

    With one group none can be left out: the paper's learning rate and all epochs are used. Further settings are those
    of the constructor of `LocalTemperatureScaling`.
    """
    build = partial(LocalTemperatureScaling, **about, image_channels=3, **settings_of_lts)
    device = str(choose_device(training.device))
    settings: dict[str, Any] = {"crop": training.crop, "device": device, "cache_bytes": 8 << 30}
    cases = on_device(cases, device)
    fold = folds_of([case.group for case in cases], _FOLDS)
    tried: dict[float, tuple[float, int]] = {}
    for rate in RATES if fold.max() else ():
        nll, best = [], []
        for left_out in range(fold.max() + 1):
            rest, held = (Part(cases, np.flatnonzero(side).tolist()) for side in (fold != left_out, fold == left_out))
            found = build().fit(
                rest, validation=held, epochs=training.epochs, learning_rate=rate, patience=_PATIENCE, **settings
            )
            nll.append(found.fit_report_.details["validation_nll"])
            best.append(found.fit_report_.details["best_epoch"])
        tried[rate] = float(np.mean(nll)), max(1, round(float(np.median(best))))
    rate = min(tried, key=lambda rate: tried[rate][0]) if tried else RATES[0]
    epochs = tried[rate][1] if tried else training.epochs
    lts = build().fit(cases, epochs=epochs, learning_rate=rate, **settings)
    return lts, {"learning_rate": rate, "epochs": epochs, "tried": {str(rate): found for rate, found in tried.items()}}


def _plain(method: str, **settings: Any) -> Fit:
    def fit(cases: Sequence[Case], about: Mapping[str, Any], _: Training) -> tuple[Calibrator, dict[str, Any]]:
        return create(method, **about, **settings).fit(cases), {}

    return fit


_LTS_VARIANTS: dict[str, dict[str, Any]] = {
    "LTS raw": {"inputs": "logits"},
    "LTS log-softmax": {"inputs": "log_softmax"},
    "LTS with floor": {"sharpen": False},
    "LTS sharpened": {"sharpen": True},
}
"""Settings that LTS may have; those that it does not know are left out of the table."""


def _variants() -> dict[str, Fit]:
    known = set(signature(LocalTemperatureScaling).parameters)
    return {name: partial(tuned_lts, **own) for name, own in _LTS_VARIANTS.items() if set(own) <= known}


METHODS: dict[str, Fit | None] = {
    "UC": None,
    "TS": _plain("ts"),
    "ETS": _plain("ets"),
    "TS by class": _plain("cts", features=False),
    "LTS": tuned_lts,
    **_variants(),
    "CTS": _plain("cts", classes=False),
    "CTS with classes": _plain("cts"),
    "CTS sharpened": _plain("cts", sharpen=True),
    "CTS with pairs": _plain("cts", pairs=True),
    "SVS": _plain("svs"),
    "MSc": _plain("msc"),
    "CMSap": _plain("cmsap"),
    "CMSop": _plain("cmsop"),
    "auto": _plain("auto", candidates=tuple(name for name in CANDIDATES if name != "lts")),
}
"""By the names of the tables. `auto` chooses without LTS here, which is measured beside it."""


def method_named(name: str) -> Fit | None:
    """How a method is fitted; None for the scores as they are."""
    if name not in METHODS:
        raise InputError(f"methods must be among {', '.join(METHODS)}, got '{name}'")
    return METHODS[name]
