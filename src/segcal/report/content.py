"""Results and portraits as the plain values that the page is drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from segcal.evaluation.portraits import LEVELS, NOTHING, Portrait
from segcal.evaluation.results import Results
from segcal.functional.catalogue import CALIBRATION, CATALOGUE, HIGHER_IS_BETTER, METRICS, QUALITY
from segcal.regions import region_title
from segcal.report.explanations import choices, influences
from segcal.report.pictures import portrait_content
from segcal.report.words import best_method, headline

_WORST_PATCHES = 50
_DIGITS = 5
_BINS = (5, 10, 15, 20, 25, 30, 40, 50, 75, 100)

DEFINITIONS = (
    ("Confidence", "the largest probability of a pixel; its class is the prediction"),
    ("ECE", "mean gap of confidence and accuracy over bins of equal width, weighted by their pixels"),
    ("MCE", "the largest gap of a bin that holds pixels"),
    ("SCE, ACE", "the gaps of each predicted class apart; ACE with bins that hold equal shares of the pixels"),
    ("NLL, entropy", "mean of -log p(true class), and mean entropy of the probabilities, in nats"),
    ("All", "labelled pixels outside the background, united with Boundary"),
    ("Boundary", "pixels whose label differs from that of a neighbour up to the given width away"),
    ("Local-Avg, Local-Max", "the mean patch and the worst patch of an image, of those that hold pixels of All"),
    ("Ignored", "pixels that belong to no region; regions and patches without pixels are left out and counted"),
)


def page_content(results: Results, portraits: Sequence[Portrait] = ()) -> dict[str, Any]:
    """Everything that the page shows; numbers have five digits, and what is missing is None."""
    frame = results.to_frame()
    cases = results.cases()["case"].tolist()
    regions = list(dict.fromkeys(frame["region"]))
    names = [str(name) for name in results.settings.get("class_names") or range(results.settings["num_classes"])]
    return {
        "headline": headline(results),
        "facts": _facts(results, len(cases)),
        "warnings": list(results.settings["warnings"]),
        "methods": list(results.methods),
        "baseline": results.baseline,
        "best": best_method(results),
        "units": _units(results),
        "cases": cases,
        "classes": names,
        "regions": regions,
        "region_names": {region: region_title(region) for region in regions},
        "metrics": _metrics(frame),
        "calibration": [metric for metric in CALIBRATION if metric in set(frame["metric"])],
        "quality": [metric for metric in QUALITY if metric in set(frame["metric"])],
        "values": _values(frame, cases),
        "floor": None if results.redrawn is None else _values(results.floor(), cases),
        "pooled": _pooled(results),
        "pooled_floor": {} if results.redrawn is None else _pooled_ece(results.redrawn),
        "table": _table(results),
        "means": _means(results),
        "curves": _curves(results),
        "bins": _bins(results),
        "volumes": _volumes(results),
        "patches": _patches(results),
        "sizes": _sizes(results),
        "choices": choices(results),
        "influences": influences(results, names),
        "portraits": [portrait_content(portrait, names) for portrait in portraits],
        "levels": LEVELS,
        "nothing": NOTHING,
        "definitions": DEFINITIONS,
        "settings": _settings(results),
        "footer": f"Made with segcal {results.settings.get('segcal', '')}. One file, nothing is loaded from elsewhere.",
    }


def _metrics(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    present = set(frame["metric"])
    return {
        metric: {
            "title": CATALOGUE[metric].title,
            "percent": CATALOGUE[metric].unit == "%",
            "higher": metric in HIGHER_IS_BETTER,
        }
        for metric in METRICS
        if metric in present
    }


def _values(frame: pd.DataFrame, cases: Sequence[str]) -> dict[str, dict[str, dict[str, list[float | None]]]]:
    """Method -> region -> metric -> a value for each case, in their order."""
    found: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    place = {case: k for k, case in enumerate(cases)}
    for (method, region, metric), rows in frame.groupby(["method", "region", "metric"], sort=False):
        values: list[float | None] = [None] * len(cases)
        for case, value in zip(rows["case"], rows["value"], strict=True):
            values[place[case]] = _short(value)
        found.setdefault(str(method), {}).setdefault(str(region), {})[str(metric)] = values
    return found


def _pooled(results: Results) -> dict[str, dict[str, dict[str, list[float | None]]]]:
    found: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for row in results.pooled().itertuples():
        entry = found.setdefault(str(row.method), {}).setdefault(str(row.region), {})
        entry[str(row.metric)] = [_short(row.value), _short(row.low), _short(row.high)]
    return found


def _pooled_ece(results: Results) -> dict[str, dict[str, float | None]]:
    return {
        method: {region: metrics["ece"][0] for region, metrics in regions.items()}
        for method, regions in _pooled(results).items()
    }


def _table(results: Results) -> dict[str, dict[str, dict[str, list[Any]]]]:
    """Mean, std, best, and whether the best method is significantly better; the last two in the paper's regions."""
    found: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for row in results.summary().itertuples():
        entry = found.setdefault(str(row.method), {}).setdefault(str(row.region), {})
        entry[str(row.metric)] = [_short(row.mean), _short(row.std), False, False]
    for (method, metric, region), cell in results.table(reference=best_method(results), test="wilcoxon").cells.items():
        found[method][region][metric] = [_short(cell.mean), _short(cell.std), cell.best, cell.beaten]
    return found


def _curves(results: Results) -> dict[str, dict[str, dict[str, list[list[float | None]]]]]:
    """Method -> region -> predicted class ("" for all pixels) -> bins."""
    found: dict[str, dict[str, dict[str, list[list[float | None]]]]] = {}
    if results.curve_frame is None:
        return found
    for row in results.curves().itertuples():
        bins = found.setdefault(str(row.method), {}).setdefault(str(row.region), {}).setdefault(str(row.label), [])
        bins.append([int(row.count), int(row.hit), round(float(row.confidence), 2), _short(row.low), _short(row.high)])  # type: ignore[arg-type, call-overload]
    return found


def _means(results: Results) -> dict[str, dict[str, list[float | None]]]:
    """Method -> region -> mean ECE over images and its interval."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for row in results.summary().itertuples():
        if row.metric == "ece":
            found.setdefault(str(row.method), {})[str(row.region)] = [
                _short(row.mean),
                _short(row.low),
                _short(row.high),
            ]
    return found


def _bins(results: Results) -> dict[str, list[list[float | None]]] | None:
    """Method -> [number of bins, pooled ECE in *All*]."""
    if results.sensitivity_frame is None:
        return None
    rows = results.sensitivity()
    rows = rows[(rows.region == "all") & rows.bins.isin(_BINS)]
    return {
        method: [[int(bins), _short(ece)] for bins, ece in zip(own["bins"], own["ece"], strict=True)]
        for method in results.methods
        for own in [rows[rows.method == method]]
    }


def _volumes(results: Results) -> dict[str, dict[str, list[float | None]]] | None:
    """Class -> method -> how far the expected volume is off, with its interval."""
    if results.volume_frame is None:
        return None
    found: dict[str, dict[str, list[float | None]]] = {}
    for row in results.volume_bias().itertuples():
        found.setdefault(str(row.label), {})[str(row.method)] = [_short(row.bias), _short(row.low), _short(row.high)]
    return found


def _patches(results: Results) -> list[dict[str, Any]]:
    """The patches with the largest ECE of the baseline, with that of every method."""
    patches = results.patches()
    if not len(patches):
        return []
    rows = patches[patches.metric == "ece"]
    wide = rows.pivot_table(index=["case", "patch", "origin"], columns="method", values="value", sort=False)
    if results.baseline not in wide:
        return []
    worst = wide.sort_values(results.baseline, ascending=False, kind="stable").head(_WORST_PATCHES)
    return [
        {
            "case": str(row["case"]),
            "patch": int(row["patch"]),
            "origin": str(row["origin"]),
            "values": [_short(row.get(method, math.nan)) for method in results.methods],
        }
        for row in worst.reset_index().to_dict(orient="records")
    ]


def _sizes(results: Results) -> dict[str, dict[str, dict[str, list[list[float | None]]]]] | None:
    """Region -> metric -> method -> [size, mean over images]."""
    if results.size_frame is None:
        return None
    found: dict[str, dict[str, dict[str, list[list[float | None]]]]] = {}
    means = results.patch_sizes().groupby(["region", "metric", "method", "size"], sort=False)["value"].mean()
    for row in means.reset_index().sort_values("size", kind="stable").to_dict(orient="records"):
        points = found.setdefault(row["region"], {}).setdefault(row["metric"], {}).setdefault(row["method"], [])
        points.append([row["size"], _short(row["value"])])
    return found


def _facts(results: Results, images: int) -> list[str]:
    pooled = results.pooled()
    rows = pooled[(pooled.region == "all") & (pooled.method == results.baseline)]
    pixels = f"{int(rows['pixels'].iloc[0]):,} pixels in All" if len(rows) else ""
    count = results.settings["num_classes"]
    facts = [f"{images} images" if images > 1 else "1 image", pixels, f"{count} classes", " · ".join(results.methods)]
    return [fact for fact in facts if fact]


def _units(results: Results) -> str:
    grouped = (results.cases()["group"] != "").any()
    return "images, those of a group together" if grouped else "images"


def _settings(results: Results) -> list[tuple[str, str]]:
    settings = results.settings
    skipped = ", ".join(f"{count} in {region_title(name)}" for name, count in results.skipped().items() if count)
    entries = [
        ("Bins", settings.get("bins")),
        ("Form of SCE and ACE", settings.get("form")),
        ("Edges of ACE from", settings.get("ace_edges")),
        ("Ignored labels", ", ".join(map(str, settings.get("ignore_index") or [])) or "none"),
        ("Background", "none" if settings.get("background") is None else settings["background"]),
        ("Boundary width", settings.get("boundary_width")),
        ("Patches", f"{settings.get('patches')} of {settings.get('patch_size')} pixels a side in each image"),
        ("Seed", settings.get("seed")),
        ("Bootstrap", f"{settings.get('repetitions')} repetitions over {_units(results)}, {settings.get('interval')}"),
        ("Left out for want of pixels", skipped or "nothing"),
        ("segcal", settings.get("segcal")),
        *settings.get("versions", {}).items(),
    ]
    return [(name, str(value)) for name, value in entries if value is not None]


def _short(value: Any) -> float | None:
    number = float(value)
    return None if not np.isfinite(number) else float(f"{number:.{_DIGITS}g}")
