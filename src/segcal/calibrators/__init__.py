"""Calibrators, one method per file, built and loaded by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from segcal.calibrators.attended import AttendedTemperatureScaling
from segcal.calibrators.automatic import AutomaticChoice
from segcal.calibrators.base import FORMAT, WEIGHTS, Calibrator, FitReport, TemperatureCalibrator
from segcal.calibrators.beta import BetaCalibration
from segcal.calibrators.binwise import BinwiseTemperatureScaling
from segcal.calibrators.class_conditional import ArgmaxPreservingScaling, OrderPreservingScaling
from segcal.calibrators.contextual import ContextualTemperatureScaling
from segcal.calibrators.dirichlet import DirichletCalibration, search_dirichlet
from segcal.calibrators.ensemble import EnsembleTemperatureScaling
from segcal.calibrators.histogram import HistogramBinning
from segcal.calibrators.invariant import TranslationInvariantMatrixScaling
from segcal.calibrators.isotonic import IsotonicRegression
from segcal.calibrators.local import ImageTemperatureScaling, LocalTemperatureScaling
from segcal.calibrators.matrix import MatrixScaling
from segcal.calibrators.structured import StructuredVectorScaling
from segcal.calibrators.temperature import TemperatureScaling
from segcal.calibrators.vector import VectorScaling
from segcal.files import MARKER, read_json
from segcal.types import InputError

__all__ = [
    "ArgmaxPreservingScaling",
    "AttendedTemperatureScaling",
    "AutomaticChoice",
    "BetaCalibration",
    "BinwiseTemperatureScaling",
    "Calibrator",
    "ContextualTemperatureScaling",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FitReport",
    "HistogramBinning",
    "ImageTemperatureScaling",
    "IsotonicRegression",
    "LocalTemperatureScaling",
    "MatrixScaling",
    "OrderPreservingScaling",
    "StructuredVectorScaling",
    "TemperatureCalibrator",
    "TemperatureScaling",
    "TranslationInvariantMatrixScaling",
    "VectorScaling",
    "create",
    "load",
    "methods",
    "search_dirichlet",
]

_KINDS = (
    # of the paper's tables
    TemperatureScaling,
    ImageTemperatureScaling,
    LocalTemperatureScaling,
    IsotonicRegression,
    VectorScaling,
    EnsembleTemperatureScaling,
    DirichletCalibration,
    # of its related work
    MatrixScaling,
    HistogramBinning,
    BetaCalibration,
    BinwiseTemperatureScaling,
    AttendedTemperatureScaling,
    # rivals published since
    TranslationInvariantMatrixScaling,
    StructuredVectorScaling,
    ArgmaxPreservingScaling,
    OrderPreservingScaling,
    # our own
    ContextualTemperatureScaling,
    AutomaticChoice,
)
_METHODS: dict[str, type[Calibrator]] = {kind.method: kind for kind in _KINDS}
_DATA_SETTINGS = ("spatial_dims", "image_channels")
_SAVED = {"format": int, "method": str, "config": dict, "report": dict | None}


def methods() -> tuple[str, ...]:
    """Return the names that `create` knows.

    >>> "ts" in methods()
    True
    """
    return tuple(_METHODS)


def create(method: str, num_classes: int, **settings: Any) -> Calibrator:
    """Build a calibrator by name.

    `spatial_dims` and `image_channels` describe the data: methods that look at one pixel at a time ignore them.

    >>> create("ts", num_classes=11, ignore_index=11).method
    'ts'
    """
    if method not in _METHODS:
        raise InputError(f"method must be one of {', '.join(_METHODS)}, got '{method}'")
    kind = _METHODS[method]
    known = set(inspect.signature(kind).parameters)
    wanted = {name: value for name, value in settings.items() if name in known or name not in _DATA_SETTINGS}
    if unknown := sorted(set(wanted) - known):
        raise InputError(f"'{method}' has no setting '{unknown[0]}'; it has {', '.join(sorted(known))}")
    return kind(num_classes, **wanted)


def load(path: str | Path) -> Calibrator:
    """Load a saved calibrator."""
    folder = Path(path)
    content = read_json(folder / MARKER)
    foreign = f"'{folder}' is not a saved calibrator; give the folder that 'segcal fit' or save() wrote"
    if not isinstance(content, dict) or not all(isinstance(content.get(key), kind) for key, kind in _SAVED.items()):
        raise InputError(foreign)
    if content["format"] > FORMAT:
        raise InputError(f"'{folder}' was saved by segcal {content.get('segcal')}, newer than this one; update segcal")
    try:
        calibrator = create(content["method"], **content["config"])
        if (report := content["report"]) is not None:
            listed = {name: tuple(report[name]) for name in ("warnings", "names")}
            calibrator.fit_report_ = FitReport(**{**report, **listed})
    except (TypeError, KeyError) as error:
        raise InputError(foreign) from error
    try:
        calibrator.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise InputError(f"the learned values of '{folder}' cannot be read ({error}); fit and save it again") from error
    return calibrator
