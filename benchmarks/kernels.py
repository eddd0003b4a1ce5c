"""Every CPU kernel against its plain form, end to end: a kernel stays if it pays.

Each workload (fitting, applying, measuring, training) runs with all kernels, and with one of its kernels at a
time replaced by the plain form. A kernel pays if some workload takes at least 1.3 times as long without it. Times are
CPU times on one thread, the shortest of several runs, which other work on the machine disturbs least.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from time import process_time
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.timing import console, scene, table
from segcal import CalibrationSuite, Case, create, evaluate
from segcal.calibrators import Calibrator
from segcal.kernels.dispatch import DECLINED, OPERATIONS

WANTED = 1.3
FITTED = ("ts", "cts", "lts", "vector", "dirichlet", "isotonic", "beta", "ets", "bts", "ats", "cmsop")
APPLIED = ("ts", "cts", "lts", "dirichlet", "isotonic", "beta", "ets")
SOME = ("ts", "cts", "lts")
EPOCHS = 10
IMAGES = 2
_MOST_SECONDS = 4.0  # of the runs of one workload

Workload = Callable[[], object]


def paying() -> None:
    """Print the workload that needs each kernel most, and how many times as long it takes without the kernel."""
    torch.set_num_threads(1)
    ratios = {key: dict[str, float]() for key in _kernels()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, work in {**_workloads(11, (360, 480), FITTED, APPLIED), **_more()}.items():
            _measure(name, work, ratios)
    shown = table("CPU time without the kernel, as a multiple of that with it", "kernel", "workload", "ratio", "pays")
    for key, own in sorted(ratios.items()):
        name = max(own, key=own.__getitem__, default="")
        ratio = own.get(name, 1.0)
        shown.add_row(key, name, f"{ratio:.2f}", "yes" if ratio >= WANTED else "no")
    console.print(shown)


def _workloads(
    classes: int, size: tuple[int, ...], fits: Sequence[str], applications: Sequence[str]
) -> dict[str, Workload]:
    """Return what is timed on images of one shape, by name."""
    logits, labels = scene(classes, size, batch=IMAGES)
    cases = [Case(f"{k}", logits[k], labels[k]) for k in range(IMAGES)]
    shape = f"{classes} x {' x '.join(map(str, size))}"
    found: dict[str, Workload] = {f"fit {method}, {shape}": partial(_fitted, method, cases) for method in fits}
    for method in applications:
        calibrator = _fitted(method, cases[:1], epochs=1)
        for dtype in (torch.float32, torch.float16):
            precision = "" if dtype == torch.float32 else ", float16"
            found[f"apply {method}, {shape}{precision}"] = partial(calibrator.predict_proba, logits[:1].to(dtype))
            found[f"logits of {method}, {shape}{precision}"] = partial(calibrator, logits[:1].to(dtype))
    methods = {"UC": None, "TS": _fitted("ts", cases)}
    found[f"evaluate, {shape}"] = partial(evaluate, cases, methods, num_classes=classes, repetitions=10)
    found[f"suite, {shape}"] = partial(CalibrationSuite(classes).update, logits, labels)
    return found


def _more() -> dict[str, Workload]:
    """Return workloads of more classes and of volumes."""
    found = {**_workloads(21, (384, 384), SOME, SOME), **_workloads(3, (48, 48, 48), SOME, SOME)}
    return {**found, **_workloads(57, (32, 32, 32), ("lts",), ())}


def _fitted(method: str, cases: Sequence[Case], epochs: int = EPOCHS) -> Calibrator:
    classes, dims = len(torch.as_tensor(cases[0].logits)), torch.as_tensor(cases[0].labels).ndim
    spatial: dict[str, Any] = {"spatial_dims": dims} if method in ("cts", "lts") else {}
    training: dict[str, Any] = {"epochs": epochs} if method == "lts" else {}
    return create(method, classes, **spatial).fit(cases, **training)


def _kernels() -> dict[str, tuple[ModuleType, str]]:
    """Return the module and the name of every CPU kernel, by operation."""
    with_kernel = {key: operation for key, operation in OPERATIONS.items() if operation.kernel("cpu") is not None}
    return {
        key: (import_module(f"segcal.kernels.cpu.{operation.module}"), operation.name)
        for key, operation in with_kernel.items()
    }


def _measure(name: str, work: Workload, ratios: dict[str, dict[str, float]]) -> None:
    """Add the ratio of a workload for each kernel that it calls."""
    called = _called(work)
    whole = _seconds(work)
    for key in called:
        module, function = _kernels()[key]
        with patch.object(module, function, lambda *_, **__: DECLINED):
            ratios[key][name] = _seconds(work) / whole


def _called(work: Workload) -> set[str]:
    """Return the operations whose kernels a workload calls."""
    called = set[str]()

    def recording(key: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            called.add(key)
            return kernel(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for key, (module, function) in _kernels().items():
            stack.enter_context(patch.object(module, function, recording(key, getattr(module, function))))
        work()
    return called


def _seconds(work: Workload) -> float:
    """Return the least CPU time of some runs."""
    times = list[float]()
    while len(times) < 5 and sum(times) < _MOST_SECONDS:
        start = process_time()
        work()
        times.append(process_time() - start)
    return min(times)
