"""Engines: one function over all cases, in their order, on one process, the processes of torchrun, or a Ray cluster."""

from segcal.engines.base import Engine, TorchrunEngine, Track
from segcal.engines.ray import RayEngine
from segcal.engines.run import Output, Run, write_cases
from segcal.training.environment import launched
from segcal.types import InputError

__all__ = ["Engine", "Output", "Run", "Track", "engine_of", "write_cases"]


def engine_of(name: str | None = None, address: str | None = None) -> Engine:
    """Return the engine with this name; by default torchrun's if it started this process, else a single process.

    Args:
        name: "ray", or None.
        address: Address of a running Ray cluster, such as "auto" or "ray://host:10001"; by default Ray looks for one
            and starts one on this machine if there is none.
    """
    several = launched()[1] > 1
    if name not in (None, "ray"):
        raise InputError(f"the engine must be ray, got '{name}'; leave it out to use this process, or torchrun's")
    if name is None and address is not None:
        raise InputError("an address is that of a Ray cluster; use it with --engine ray")
    if name == "ray" and several:
        raise InputError("torchrun divides the cases between its processes already; start 'segcal' without torchrun")
    if name is None and not several:
        return Engine()
    if name == "ray":
        return RayEngine(address)
    return TorchrunEngine()
