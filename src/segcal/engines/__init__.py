"""Engines, which divide the cases, and runs, which keep what is finished."""

from segcal.engines.engine import Engine, Track, engine_of
from segcal.engines.run import Run, write_cases

__all__ = ["Engine", "Run", "Track", "engine_of", "write_cases"]
