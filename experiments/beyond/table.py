"""Tables of all that is measured: every metric, paired differences with intervals, and how many images are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.beside_paper import lines
from experiments.beyond.measure import finished
from experiments.beyond.methods import METHODS
from segcal.statistics import bootstrap_interval, clusters_of
from segcal.tables import CALIBRATION, REGIONS
from segcal.types import Array, InputError

MEASURED = Path(__file__).with_name("measured.csv.xz")
"""The published measurements, an archive of `experiments.rows`."""
COLUMNS = [("nll", "all"), ("brier", "all"), *((metric, region) for metric in CALIBRATION for region in REGIONS)]
"""Metrics and regions of the tables."""
_OVER_PIXELS = ("nll", "brier")
_COMPARED = (
    ("nll", "all"),
    ("brier", "all"),
    ("ece", "all"),
    ("ece", "boundary"),
    ("ece", "local-max"),
    ("sce", "all"),
)
_REPETITIONS = 2000
_TITLES = {
    "camvid, 0001TP": "`val` to 0001TP",
    "camvid, Seq05VD": "`val` to Seq05VD",
    "camvid-0001TP": "within 0001TP",
    "camvid-Seq05VD": "within Seq05VD",
    "voc": "VOC",
}
_NAMES = {"nll": "NLL", "brier": "Brier score", "ece": "ECE", "sce": "SCE"}


def gathered(out: Path) -> pd.DataFrame:
    """One row per part of the data, split, number of images, method, case, region and metric."""
    frames = []
    for item, report, results in finished(out):
        groups = results.cases().set_index("case")["group"]
        frame = results.to_frame().assign(split=item.number, images=item.images, method=item.method)
        own = frame.assign(part=frame["case"].map(report["parts"]), group=frame["case"].map(groups))
        frames.append(own.assign(changed=report["changed"][0], seconds=report["seconds"]))
    if not frames:
        raise InputError(f"'{out}' holds nothing measured; run `python -m experiments.beyond run` first")
    return pd.concat(frames, ignore_index=True)


def tables(rows: pd.DataFrame) -> str:
    """All tables as Markdown; all images of a split are the most that it was fitted on."""
    parts = _summary(rows)
    for part, own in rows.groupby("part", sort=True):
        whole = own["images"] == own.groupby("split")["images"].transform("max")
        most = own[whole]
        splits, cases = most["split"].nunique(), most.groupby("split")["case"].nunique()
        title, many = _TITLES.get(str(part), str(part)), "1 split" if splits == 1 else f"up to {splits} splits"
        counts = f"{_span(most['images'])} images to fit on, {_span(cases)} to measure, {many}."
        parts += [
            f"## {title}",
            counts,
            *_metrics(most),
            *_differences(most),
            *_by_size(own.assign(size=own["images"].mask(whole))),
        ]
    return "\n\n".join(parts)


def _summary(rows: pd.DataFrame) -> list[str]:
    """NLL, Brier score and ECE of each method against TS with all images of a split, one column for each task."""
    most = rows[rows["images"] == rows.groupby(["part", "split"])["images"].transform("max")]
    tasks = {str(part): own for part, own in most.groupby("part", sort=True) if "TS" in set(own["method"])}
    if len(tasks) < 2:
        return []
    methods = [method for method in _in_order(most) if method != "TS"]
    measured = {task: set(own["method"]) for task, own in tasks.items()}
    everywhere = [method for method in methods if all(method in found for found in measured.values())]
    others = [method for method in methods if method not in everywhere]
    parts = ["## Every method against TS", *_against_ts(tasks, everywhere)]
    shared = {task: own for task, own in tasks.items() if measured[task] >= set(others)}
    if others and shared:
        parts += ["## Methods that were not measured on every task", *_against_ts(shared, others)]
    return parts


def _against_ts(tasks: Mapping[str, pd.DataFrame], methods: Sequence[str]) -> list[str]:
    titles, parts = [_TITLES.get(task, task) for task in tasks], []
    for metric, region in _COMPARED[:4]:
        compared = [_of_columns(own)[metric, region] for own in tasks.values()]
        body = [[method, *(difference(own, method, "TS", metric, region) for own in compared)] for method in methods]
        parts.append(lines([f"{_NAMES[metric]}, {region}, % of TS", *titles], body))
    return parts


def _metrics(rows: pd.DataFrame) -> list[str]:
    """Every metric in every region: means over the splits that a method was measured on; the best in bold."""
    methods = _in_order(rows)
    found = {method: [frame for _, frame in rows[rows["method"] == method].groupby("split")] for method in methods}
    columns_of = _of_columns(rows)

    def column(metric: str, region: str, factor: float, digits: int) -> list[str]:
        splits = columns_of[metric, region].groupby(["method", "split"])
        means = {key: mean_value(frame, metric, region) for key, frame in splits}
        values = [factor * np.mean([mean for key, mean in means.items() if key[0] == method]) for method in methods]
        cells = [f"{value:.{digits}f}" for value in values]
        return [f"**{cell}**" if cell == min(cells, key=float) else cell for cell in cells]

    columns = [
        [str(len(found[method])) for method in methods],
        *(column(metric, "all", 1, 4) for metric in _OVER_PIXELS),
        [f"{max(frame['changed'].max() for frame in found[method]):,}" for method in methods],
        [f"{np.mean([frame['seconds'].max() for frame in found[method]]):.1f}" for method in methods],
    ]
    parts = [_beside(["Method", "splits", "NLL", "Brier", "labels changed", "fit, s"], methods, columns)]
    for metric in CALIBRATION:
        columns = [column(metric, region, 100, 2) for region in REGIONS]
        parts.append(_beside([f"{metric.upper()}(%)", *REGIONS], methods, columns))
    return parts


def _of_columns(rows: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    """Return the rows of each metric and region."""
    return dict(iter(rows.groupby(["metric", "region"], sort=False)))


def _beside(header: list[str], methods: list[str], columns: list[list[str]]) -> str:
    return lines(header, [list(row) for row in zip(methods, *columns, strict=True)])


def _differences(rows: pd.DataFrame) -> list[str]:
    """Each method against TS and LTS on the same images: mean over the splits, 95 % interval, splits that are lower."""
    parts, columns = [], _of_columns(rows)
    for reference in ("TS", "LTS"):
        if reference not in set(rows["method"]):
            continue
        body = []
        for method in _in_order(rows):
            if method in ("UC", reference):
                continue
            body.append([method, *(difference(columns[column], method, reference, *column) for column in _COMPARED)])
        titles = [f"{_NAMES[metric]}, {region}" for metric, region in _COMPARED]
        parts.append(lines([f"minus {reference}, % of it", *titles], body))
    return parts


def difference(rows: pd.DataFrame, method: str, reference: str, metric: str, region: str) -> str:
    """Relative change with its interval, from a bootstrap over groups that are in the test part of any split."""
    own = rows[(rows["metric"] == metric) & (rows["region"] == region) & rows["value"].notna()]
    keys = ["split", "case", "group"]
    pairs = own[own["method"] == method].merge(own[own["method"] == reference], on=keys, suffixes=("", "_base"))
    if pairs.empty:
        return ""
    weight = pairs["pixels"].to_numpy(float) if metric in _OVER_PIXELS else np.ones(len(pairs))
    ours, base = (weight * pairs[name].to_numpy(float) for name in ("value", "value_base"))
    names = [group or case for case, group in zip(pairs["case"], pairs["group"], strict=True)]

    def change(drawn: Array) -> Array:
        found: Array = 100 * ((drawn @ ours) / (drawn @ base) - 1)
        return found

    low, high = bootstrap_interval(change, len(pairs), repetitions=_REPETITIONS, clusters=clusters_of(names))
    value = float(change(np.ones((1, len(pairs))))[0])
    splits = pairs.assign(a=ours, b=base).groupby("split")[["a", "b"]].sum()
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}], {(splits['a'] < splits['b']).sum()} of {len(splits)}"


def _by_size(rows: pd.DataFrame) -> list[str]:
    """NLL against that of TS fitted on the same images: mean and worst of the splits, and how many there are."""
    sizes = sorted(rows["size"].dropna().unique().astype(int))
    if not sizes or "TS" not in set(rows["method"]):
        return []
    keyed = rows[rows["metric"] == "nll"].fillna({"size": np.inf}).groupby(["size", "split", "method"])
    nll = pd.Series(
        {key: mean_value(frame, "nll", "all") for key, frame in keyed}
    ).unstack()  # a column for each method
    changes = 100 * (nll.div(nll["TS"], axis=0) - 1)
    body = [
        [method, *(_mean_and_worst(changes.loc[size, method]) for size in (*sizes, np.inf))]
        for method in _in_order(rows)
    ]
    return [
        lines(["NLL against TS, %: mean (worst), splits", *(f"{size} images" for size in sizes), "all images"], body)
    ]


def _mean_and_worst(changes: pd.Series) -> str:
    own = changes.dropna()
    return f"{own.mean():+.2f} ({own.max():+.2f}), {len(own)}" if len(own) else "-"


def mean_value(frame: pd.DataFrame, metric: str, region: str) -> float:
    """Over all pixels for NLL and Brier, the mean over images for the others."""
    own = frame[(frame["metric"] == metric) & (frame["region"] == region) & frame["value"].notna()]
    weights = own["pixels"] if metric in _OVER_PIXELS else None
    return float(np.average(own["value"], weights=weights))


def _in_order(rows: pd.DataFrame) -> list[str]:
    found = set(rows["method"])
    return [name for name in METHODS if name in found]


def _span(counts: pd.Series) -> str:
    low, high = counts.min(), counts.max()
    return str(low) if low == high else f"{low} to {high}"
