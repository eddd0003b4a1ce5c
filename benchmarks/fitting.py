"""Every method fitted on the same pixels, beside fiducio, netcal, scikit-learn and scipy where they have the method.

Every fit runs in a process of its own, so that its peak memory can be read. A row has seconds, how often segcal went
through the cases, the growth of memory, NLL and ECE of what was found, and the labels moved. Where a peer has the
method, both solve one problem without penalties, and should find the same optimum; fiducio runs as it does by default
(200 steps of Adam) and with its L-BFGS. Packages that are not installed are left out:
`pip install --constraint constraints.txt fiducio==0.2.0`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from benchmarks.timing import console, scene, table
from segcal import CalibrationSuite, Case, create
from segcal.cases import CaseStream, StreamedCase
from segcal.evaluation.compare import memory_growth
from segcal.types import Array

CLASSES = 11
IMAGES = 4
_CROPS = 2  # along each axis of an image: cross-validation needs several cases
_SMALLEST = 1e-12
_LOWEST = -15.0
_minimise: Any = optimize.minimize  # its types know no function of an array of unknown shape


class Problem(NamedTuple):
    """The same pixels as cases and as one array in float64, which is what the peers take.

    The logits are log-probabilities, so that a method which scales logits and one which scales what it gets back from
    probabilities solve the same problem.
    """

    cases: Sequence[Case]
    probs: Array
    labels: Array

    @classmethod
    def of(cls, images: int) -> Problem:
        """Return quarters of images of 360 x 480 with the scores of a network and labels that often differ."""
        logits, labels = scene(CLASSES, batch=images)
        # peers cut probabilities off at different places, and would solve different problems
        log_probs = torch.log_softmax(torch.log_softmax(logits, dim=1).clamp(min=_LOWEST), dim=1)
        parts = [
            (z, y)
            for rows in zip(log_probs.chunk(_CROPS, dim=2), labels.chunk(_CROPS, dim=1), strict=True)
            for quarters in [zip(rows[0].chunk(_CROPS, dim=3), rows[1].chunk(_CROPS, dim=2), strict=True)]
            for part in quarters
            for z, y in zip(*part, strict=True)
        ]
        cases = [Case(f"{k}", z.contiguous(), y.contiguous()) for k, (z, y) in enumerate(parts)]
        flat = torch.cat([torch.softmax(z.double(), dim=0).flatten(1).T for z, _ in parts])
        return cls(cases, flat.numpy(), torch.cat([y.flatten() for _, y in parts]).numpy())

    @property
    def logits(self) -> Tensor:
        """All cases as a batch."""
        return torch.stack([torch.as_tensor(case.logits) for case in self.cases])

    @property
    def label_maps(self) -> Tensor:
        """Labels of the batch."""
        return torch.stack([torch.as_tensor(case.labels) for case in self.cases]).long()


Apply = Callable[[Tensor], Tensor]
"""From logits `[1, L, H, W]` to calibrated probabilities."""
Fit = tuple[Callable[[], Any], Apply]
"""A function that fits, and the map that it then gives."""

_NO_PENALTY = {"off_diagonal_penalty": 0.0, "bias_penalty": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("matrix", "msc", "dirichlet", "cmsap", "cmsop"), _NO_PENALTY),
    "cts with pairs": {"pairs": True},
    "auto": {"candidates": ["ts", "ets", "classwise", "cts", "cts+classes", "cts+pairs"]},
}
"""Settings of segcal under which it solves the problem of its peers, or that the name of a row stands for."""
METHODS = (
    "ts", "ets", "bts", "ats", "classwise", "cts", "cts with pairs", "auto", "isotonic", "histogram", "beta",
    "vector", "svs", "matrix", "msc", "dirichlet", "cmsop", "cmsap",
)  # fmt: skip
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


def ours(method: str, problem: Problem) -> Fit:
    """segcal, from its stream of cases."""
    calibrator = create(method.split(maxsplit=1)[0], CLASSES, **SETTINGS.get(method, {}))
    return lambda: calibrator.fit(problem.cases), calibrator.predict_proba


def fiducio(optimizer: str, method: str, problem: Problem) -> Fit:
    """Fiducio on all pixels at once: 200 steps of Adam, its default, or its L-BFGS."""
    peer = getattr(import_module("fiducio"), _FIDUCIO[method])(optimizer=optimizer, device="cpu")
    logits, labels = problem.logits, problem.label_maps
    return lambda: peer.fit(logits, labels), peer.transform


def netcal(method: str, problem: Problem) -> Fit:
    """Netcal's logistic calibration is vector scaling where there are more than two classes."""
    peer = getattr(import_module("netcal.scaling"), _NETCAL[method])()
    return lambda: peer.fit(problem.probs, problem.labels), _by_rows(peer.transform)


def sklearn_isotonic(method: str, problem: Problem) -> Fit:
    """All scores of all classes in one regression, then divided by their sum."""
    from sklearn.isotonic import IsotonicRegression

    peer = IsotonicRegression(out_of_bounds="clip")

    def fit() -> None:
        hits = (problem.labels[:, None] == np.arange(CLASSES)).astype(np.float64)
        peer.fit(problem.probs.ravel(), hits.ravel())

    def apply(probs: Array) -> Array:
        # the tie-break of the method's authors
        raised = peer.predict(probs.ravel()).reshape(probs.shape) + 1e-9 * probs
        return raised / raised.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    return fit, _by_rows(apply)


def sklearn_logistic(method: str, problem: Problem) -> Fit:
    """Dirichlet calibration without penalty is multinomial regression on log-probabilities."""
    from sklearn.linear_model import LogisticRegression

    peer = LogisticRegression(C=np.inf, max_iter=1000)
    fit = lambda: peer.fit(np.log(np.maximum(problem.probs, _SMALLEST)), problem.labels)  # noqa: E731
    return fit, _by_rows(lambda probs: peer.predict_proba(np.log(np.maximum(probs, _SMALLEST))))


def scipy_ensemble(method: str, problem: Problem) -> Fit:
    """As the method's authors do it: L-BFGS-B for the temperature, SLSQP for the weights, on all pixels at once."""
    found: dict[str, Any] = {}

    def scaled(values: Array, temperature: float) -> Array:
        raised = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
        return raised / raised.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    def nll(mixed: Array) -> float:
        return float(-np.log(np.maximum(mixed, _SMALLEST)).mean())

    def fit() -> None:
        labels, rows = problem.labels, np.arange(len(problem.labels))
        log_probs = np.log(np.maximum(problem.probs, _SMALLEST))
        one = _minimise(
            lambda t: nll(scaled(log_probs, float(t[0]))[rows, labels]), [1.0], method="L-BFGS-B", bounds=[(0.05, 5.0)]
        )
        found["temperature"] = float(one.x[0])
        tempered = scaled(log_probs, found["temperature"])[rows, labels]
        parts = np.stack([tempered, problem.probs[rows, labels], np.full(len(labels), 1 / CLASSES)])
        found["weights"] = _minimise(
            lambda w: nll(w @ parts),
            [1.0, 0.0, 0.0],
            method="SLSQP",
            bounds=[(0.0, 1.0)] * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            tol=1e-12,
        ).x

    def apply(probs: Array) -> Array:
        first, weights = scaled(np.log(np.maximum(probs, _SMALLEST)), found["temperature"]), found["weights"]
        return weights[0] * first + weights[1] * probs + weights[2] / CLASSES  # type: ignore[no-any-return]

    return fit, _by_rows(apply)


def _by_rows(apply: Callable[[Array], Array]) -> Apply:
    """Return the map of logits for a map of probabilities `[N, L]` in float64."""

    def mapped(logits: Tensor) -> Tensor:
        rows = torch.softmax(logits.double(), dim=1).movedim(1, -1)
        found = np.asarray(apply(rows.reshape(-1, CLASSES).numpy()))
        return torch.from_numpy(found).view(rows.shape).movedim(-1, 1)

    return mapped


Library = Callable[[str, Problem], Fit]
LIBRARIES: dict[str, tuple[str, Sequence[str], Library]] = {
    "segcal": ("segcal", METHODS, ours),
    "fiducio, Adam": ("fiducio", tuple(_FIDUCIO), partial(fiducio, "adam")),
    "fiducio, L-BFGS": ("fiducio", tuple(_FIDUCIO), partial(fiducio, "lbfgs")),
    "netcal": ("netcal", tuple(_NETCAL), netcal),
    "scikit-learn IsotonicRegression": ("sklearn", ("isotonic",), sklearn_isotonic),
    "scikit-learn LogisticRegression": ("sklearn", ("dirichlet",), sklearn_logistic),
    "scipy L-BFGS-B and SLSQP": ("scipy", ("ets",), scipy_ensemble),
}
"""Package, methods and fit of each library."""


def against_peers(chosen: Sequence[str] = (), images: int = IMAGES) -> None:
    """Print the cost of each fit, and the quality of what was found."""
    columns = ("what", "s", "passes over the cases", "times segcal", "MB", "NLL", "ECE, %", "labels moved, %")
    shown = table(f"fit on {images * 360 * 480:,} pixels of {CLASSES} classes", *columns)
    for method in [name for name in METHODS if not chosen or name in chosen]:
        own = dict[str, float]()
        for library, (package, known, _) in LIBRARIES.items():
            if method not in known or not find_spec(package):
                continue
            found = _in_process(library, method, images)
            own = own or found
            title, passes = f"  {library}", ""
            if library == "segcal":
                title, passes = f"segcal {method}", f"{found['passes']:.1f}"
            ratio = f"{found['seconds'] / own['seconds']:.1f}" if passes == "" else ""
            numbers = (f"{found['nll']:.6f}", f"{100 * found['ece']:.3f}", f"{100 * found['moved']:.2f}")
            shown.add_row(title, f"{found['seconds']:.2f}", passes, ratio, f"{found['megabytes']:.0f}", *numbers)
    console.print(shown)


def _in_process(library: str, method: str, images: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.fitting", library, method, "--images", str(images)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{library} {method} failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(library: str, method: str, images: int) -> dict[str, float]:
    """Fit once to compile and load, where that is cheap, then measure a fit."""
    problem, fitted = Problem.of(images), LIBRARIES[library][2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library == "segcal":
            fitted(method, Problem.of(1))[0]()
        with memory_growth() as growth, counted_passes(len(problem.cases)) as passes:
            fit, apply = fitted(method, problem)
            started = perf_counter()
            fit()
            seconds = perf_counter() - started
        quality = _quality(problem, apply)
    return {"seconds": seconds, "passes": passes[0], "megabytes": (growth.peak or 0) / 1e6, **quality}


@contextmanager
def counted_passes(cases: int) -> Iterator[list[float]]:
    """Count how often streams go through all the cases, in the first entry of a list."""
    passes, iterate = [0.0], CaseStream.__iter__

    def counted(stream: CaseStream) -> Iterator[StreamedCase]:
        for case in iterate(stream):
            passes[0] += 1 / cases
            yield case

    with patch.object(CaseStream, "__iter__", counted):
        yield passes


def _quality(problem: Problem, apply: Apply) -> dict[str, float]:
    suite, moved = CalibrationSuite(CLASSES), 0
    with torch.no_grad():
        for logits, labels in zip(problem.logits, problem.label_maps, strict=True):
            probs = apply(logits[None]).double().clamp(min=_SMALLEST)
            suite.update(probs.log(), labels[None])
            moved += int((probs.argmax(dim=1) != logits[None].argmax(dim=1)).sum())
    found = suite.compute()["all"]
    return {"nll": float(found["nll"]), "ece": float(found["ece"]), "moved": moved / problem.labels.size}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=tuple(LIBRARIES))
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--images", type=int, default=IMAGES)
    asked = parser.parse_args()
    print(json.dumps(measure(asked.library, asked.method, asked.images)))
