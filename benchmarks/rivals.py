"""segcal, fiducio and netcal fitted on the same pixels: time, memory, NLL and labels moved.

Every fit runs in a process of its own, so that its peak memory can be read. All solve the same problem, without
penalties; fiducio runs as it does by default (200 steps of Adam) and with its L-BFGS. Where it stops short of the
optimum, the time that segcal needs to reach the same NLL is measured as well. Packages that are not installed
are skipped: `pip install --constraint constraints.txt fiducio==0.2.0`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from benchmarks.fitting import CLASSES, Fit, Problem, fiducio, netcal, ours, peers_of
from benchmarks.timing import console, table
from segcal.calibrators import class_conditional
from segcal.evaluation.compare import memory_growth

IMAGES = 4
METHODS = ("ts", "ets", "vector", "matrix", "msc", "dirichlet", "cmsap", "cmsop")
LIBRARIES = ("segcal", "fiducio adam", "fiducio lbfgs", "netcal")
_ITERATED = ("cmsap", "cmsop")
_SHORT = 1e-3  # nats
_MISSING = 3  # exit status of a process that lacks the package


def against_rivals(chosen: Sequence[str] = (), images: int = IMAGES) -> None:
    """Print a row for each method and library, and how many times faster segcal is."""
    pixels = images * 360 * 480
    columns = ("what", "s", "ratio", "MB", "NLL", "labels moved", "segcal to this NLL, s", "ratio")
    shown = table(f"fit on {pixels:,} pixels of {CLASSES} classes", *columns)
    for method in [name for name in METHODS if not chosen or name in chosen]:
        ours: dict[str, float] | None = None
        for library in LIBRARIES:
            found = _in_process(library, method, images)
            if found is None:
                continue
            ours = ours or found
            ratio = "" if library == "segcal" else f"{found['seconds'] / ours['seconds']:.1f}"
            title = f"{method}, {library}" if library == "segcal" else f"  {library}"
            moved = f"{100 * found['moved']:.2f} %"
            row = (f"{found['seconds']:.2f}", ratio, f"{found['megabytes']:.0f}", f"{found['nll']:.6f}", moved)
            shown.add_row(title, *row, *_to_the_same_loss(method, images, found, ours))
    console.print(shown)


def _to_the_same_loss(
    method: str, images: int, rival: dict[str, float], ours: dict[str, float]
) -> tuple[()] | tuple[str, str]:
    """Return the time to the NLL of a rival that stopped short of the optimum, and how many times more it took."""
    if method not in _ITERATED or rival["nll"] <= ours["nll"] + _SHORT:
        return ()
    found = _in_process("segcal", method, images, "--until", str(rival["nll"]))
    return () if found is None else (f"{found['seconds']:.2f}", f"{rival['seconds'] / found['seconds']:.1f}")


def _in_process(library: str, method: str, images: int, *more: str) -> dict[str, float] | None:
    """Run one fit in a process of its own; None where the library lacks the method or is not installed."""
    if library != "segcal" and not any(name.startswith(library.split(maxsplit=1)[0]) for name, _ in peers_of(method)):
        return None
    command = [sys.executable, "-m", "benchmarks.rivals", library, method, "--images", str(images), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _MISSING:
        return None
    if done.returncode:
        raise RuntimeError(f"{library} {method} failed: {done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def fitted(library: str, method: str, problem: Problem) -> Fit:
    """Return a function that fits, and the map that it then gives."""
    if library.startswith("fiducio"):
        return fiducio(library.split()[1], method, problem)
    return (ours if library == "segcal" else netcal)(method, problem)


class _ReachedError(Exception):
    """The NLL that was asked for is reached."""


def end_at(nll: float) -> None:
    """End every fit of class-conditional scaling, by an exception, at its first pass over all pixels with this NLL."""
    names = vars(class_conditional)
    minimise = names["minimise_nonnegative"]

    def watched(at: Callable[[Any], tuple[Any, Any]], *start: Any, evaluations: int, tolerance: float) -> Any:
        def value(point: Any) -> tuple[Any, Any]:
            found = at(point)
            if found[0].sum() <= nll:
                raise _ReachedError
            return found

        whole = evaluations == class_conditional._PASSES  # rather than a sample
        return minimise(value if whole else at, *start, evaluations=evaluations, tolerance=tolerance)

    names["minimise_nonnegative"] = watched


def measure(library: str, method: str, images: int, until: float | None = None) -> dict[str, float]:
    """Fit once to compile and load, where that is cheap, then measure a fit, or the time until it reaches an NLL."""
    problem = Problem.of(images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library == "segcal":
            fitted(library, method, Problem.of(1))[0]()
        with memory_growth() as growth:
            fit, apply = fitted(library, method, problem)
            if until is not None:
                end_at(until)
            started = perf_counter()
            try:
                fit()
            except _ReachedError:
                return {"seconds": perf_counter() - started}
            seconds = perf_counter() - started
        nll, moved, pixels = 0.0, 0, 0
        with torch.no_grad():
            for case in problem.cases:
                logits, labels = torch.as_tensor(case.logits)[None], torch.as_tensor(case.labels).long()[None]
                probs = apply(logits)
                nll -= float(probs.gather(1, labels[:, None]).double().clamp(min=1e-12).log().sum())
                moved += int((probs.argmax(dim=1) != logits.argmax(dim=1)).sum())
                pixels += labels.numel()
    return {"seconds": seconds, "megabytes": (growth.peak or 0) / 1e6, "nll": nll / pixels, "moved": moved / pixels}


def main() -> int:
    """Measure one fit and print it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--until", type=float, help="segcal: end when this NLL is reached")
    asked = parser.parse_args()
    try:
        found = measure(asked.library, asked.method, asked.images, asked.until)
    except ModuleNotFoundError as error:
        print(f"{error}", file=sys.stderr)
        return _MISSING
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
