"""The methods that are compared, each fitted with its defaults, and variants of LTS and `cts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.fitting import on_device
from segcal.calibrators import Calibrator, create
from segcal.calibrators.automatic import DEFAULT_CANDIDATES
from segcal.cases import subset
from segcal.statistics.grouping import folds_of
from segcal.training.processes import choose_device
from segcal.types import Case, InputError

_FOLDS = 5
_PATIENCE = 20
_CACHE = 8 << 30


@dataclass(frozen=True)
class Training:
    """Training of LTS: epochs (None for its default), side of the crops (None for whole images); device of all fits."""

    epochs: int | None = None
    crop: int | None = None
    device: str = "auto"


Fit = Callable[[Sequence[Case], Mapping[str, Any], Training], tuple[Calibrator, dict[str, Any]]]
"""From cases, what is known about them and how LTS is trained to a fitted calibrator and notes."""


def _local(method: str = "lts", *, held_out: bool = False, **own: Any) -> Fit:
    """LTS or IBTS as users fit it; with `held_out`, on four fifths of the groups, with the others as validation."""

    def fit(cases: Sequence[Case], about: Mapping[str, Any], training: Training) -> tuple[Calibrator, dict[str, Any]]:
        device = str(choose_device(training.device))
        settings: dict[str, Any] = {
            "epochs": training.epochs,
            "crop": training.crop,
            "device": device,
            "cache_bytes": _CACHE,
        }
        used = on_device(cases, device)
        calibrator = create(method, **about, **own).to(device)
        if held_out:
            fold = folds_of([case.group or case.name for case in cases], _FOLDS)
            used, left = (subset(used, np.flatnonzero(side).tolist()) for side in (fold != 0, fold == 0))
            settings |= {"validation": left, "patience": _PATIENCE}
        found = calibrator.fit(used, **settings)
        details = found.fit_report_.details
        return found, {name: details[name] for name in ("best_epoch", "share") if name in details}

    return fit


def _plain(method: str, **settings: Any) -> Fit:
    def fit(cases: Sequence[Case], about: Mapping[str, Any], training: Training) -> tuple[Calibrator, dict[str, Any]]:
        device = str(choose_device(training.device))
        calibrator = create(method, **about, **settings).to(device)
        own: dict[str, Any] = {"device": device} if "device" in calibrator.fit_settings else {}  # of `auto`
        return calibrator.fit(on_device(cases, device), **own), {}

    return fit


METHODS: dict[str, Fit | None] = {
    "UC": None,
    "TS": _plain("ts"),
    "ETS": _plain("ets"),
    "TS by class": _plain("cts", features=False),
    "IBTS": _local("ibts"),
    "LTS": _local(),
    "LTS with image": _local(image_channels=3),
    "LTS sharpened": _local(sharpen=True),
    "LTS raw": _local(inputs="logits"),
    "LTS raw sharpened": _local(inputs="logits", sharpen=True),
    "LTS held out": _local(held_out=True),
    "LTS paper": _local(preset="paper", image_channels=3),
    "IBTS paper": _local("ibts", preset="paper", image_channels=3),
    "CTS": _plain("cts", classes=False),
    "CTS with classes": _plain("cts"),
    "CTS sharpened": _plain("cts", sharpen=True),
    "CTS with pairs": _plain("cts", pairs=True),
    "SVS": _plain("svs"),
    "MSc": _plain("msc"),
    "CMSap": _plain("cmsap"),
    "CMSop": _plain("cmsop"),
    "auto": _plain("auto", candidates=tuple(name for name in DEFAULT_CANDIDATES if name != "lts")),
}
"""By the names of the tables. `auto` chooses without LTS here, which is measured beside it."""


TRAINED = tuple(name for name in METHODS if name.startswith(("LTS", "IBTS")))
"""Methods whose fits take longest on a GPU."""


def method_named(name: str) -> Fit | None:
    """Return the fit of a method; None for the scores as they are."""
    if name not in METHODS:
        raise InputError(f"methods must be among {', '.join(METHODS)}, got '{name}'")
    return METHODS[name]
