"""Tables of everything that is measured: the paper's, means with intervals, and differences from TS and LTS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from experiments.beside_paper import lines, markdown, mean_with_interval
from experiments.lpba40.calibrate import METHODS, title_of
from experiments.lpba40.gathered import Measured
from experiments.lpba40.recipes import Job
from segcal.evaluation.protocol import PatchRule
from segcal.evaluation.results import Results
from segcal.statistics import Test
from segcal.types import Array

COLUMNS = (("nll", "all"), ("ece", "all"), ("ece", "boundary"), ("ece", "local-avg"), ("ece", "local-max"))
_REFERENCE, _BASELINES = "LTS", ("TS", "LTS")


def tables(measured: Sequence[Measured], test: Test = "wilcoxon") -> str:
    """Return all tables as Markdown."""
    parts = []
    for _, group in groupby(measured, key=lambda one: (one.job.preset, one.job.small)):
        parts += _of_preset(list(group), test)
    return "\n\n".join(parts)


def _of_preset(measured: Sequence[Measured], test: Test) -> list[str]:
    found = {one.job: _results(one, "labelled") for one in measured}
    parts = _over_seeds(found)
    for one in measured:
        results = found[one.job]
        count = results.frame["case"].nunique()
        size = results.settings["patch_size"]
        parts.append(f"## {_name(one.job)}, seed {one.job.seed}: {count} volumes, Local patches of {size}")
        parts.append(_networks(one))
        experiment = "lpba40" if one.job.preset == "lpba40" else None
        parts.append(markdown(results, reference=_REFERENCE, experiment=experiment, test=test))
        parts += [_intervals(results), *_differences(results)]
        if "paper" in one.rows:
            own = markdown(_results(one, "paper"), reference=None, metrics=("ece",), quality=False, test=test)
            parts += ["With every Local patch, as in the paper:", own]
        parts.append(_costs(one.fits))
    return parts


def _name(job: Job) -> str:
    return f"{job.preset}{' (small)' * job.small}"


def _results(measured: Measured, rule: PatchRule) -> Results:
    """Join the calibration folds of a job."""
    rows, patches = measured.rows[rule]
    done = set(rows["method"])
    named = dict.fromkeys(title_of(method) for method in (*METHODS, *(fit["method"] for fit in measured.fits)))
    kept = [title for title in named if title in done]
    settings = {"methods": kept, "patch_size": measured.fits[0]["patch_size"], "repetitions": 1000, "seed": 0}
    cases, none = pd.DataFrame({"case": rows["case"].unique(), "group": ""}), pd.DataFrame()
    return Results(
        rows, patches, none, settings, case_frame=cases, curve_frame=none, sensitivity_frame=none, volume_frame=none
    )


def _networks(measured: Measured) -> str:
    texts = [
        f"Dice {network['dice']:.3f} on {network['validation']} validation volumes, trained on {network['fit']} in "
        f"{network['seconds']:.0f} s (epoch {network['best_epoch']} of {network['epochs']}) with {network['device']}"
        for network in measured.networks
    ]
    return "Networks: " + "; ".join(texts) + "."


def _intervals(results: Results) -> str:
    """Means with 95 % intervals of a bootstrap over volumes."""
    summary = results.summary().set_index(["method", "metric", "region"])
    found = {name: summary[name].to_dict() for name in ("mean", "low", "high")}
    rows = []
    for method in results.methods:
        cells = [_scaled([values[method, *c] for values in found.values()], c[0]) for c in COLUMNS]
        rows.append([method, *(f"{mean} [{low}, {high}]" for mean, low, high in cells)])
    return lines(["Mean [95 % interval]", *(_title(*column) for column in COLUMNS)], rows)


def _differences(results: Results) -> list[str]:
    """Each method minus TS and minus LTS on the same volumes: mean and 95 % interval."""
    frame = results.frame.set_index(["method", "metric", "region", "case"])["value"].sort_index()
    parts = []
    for baseline in _BASELINES:
        if baseline not in results.methods:
            continue
        rows = []
        for method in results.methods:
            if method in ("UC", baseline):
                continue
            gaps = [(frame[method, *c] - frame[baseline, *c]).dropna().to_numpy(float) for c in COLUMNS]
            rows.append([method, *(_gap(gap, column[0]) for gap, column in zip(gaps, COLUMNS, strict=True))])
        parts.append(lines([f"Minus {baseline}", *(_title(*column) for column in COLUMNS)], rows))
    return parts


def _gap(gaps: Array, metric: str) -> str:
    return "{} [{}, {}]".format(*_scaled(mean_with_interval(gaps), metric, sign="+"))


def _costs(fits: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of each fit, labels changed, what `auto` chose and how much of its tree a trained method kept."""
    rows = []
    for method in dict.fromkeys((*METHODS, *(fit["method"] for fit in fits))):
        own = [fit for fit in fits if fit["method"] == method]
        if not own:
            continue
        seconds = np.mean([fit["seconds"] for fit in own])
        changed, voxels = np.sum([fit["changed"] for fit in own], axis=0)
        chosen = ", ".join(_choice(fit) for fit in own if {"chosen", "share"} & set(fit))
        share = f"{changed:,} of {voxels:,}" if voxels else "-"
        rows.append([title_of(method), f"{seconds:.1f}", share, chosen or "-"])
    return lines(["Method", "fit, s", "labels changed", "chosen, or share of the tree kept"], rows)


def _choice(fit: Mapping[str, Any]) -> str:
    return str(fit["chosen"]) if "chosen" in fit else f"{fit['share']:g}"


def _over_seeds(found: Mapping[Job, Results]) -> list[str]:
    """The mean of each seed beside each other: methods that differ less than the seeds do are not told apart."""
    if len(found) < 2:
        return []
    seeds = " / ".join(str(job.seed) for job in found)
    methods = [name for name in next(iter(found.values())).methods if all(name in r.methods for r in found.values())]
    means = [
        results.summary().set_index(["method", "metric", "region"])["mean"].to_dict() for results in found.values()
    ]
    rows = []
    for method in methods:
        cells = [" / ".join(_scaled([mean[method, *c] for mean in means], c[0])) for c in COLUMNS]
        rows.append([method, *cells])
    return [
        f"## {_name(next(iter(found)))}: seeds {seeds}",
        lines(["Method", *(_title(*column) for column in COLUMNS)], rows),
    ]


def _scaled(values: Iterable[float], metric: str, *, sign: str = "-") -> list[str]:
    """Return NLL in nats, and everything else in percent, as text."""
    factor, digits = (1, 4) if metric == "nll" else (100, 2)
    return [f"{factor * value:{sign}.{digits}f}" for value in values]


def _title(metric: str, region: str) -> str:
    return f"{metric.upper()}{'' if metric == 'nll' else '(%)'} {region}"
