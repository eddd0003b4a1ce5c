"""segcal: probabilities of semantic segmentation that can be trusted, per pixel and per voxel."""

from typing import TYPE_CHECKING, Any

from segcal.calibrators import create, load, methods
from segcal.compare import compare
from segcal.data.simulate import load_sample
from segcal.evaluate import evaluate
from segcal.models import CalibratedModel, predict_cases
from segcal.oracle import oracle_temperature
from segcal.results import Results
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
