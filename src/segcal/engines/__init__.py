"""Engines: one function over all cases, in their order, on one process, the processes of torchrun, or a Ray cluster."""

from segcal.engines.base import Engine, Track
from segcal.engines.run import Output, Run, engine_of, write_cases

__all__ = ["Engine", "Output", "Run", "Track", "engine_of", "write_cases"]
