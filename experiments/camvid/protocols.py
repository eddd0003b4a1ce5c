"""Fits of each protocol, on frames of `val` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from experiments.beyond.methods import Training, method_named
from experiments.camvid.jobs import Job, Recipe
from experiments.camvid.network import names_of, read_logits
from experiments.datasets.camvid import BLOCKS, CLASSES, VOID, CamVid, Split, calibration_split, time_groups
from experiments.fitting import NAMES, fit_methods, floored
from segcal.calibrators import Calibrator, LocalTemperatureScaling, TemperatureScaling
from segcal.calibrators.local import Preset
from segcal.types import Case

Protocol = Literal["paper", "schedule", "beyond"]
_OF_JOINT, _TRAINED = ("ts", "lts"), ("ts", "ibts", "lts")
_PAPER_EPOCHS = 100
_RATES: Mapping[Preset, Sequence[float | None]] = {"default": (1e-4, 1e-3), "paper": (None,)}
"""Learning rates of IBTS and LTS, chosen on the validation frames; the paper prints its own."""
_CONTEXTUAL = ("TS by class", "CTS", "CTS with classes")
_ABOUT = {"num_classes": len(CLASSES), "ignore_index": VOID}


@dataclass(frozen=True)
class Source:
    """The cases of a job: each frame with the logits that the job's network gave."""

    job: Job
    data: CamVid
    out: Path
    device: str

    def stream(self, split: Split, names: Sequence[str]) -> Iterator[Case]:
        """Cases one at a time, on the CPU; blocks of time are groups, since neighbouring frames are nearly equal."""
        groups = time_groups(self.data.names(split), BLOCKS)
        for name in names:
            case = self.data.read(split, name).case(read_logits(self.job, self.out, split, name))
            yield replace(case, group=groups[name])


def fit_with_validation(
    source: Source, recipe: Recipe, timings: dict[str, float], notes: dict[str, Any], *, preset: Preset
) -> dict[str, Calibrator]:
    """Methods on 90 frames, with 11 others to choose the epoch of those that are trained; LTS with a floor below too.

    In segcal's form all methods of the table; in the paper's (100 epochs at 1e-5, then 1e-6) those that are trained.
    """
    paper = preset == "paper"
    all_of = _OF_JOINT if source.job.loss != "ce" else _TRAINED if paper else tuple(NAMES)
    wanted = [name for name in all_of if name in (*_OF_JOINT, *recipe.methods)]
    epochs = min(_PAPER_EPOCHS, recipe.calibrator_epochs) if paper else recipe.calibrator_epochs
    fit_names, check_names = calibration_split(names_of(source.data, "val", recipe), recipe.validation_frames)
    notes |= {"fit": list(fit_names), "validation": list(check_names)}
    cases = list(source.stream("val", fit_names))
    fitted = fit_methods(
        wanted,
        cases,
        list(source.stream("val", check_names)),
        about={**_ABOUT, "spatial_dims": 2, "image_channels": 3},
        training={"epochs": epochs, "seed": source.job.seed},
        rates=_RATES[preset],
        preset=preset,
        device=source.device,
        timings=timings,
    )
    one, local = fitted["TS"], fitted["LTS"]
    assert isinstance(one, TemperatureScaling)
    assert isinstance(local, LocalTemperatureScaling)
    return {**fitted, "LTS floored": floored(local, one, cases)}


def fit_beyond(
    source: Source, recipe: Recipe, timings: dict[str, float], notes: dict[str, Any]
) -> dict[str, Calibrator]:
    """Contextual temperature scaling on all frames, which chooses its strengths by blocks of time left out."""
    groups = time_groups(names_of(source.data, "val", recipe), recipe.folds)
    cases = [replace(case, group=groups[case.name]) for case in source.stream("val", list(groups))]
    notes |= {"fit": list(groups)}
    fitted = dict[str, Calibrator]()
    for name in _CONTEXTUAL:
        started, fit = perf_counter(), method_named(name)
        assert fit is not None
        fitted[name], _ = fit(cases, _ABOUT, Training(device=source.device))
        timings[f"fit {name}"] = perf_counter() - started
    return fitted


FITS: dict[Protocol, Callable[[Source, Recipe, dict[str, float], dict[str, Any]], dict[str, Calibrator]]] = {
    "paper": partial(fit_with_validation, preset="default"),
    "schedule": partial(fit_with_validation, preset="paper"),
    "beyond": fit_beyond,
}
PROTOCOLS = tuple(FITS)
