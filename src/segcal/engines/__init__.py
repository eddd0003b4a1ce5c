"""Engines: one function over all cases, in their order, on one process, the processes of torchrun, or a Ray cluster."""

from segcal.engines.base import Engine, Track, engine_of
from segcal.engines.outputs import Output, write_cases
from segcal.engines.run import Run

__all__ = ["Engine", "Output", "Run", "Track", "engine_of", "write_cases"]
