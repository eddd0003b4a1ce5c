"""segcal: probabilities of semantic segmentation that can be trusted, per pixel and per voxel."""

from typing import TYPE_CHECKING, Any

from segcal.calibrators import create, load, methods
from segcal.evaluation.compare import compare
from segcal.evaluation.results import Results
from segcal.evaluation.run import evaluate
from segcal.integrations.calibrated_model import CalibratedModel, predict_cases
from segcal.oracle import oracle_temperature
from segcal.sample import load_sample
from segcal.types import Case, InputError
from segcal.version import __version__

if TYPE_CHECKING:
    from segcal.metrics import CalibrationSuite

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


def __getattr__(name: str) -> Any:
    if name == "CalibrationSuite":  # torchmetrics is slow to import, and brings matplotlib along where there is one
        from segcal.metrics import CalibrationSuite  # noqa: PLC0415

        return CalibrationSuite
    raise AttributeError(f"module 'segcal' has no attribute '{name}'")
