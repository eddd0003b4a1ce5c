"""segcal, fiducio and netcal fitted on the same pixels: time, memory, NLL and labels moved.

Every fit runs in a process of its own, so that its peak memory can be read. All solve the same problem, without
penalties; fiducio runs as it does by default (200 steps of Adam) and with its L-BFGS. Packages that are not installed
are skipped: `pip install --constraint constraints.txt fiducio==0.2.0`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.fitting import CLASSES, IMAGES, Problem
from benchmarks.timing import console, table
from segcal import create
from segcal.evaluation.memory import memory_growth

METHODS = ("ts", "ets", "vector", "matrix", "msc", "dirichlet", "cmsap", "cmsop")
LIBRARIES = ("segcal", "fiducio adam", "fiducio lbfgs", "netcal")
_FIDUCIO = {
    "ts": "TemperatureScaling",
    "ets": "EnsembleTemperatureScaling",
    "vector": "VectorScaling",
    "matrix": "MatrixScaling",
    "msc": "TranslationInvariantMatrixScaling",
    "dirichlet": "DirichletCalibration",
    "cmsap": "ArgmaxPreservingMatrixScaling",
    "cmsop": "OrderPreservingMatrixScaling",
}
_NETCAL = {"ts": "TemperatureScaling", "vector": "LogisticCalibration"}
_NO_PENALTY = {"off_diagonal_penalty": 0.0, "bias_penalty": 0.0}
_PENALISED = ("matrix", "msc", "dirichlet", "cmsap", "cmsop")
_MISSING = 3  # exit status of a process that lacks the package

Apply = Callable[[Tensor], Tensor]
"""From logits `[1, L, H, W]` to calibrated probabilities."""


def against_rivals(chosen: Sequence[str] = (), images: int = IMAGES) -> None:
    """Print a row for each method and library, and how many times faster segcal is."""
    pixels = images * 360 * 480
    shown = table(f"fit on {pixels:,} pixels of {CLASSES} classes", "what", "s", "ratio", "MB", "NLL", "labels moved")
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
            shown.add_row(title, *row)
    console.print(shown)


def _in_process(library: str, method: str, images: int) -> dict[str, float] | None:
    """Run one fit in a process of its own; None where the library lacks the method or is not installed."""
    if (library.startswith("fiducio") and method not in _FIDUCIO) or (library == "netcal" and method not in _NETCAL):
        return None
    command = [sys.executable, "-m", "benchmarks.rivals", library, method, "--images", str(images)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _MISSING:
        return None
    if done.returncode:
        raise RuntimeError(f"{library} {method} failed: {done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def fitted(library: str, method: str, problem: Problem) -> tuple[Callable[[], Any], Apply]:
    """Return a function that fits, and the map that it then gives."""
    logits = torch.stack([torch.as_tensor(case.logits) for case in problem.cases])
    labels = torch.stack([torch.as_tensor(case.labels) for case in problem.cases]).long()
    if library == "segcal":
        ours = create(method, CLASSES, **(_NO_PENALTY if method in _PENALISED else {}))
        return lambda: ours.fit(problem.cases), ours.predict_proba
    if library == "netcal":
        import netcal.scaling

        peer = getattr(netcal.scaling, _NETCAL[method])()
        probs, flat = problem.probs, problem.labels

        def apply(z: Tensor) -> Tensor:
            rows = torch.softmax(z.double(), dim=1).movedim(1, -1)
            return (
                torch.from_numpy(np.asarray(peer.transform(rows.reshape(-1, CLASSES).numpy())))
                .view(rows.shape)
                .movedim(-1, 1)
            )

        return lambda: peer.fit(probs, flat), apply
    rival = getattr(import_module("fiducio"), _FIDUCIO[method])(optimizer=library.split()[1], device="cpu")
    return lambda: rival.fit(logits, labels), rival.transform


def measure(library: str, method: str, images: int) -> dict[str, float]:
    """Fit once to compile and load, where that is cheap, then measure a fit."""
    problem = Problem.of(images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library == "segcal":
            fitted(library, method, Problem.of(1))[0]()
        with memory_growth() as growth:
            fit, apply = fitted(library, method, problem)
            started = perf_counter()
            fit()
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
    asked = parser.parse_args()
    try:
        found = measure(asked.library, asked.method, asked.images)
    except ModuleNotFoundError as error:
        print(f"{error}", file=sys.stderr)
        return _MISSING
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
