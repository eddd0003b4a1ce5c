"""segcal: probabilities of semantic segmentation that can be trusted, per pixel and per voxel."""

from segcal.calibrators import create, load, methods
from segcal.data.simulate import load_sample
from segcal.evaluate import evaluate
from segcal.metrics import CalibrationSuite
from segcal.oracle import oracle_temperature
from segcal.results import Results
from segcal.types import Case, InputError
from segcal.version import __version__

__all__ = [
    "CalibrationSuite",
    "Case",
    "InputError",
    "Results",
    "__version__",
    "create",
    "evaluate",
    "load",
    "load_sample",
    "methods",
    "oracle_temperature",
]
