"""Tables of the passes: gain against TS and CTS, calibration by region, and gain by number of passes."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.beside_paper import lines
from experiments.beyond.table import difference, mean_value
from experiments.passes.measure import gathered
from experiments.passes.sets import CHAINS, FREE, MEAN_ROWS, OTHERS, POOL, SETS, methods
from segcal.files import staged_file
from segcal.text import counted
from segcal.types import InputError

MEASURED = Path(__file__).with_name("measured.csv.xz")
_KEYS = ["part", "split", "images", "method", "case", "group", "changed", "seconds"]
_COLUMNS = tuple((metric, region) for region in ("all", "boundary") for metric in ("nll", "brier", "ece"))
_UNIT = 1e6
TITLES = {
    "camvid, 0001TP": "CamVid, `val` to 0001TP",
    "camvid, Seq05VD": "CamVid, `val` to Seq05VD",
    "camvid-0001TP": "CamVid, within 0001TP",
    "camvid-Seq05VD": "CamVid, within Seq05VD",
    "hippocampus-200": "Hippocampus, 200 volumes",
    "mouse": "Mouse brain, 17 volumes",
    "hippocampus-mirrored": "Hippocampus, flips in training",
    "hippocampus-mirrored-mean": "Hippocampus, flips in training, mean of 8 mirrors",
}


def pack(out: Path) -> None:
    """Keep what the tables are made from, in units of 1e-6, beside the experiment; other tasks stay as they are."""
    known, (own, _) = unpack(), gathered(out)
    rows = pd.concat([known[~known["part"].isin(own["part"])], own[known.columns]])
    wide = rows.set_index([*_KEYS, "metric", "region"])[["value", "pixels"]].unstack(["metric", "region"])
    table = pd.DataFrame(index=wide.index)
    for metric, region in _COLUMNS:
        table[f"{metric} {region}"] = (wide["value", metric, region] * _UNIT).round().astype("Int64")
        table[f"pixels {region}"] = wide["pixels", metric, region].astype("Int64")
    text = table.reset_index().round({"seconds": 1}).to_csv(index=False)
    with staged_file(MEASURED) as staging:
        staging.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def unpack() -> pd.DataFrame:
    """Return the rows that were kept."""
    text = lzma.decompress(MEASURED.read_bytes()).decode()
    table = pd.read_csv(StringIO(text), dtype={"case": str, "group": str}, keep_default_na=False)
    parts = []
    for metric, region in _COLUMNS:
        values = pd.to_numeric(table[f"{metric} {region}"], errors="coerce") / _UNIT
        pixels = pd.to_numeric(table[f"pixels {region}"], errors="coerce")
        parts.append(table[_KEYS].assign(metric=metric, region=region, value=values, pixels=pixels))
    return pd.concat(parts, ignore_index=True)


def print_tables(out: Path | None) -> None:
    """Print every table, of a folder of results or of the published measurements."""
    if out is not None and not (out / "measured").exists():
        raise InputError(f"'{out}' holds nothing measured; run `python -m experiments.passes measure` first")
    print(tables(unpack() if out is None else gathered(out)[0]))


def tables(rows: pd.DataFrame) -> str:
    """All tables as Markdown."""
    tasks = {part: rows[rows["part"] == part] for part in TITLES if part in set(rows["part"])}
    parts = ["## NLL and Brier score against the better of TS and CTS"]
    pictures = {part: own for part, own in tasks.items() if part.startswith("camvid")}
    volumes = [{part: own} for part, own in tasks.items() if part not in pictures]  # each has its own passes
    for alike in (pictures, *volumes):
        for metric, name in (("nll", "NLL"), ("brier", "Brier score")):
            parts += _against(alike, 2 if alike is pictures else 3, metric, name) if alike else []
    parts += _by_number(tasks)
    for part, own in tasks.items():
        parts += [f"## {TITLES[part]}", _counts(own), _values(own)]
    return "\n\n".join(parts)


def better(rows: pd.DataFrame) -> str:
    """Return which of TS and CTS has the lower NLL on the measured images, over all splits."""
    return min(("TS", "CTS"), key=lambda name: mean_value(rows[rows["method"] == name], "nll", "all"))


def _against(tasks: dict[str, pd.DataFrame], dims: int, metric: str, name: str) -> list[str]:
    header = [f"{name}, All, % of the better", "passes", *(TITLES[part] for part in tasks)]
    body = [["TS or CTS", "0", *(better(own) for own in tasks.values())]]
    for method in dict.fromkeys((*methods(dims), *MEAN_ROWS)):
        if any(method in set(own["method"]) and method != better(own) for own in tasks.values()):
            cells = [
                difference(own, method, better(own), metric, "all") if method != better(own) else "the better"
                for own in tasks.values()
            ]
            body.append([method, _number(method, dims), *cells])
    return [lines(header, body)]


def _number(method: str, dims: int) -> str:
    views = SETS[dims].get(method.removeprefix(POOL).removeprefix(FREE), ())
    many = sum(view != OTHERS for view in views)
    return f"{many} + networks" if OTHERS in views and many else "networks" if OTHERS in views else str(many)


def _by_number(tasks: dict[str, pd.DataFrame]) -> list[str]:
    """Return the gain in NLL by number of passes, where everything that it needs was measured."""
    chains = {title: chain for title, chain in CHAINS.items() if set(chain[0]) <= set(tasks)}
    if not chains:
        return []
    numbers = sorted({number for _, chain in chains.values() for number in chain})
    body = []
    for number in numbers:
        cells = []
        for among, chain in chains.values():
            name = chain.get(number)
            gains = [_change(tasks[part], POOL + name) for part in among] if name else []
            cells.append(f"{np.mean(gains):+.1f} ({name})" if gains else "")
        body.append([str(number), *cells])
    return ["## Gain by number of passes", lines(["passes: NLL, All, % of the better of TS and CTS", *chains], body)]


def _change(rows: pd.DataFrame, method: str) -> float:
    ours, base = (mean_value(rows[rows["method"] == name], "nll", "all") for name in (method, better(rows)))
    return 100 * (ours / base - 1)


def _counts(rows: pd.DataFrame) -> str:
    images, splits = rows["images"], rows["split"].nunique()
    cases = rows.groupby("split")["case"].nunique()
    many = counted(splits, "combination")
    return f"{_span(images)} images to fit on, {_span(cases)} to measure, {many} of network and split."


def _span(counts: pd.Series) -> str:
    low, high = counts.min(), counts.max()
    return str(low) if low == high else f"{low} to {high}"


def _values(rows: pd.DataFrame) -> str:
    """NLL, Brier score and ECE in both regions, labels that were moved, and the seconds of a fit."""
    found = [name for name in (*methods(2), *methods(3), *MEAN_ROWS) if name in set(rows["method"])]
    body = []
    for method in dict.fromkeys(found):
        split = [each for _, each in rows[rows["method"] == method].groupby("split")]
        cells = [_mean(split, metric, region) for metric, region in _COLUMNS]
        seconds = np.mean([each["seconds"].iloc[0] for each in split])
        body.append([method, *cells, f"{max(each['changed'].iloc[0] for each in split):,}", f"{seconds:.1f}"])
    names = {"nll": "NLL", "brier": "Brier", "ece": "ECE(%)"}
    header = ["Method", *(f"{names[metric]} {region}" for metric, region in _COLUMNS), "labels changed", "fit, s"]
    return lines(header, body)


def _mean(splits: Sequence[pd.DataFrame], metric: str, region: str) -> str:
    value = float(np.mean([mean_value(each, metric, region) for each in splits]))
    return f"{100 * value:.2f}" if metric == "ece" else f"{value:.4f}"
