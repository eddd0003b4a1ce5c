"""segcal: probabilities of semantic segmentation that can be trusted, per pixel and per voxel."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from segcal.version import __version__

if TYPE_CHECKING:
    from segcal.calibrators import create, load, methods
    from segcal.data.datasets.simulate import load_sample
    from segcal.evaluation.compare import compare
    from segcal.evaluation.results import Results
    from segcal.evaluation.run import evaluate
    from segcal.integrations.calibrated_model import CalibratedModel, predict_cases
    from segcal.metrics import CalibrationSuite
    from segcal.oracle import oracle_temperature
    from segcal.types import Case, InputError

__all__ = [
    "CalibratedModel",
    "CalibrationSuite",
    "Case",
    "InputError",
    "Results",
    "__version__",
    "compare",
    "create",
    "evaluate",
    "load",
    "load_sample",
    "methods",
    "oracle_temperature",
    "predict_cases",
]

_HOMES = {
    "CalibratedModel": "integrations.calibrated_model",
    "CalibrationSuite": "metrics",
    "Case": "types",
    "InputError": "types",
    "Results": "evaluation.results",
    "compare": "evaluation.compare",
    "create": "calibrators",
    "evaluate": "evaluation.run",
    "load": "calibrators",
    "load_sample": "data.datasets.simulate",
    "methods": "calibrators",
    "oracle_temperature": "oracle",
    "predict_cases": "integrations.calibrated_model",
}
"""The module of each public name, imported when the name is first used: torch alone takes seconds to import."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'segcal' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"segcal.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
