"""Calibrators, one file for each method or family of methods, built and loaded by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor

from segcal.calibrators.affine import (
    DirichletCalibration,
    MatrixScaling,
    StructuredVectorScaling,
    TranslationInvariantMatrixScaling,
    VectorScaling,
    search_dirichlet,
)
from segcal.calibrators.automatic import AutomaticChoice
from segcal.calibrators.base import Calibrator
from segcal.calibrators.binwise import BinwiseTemperatureScaling
from segcal.calibrators.class_conditional import ArgmaxPreservingScaling, OrderPreservingScaling
from segcal.calibrators.contextual import ContextualTemperatureScaling
from segcal.calibrators.ensemble import EnsembleTemperatureScaling
from segcal.calibrators.local import ImageTemperatureScaling, LocalTemperatureScaling
from segcal.calibrators.pool import PooledPasses
from segcal.calibrators.report import FitReport, Learned
from segcal.calibrators.saving import check_values, fill, foreign, read_content, read_shapes, read_values
from segcal.calibrators.scores import BetaCalibration, HistogramBinning, IsotonicRegression
from segcal.calibrators.sigmoid import SigmoidHead
from segcal.calibrators.slabs import CalibratedSlab
from segcal.calibrators.temperature import AttendedTemperatureScaling, TemperatureCalibrator, TemperatureScaling
from segcal.functional.checks import activation_of
from segcal.text import suggestion
from segcal.types import MOST_CLASSES, Activation, InputError, check_whole, public

__all__ = [
    "ArgmaxPreservingScaling",
    "AttendedTemperatureScaling",
    "AutomaticChoice",
    "BetaCalibration",
    "BinwiseTemperatureScaling",
    "CalibratedSlab",
    "Calibrator",
    "ContextualTemperatureScaling",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FitReport",
    "HistogramBinning",
    "ImageTemperatureScaling",
    "IsotonicRegression",
    "Learned",
    "LocalTemperatureScaling",
    "MatrixScaling",
    "OrderPreservingScaling",
    "PooledPasses",
    "SigmoidHead",
    "StructuredVectorScaling",
    "TemperatureCalibrator",
    "TemperatureScaling",
    "TranslationInvariantMatrixScaling",
    "VectorScaling",
    "check_method",
    "create",
    "load",
    "method_titles",
    "methods",
    "register",
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
    PooledPasses,
    AutomaticChoice,
)
_METHODS: dict[str, type[Calibrator]] = {kind.method: kind for kind in _KINDS}
_DATA_SETTINGS = ("spatial_dims", "image_channels")


Kind = TypeVar("Kind", bound=type[Calibrator])


@public
def register(kind: Kind) -> Kind:
    """Make a calibrator class available by the name in its `method`: a class decorator.

    `create`, `load`, `methods` and `compare` then know it, in the processes that import its module.
    """
    if not (isinstance(kind, type) and issubclass(kind, Calibrator) and isinstance(getattr(kind, "method", None), str)):
        raise InputError(f"register needs a subclass of Calibrator with a class attribute `method`, got {kind!r}")
    if kind.method in _METHODS and _METHODS[kind.method].__qualname__ != kind.__qualname__:
        raise InputError(f"the method '{kind.method}' exists already; choose another name")
    _METHODS[kind.method] = kind
    return kind


@public
def methods() -> tuple[str, ...]:
    """Return the names that `create` knows.

    Examples:
        >>> "ts" in methods()
        True
    """
    return tuple(_METHODS)


def check_method(method: str) -> type[Calibrator]:
    """Return the class of a method of `create`; raise unless there is one, naming the nearest."""
    if method not in _METHODS:
        raise InputError(f"method must be one of {', '.join(_METHODS)}, got '{method}'{suggestion(method, _METHODS)}")
    return _METHODS[method]


def method_titles(names: Sequence[str]) -> dict[str, str]:
    """Spell out the names of tables that are methods of `create` in capitals, and UC.

    Examples:
        >>> method_titles(["UC", "TS", "mine"])
        {'UC': 'uncalibrated', 'TS': 'temperature scaling'}
    """
    kinds = {name: _METHODS[name.lower()].__name__ for name in names if name.lower() in _METHODS}
    titles = {name: re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower() for name, kind in kinds.items()}
    return {name: titles.get(name, "uncalibrated") for name in names if name in titles or name == "UC"}


@overload
def create(method: Literal["ts", "bts", "ats", "cts"], num_classes: int, **settings: Any) -> TemperatureCalibrator: ...
@overload
def create(method: Literal["ibts", "lts"], num_classes: int, **settings: Any) -> LocalTemperatureScaling: ...
@overload
def create(method: Literal["auto"], num_classes: int, **settings: Any) -> AutomaticChoice: ...
@overload
def create(method: str, num_classes: int, **settings: Any) -> Calibrator: ...
@public
def create(method: str, num_classes: int, *, activation: Activation | None = None, **settings: Any) -> Calibrator:
    """Build a calibrator by name.

    `spatial_dims` and `image_channels` describe the data; methods that read one pixel at a time ignore them. With
    `activation="sigmoid"` the calibrator is for `num_classes` channels that may overlap: logits `[B, C, *S]` and labels
    `[B, C, *S]` of 0 and 1, each channel calibrated separately; `num_classes=1` is always such a head.

    "classwise" is another name of "cts" with `features=False`.

    Examples:
        >>> create("ts", num_classes=11, ignore_index=11).method
        'ts'
    """
    if method == "classwise":
        return create("cts", num_classes, activation=activation, **{"features": False, **settings})
    check_method(method)
    check_whole("num_classes", num_classes, 1, MOST_CLASSES)
    if activation_of(activation, num_classes) == "sigmoid":
        return SigmoidHead([create(method, 2, **settings) for _ in range(num_classes)])
    kind = _METHODS[method]
    known = set(kind.settings())
    wanted = {name: value for name, value in settings.items() if name in known or name not in _DATA_SETTINGS}
    if unknown := sorted(set(wanted) - known):
        hint = suggestion(unknown[0], known)
        if unknown[0] in kind.fit_settings:
            hint = f"; it is a setting of fit (with segcal.calibrate, give fit_settings={{'{unknown[0]}': ...}})"
        raise InputError(f"'{method}' has no setting '{unknown[0]}'; it has {', '.join(sorted(known))}{hint}")
    return kind(num_classes, **wanted)


@public
def load(path: str | Path) -> Calibrator:
    """Load a saved calibrator; raise unless it is as it was saved, whole and of a method that is known."""
    folder = Path(path)
    content = read_content(folder)
    _check_shapes(content, read_shapes(folder), folder)
    values = read_values(folder, content)
    try:
        calibrator: Calibrator = create(content["method"], **content["config"])
        if (report := content["report"]) is not None:
            listed = {name: tuple(report[name]) for name in ("warnings", "names", "fingerprints")}
            calibrator.fit_report_ = FitReport(**{**report, **listed})
    except InputError:
        raise
    except Exception as error:  # settings of any type and size make the constructors raise almost anything
        raise InputError(foreign(folder)) from error
    fill(calibrator, values, folder)
    check_values(calibrator.state_dict(), calibrator._problem(), folder)
    return calibrator


def _check_shapes(content: Mapping[str, Any], shapes: Mapping[str, Tensor], folder: Path) -> None:
    """Compare what the header declares with what the settings call for, without the memory that either may ask for."""
    check_method(content["method"])
    config = content["config"]
    channels = config.get("num_classes") if config.get("activation") == "sigmoid" else 0
    if isinstance(channels, int) and channels > len(shapes):  # each channel has several values
        raise InputError(
            f"the learned values of '{folder}' must be those of {channels} channels, got {len(shapes)} values; "
            "fit and save it again"
        )
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is copied
            fill(create(content["method"], **config), shapes, folder)
    except InputError:
        raise
    except Exception as error:
        if _METHODS[content["method"]] in _KINDS:
            raise InputError(foreign(folder)) from error
        # a registered method may compute with values when it is built: `load` then decides
