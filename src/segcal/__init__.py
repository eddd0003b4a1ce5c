"""segcal: probability calibration for semantic segmentation, per pixel and per voxel.

Names are imported on first use, so that `import segcal` is fast.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from segcal.version import __version__

if TYPE_CHECKING:
    from segcal.calibrators import Calibrator, create, load, methods, register
    from segcal.cases import rater_cases
    from segcal.data.sample import load_sample
    from segcal.evaluation.compare import compare
    from segcal.evaluation.protocol import Protocol
    from segcal.evaluation.results import Results
    from segcal.evaluation.run import evaluate
    from segcal.evidence.one_line import ace, brier, ece, mce, nll, reliability_curve, sce
    from segcal.evidence.suite import CalibrationSuite
    from segcal.integrations.calibrate import CalibratedModel, calibrate
    from segcal.integrations.predict import predict_cases
    from segcal.kernels.dispatch import deferred_checks
    from segcal.oracle import oracle_temperature
    from segcal.report.figures.reliability import reliability_diagram
    from segcal.text import CalibrationWarning
    from segcal.types import Case, InputError

__all__ = [
    "CalibratedModel",
    "CalibrationSuite",
    "CalibrationWarning",
    "Calibrator",
    "Case",
    "InputError",
    "Protocol",
    "Results",
    "__version__",
    "ace",
    "brier",
    "calibrate",
    "compare",
    "create",
    "deferred_checks",
    "ece",
    "evaluate",
    "load",
    "load_sample",
    "mce",
    "methods",
    "nll",
    "oracle_temperature",
    "predict_cases",
    "rater_cases",
    "register",
    "reliability_curve",
    "reliability_diagram",
    "sce",
]

_HOMES = {
    "CalibratedModel": "integrations.calibrate",
    "CalibrationSuite": "evidence.suite",
    "CalibrationWarning": "text",
    "Calibrator": "calibrators",
    "Case": "types",
    "InputError": "types",
    "Protocol": "evaluation.protocol",
    "Results": "evaluation.results",
    "ace": "evidence.one_line",
    "brier": "evidence.one_line",
    "calibrate": "integrations.calibrate",
    "compare": "evaluation.compare",
    "create": "calibrators",
    "deferred_checks": "kernels.dispatch",
    "ece": "evidence.one_line",
    "evaluate": "evaluation.run",
    "load": "calibrators",
    "load_sample": "data.sample",
    "mce": "evidence.one_line",
    "methods": "calibrators",
    "nll": "evidence.one_line",
    "oracle_temperature": "oracle",
    "predict_cases": "integrations.predict",
    "rater_cases": "cases",
    "register": "calibrators",
    "reliability_curve": "evidence.one_line",
    "reliability_diagram": "report.figures.reliability",
    "sce": "evidence.one_line",
}
"""Module of each public name; its definition there is marked with `segcal.types.public`."""

if not TYPE_CHECKING:  # type checkers read the imports above, and report names that do not exist

    def __getattr__(name: str) -> object:
        """Import a public name or a submodule on first use (PEP 562)."""
        if name in _HOMES:
            value = getattr(import_module(f"segcal.{_HOMES[name]}"), name)
        elif not name.startswith("_") and find_spec(f"segcal.{name}") is not None:
            value = import_module(f"segcal.{name}")
        else:
            raise AttributeError(f"module 'segcal' has no attribute '{name}'")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
