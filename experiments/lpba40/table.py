"""Tables of everything that is measured: the paper's, means with intervals, and differences from TS and LTS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.beside_paper import lines, markdown
from experiments.lpba40.calibrate import METHODS, PATCHES, REPORT, ROWS, title_of
from experiments.lpba40.network import LOG
from experiments.lpba40.recipes import PRESETS, Job
from segcal.evaluation.results import Results
from segcal.files import read_json, staged_file
from segcal.statistics import bootstrap_interval
from segcal.types import Array, InputError

COLUMNS = (("nll", "all"), ("ece", "all"), ("ece", "boundary"), ("ece", "local-avg"), ("ece", "local-max"))
_REFERENCE, _BASELINES = "LTS", ("TS", "LTS")
_FRAMES = {"frame": ROWS, "patch_frame": PATCHES}


def print_tables(out: Path) -> None:
    """Print every table that the finished work gives, and write them to `tables.md`."""
    text = tables(out)
    with staged_file(out / "tables.md") as file:
        file.write_text(text + "\n", encoding="utf-8")
    print(text)


def tables(out: Path) -> str:
    """Return all tables as Markdown."""
    reports = [read_json(path) | {"folder": path.parent} for path in sorted(out.glob(f"*/fold-*/*/*/{REPORT}"))]
    if not reports:
        raise InputError(f"'{out}' holds nothing measured; run `python -m experiments.lpba40 run` first")
    parts = []
    for preset in PRESETS:
        for small in (False, True):
            own = [r for r in reports if (r["job"]["preset"], r["job"]["small"]) == (preset, small)]
            if own:
                parts += _of_preset(out, own)
    return "\n\n".join(parts)


def _of_preset(out: Path, reports: Sequence[Mapping[str, Any]]) -> list[str]:
    jobs = sorted({Job(**report["job"]) for report in reports}, key=lambda job: job.seed)
    found = {job: _results([report for report in reports if report["job"]["seed"] == job.seed]) for job in jobs}
    parts = []
    for job, results in found.items():
        count = results.frame["case"].nunique()
        size = results.settings["patch_size"]
        parts.append(f"## {job.name}: {count} volumes, Local patches of {size}")
        parts.append(_networks(out, job))
        experiment = "lpba40" if job.preset == "lpba40" else None
        parts.append(markdown(results, reference=_REFERENCE, experiment=experiment))
        parts += [_intervals(results), *_differences(results)]
        parts.append(_costs([report for report in reports if report["job"]["seed"] == job.seed]))
    return [*parts, *_over_seeds(found)]


def _results(reports: Sequence[Mapping[str, Any]]) -> Results:
    """Join the calibration folds of a job; methods that were not measured on all of its volumes are left out."""
    frames = {
        attribute: pd.concat(
            [pd.read_csv(report["folder"] / name, dtype={"case": str, "origin": str}) for report in reports],
            ignore_index=True,
        )
        for attribute, name in _FRAMES.items()
    }
    counts = frames["frame"].groupby("method")["case"].nunique()
    done = set(counts[counts == counts.max()].index)
    named = dict.fromkeys(title_of(method) for method in (*METHODS, *(report["method"] for report in reports)))
    kept = [title for title in named if title in done]
    whole = {name: frame[frame["method"].isin(kept)] for name, frame in frames.items()}
    settings = {"methods": kept, "patch_size": reports[0]["patch_size"], "repetitions": 1000, "seed": 0}
    return Results(whole["frame"], whole["patch_frame"], pd.DataFrame(), settings)


def _networks(out: Path, job: Job) -> str:
    logs = [read_json(path) for path in sorted((out / job.name).glob(f"fold-*/{LOG}"))]
    texts = [
        f"Dice {log['dice']:.3f} on {len(log['split']['validation'])} validation volumes, trained on "
        f"{len(log['split']['fit'])} in {log['seconds']:.0f} s (epoch {log['best_epoch']} of {len(log['epochs'])}) "
        f"with {log['device']}"
        for log in logs
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
    def mean(weights: Array) -> Array:
        found: Array = weights @ gaps / weights.sum(axis=1)
        return found

    interval = bootstrap_interval(mean, len(gaps))
    middle, low, high = _scaled([float(np.mean(gaps)), *interval], metric, sign="+")
    return f"{middle} [{low}, {high}]"


def _costs(reports: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of each fit, labels changed, and what `auto` chose."""
    rows = []
    for method in dict.fromkeys((*METHODS, *(report["method"] for report in reports))):
        own = [report for report in reports if report["method"] == method]
        if not own:
            continue
        seconds = np.mean([report["seconds"]["fit"] for report in own])
        changed, voxels = np.sum([report["changed"] for report in own], axis=0)
        details = [(report["report"] or {}).get("details", {}) for report in own]
        chosen = ", ".join(str(each["chosen"]) for each in details if "chosen" in each)
        share = f"{changed:,} of {voxels:,}" if voxels else "-"
        rows.append([title_of(method), f"{seconds:.1f}", share, chosen or "-"])
    return lines(["Method", "fit, s", "labels changed", "chosen"], rows)


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
    name = next(iter(found)).preset
    return [f"## {name}: seeds {seeds}", lines(["Method", *(_title(*column) for column in COLUMNS)], rows)]


def _scaled(values: Iterable[float], metric: str, *, sign: str = "-") -> list[str]:
    """Return NLL in nats, and everything else in percent, as text."""
    factor, digits = (1, 4) if metric == "nll" else (100, 2)
    return [f"{factor * value:{sign}.{digits}f}" for value in values]


def _title(metric: str, region: str) -> str:
    return f"{metric.upper()}{'' if metric == 'nll' else '(%)'} {region}"
