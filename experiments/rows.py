"""Archives of rows: measurements of splits and methods in one small file.

A line for each case, split and method holds its values as integers in units of 1e-6, below the last digit that a table
prints.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pandas as pd

from segcal.files import staged_file

_KEYS = ["part", "split", "images", "method", "case", "group", "changed", "seconds"]
_UNIT = 1e6
_PIXELS = "pixels"


def pack_rows(rows: pd.DataFrame, path: Path, columns: Sequence[tuple[str, str]]) -> None:
    """Write the values of some metrics and regions; pixels are those of the NLL, which are its weights."""
    wide = rows.set_index([*_KEYS, "metric", "region"])[["value", _PIXELS]].unstack(["metric", "region"])
    table = pd.DataFrame(index=wide.index)
    for metric, region in columns:
        table[f"{metric} {region}"] = (wide["value", metric, region] * _UNIT).round().astype("Int64")
        if metric == "nll":
            table[f"{_PIXELS} {region}"] = wide[_PIXELS, metric, region].astype("Int64")
    text = table.reset_index().round({"seconds": 1}).to_csv(index=False)
    with staged_file(path) as staging:
        staging.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def unpack_rows(path: Path) -> pd.DataFrame:
    """Return the rows again; pixels are missing in regions whose NLL was not kept."""
    text = lzma.decompress(path.read_bytes()).decode()
    table = pd.read_csv(StringIO(text), dtype={"case": str, "group": str}, keep_default_na=False)
    numbers = table.drop(columns=_KEYS).apply(pd.to_numeric, errors="coerce")
    parts = []
    for metric, region in (str(name).split(" ") for name in numbers if not str(name).startswith(_PIXELS)):
        values = {"value": numbers[f"{metric} {region}"] / _UNIT, _PIXELS: numbers.get(f"{_PIXELS} {region}")}
        parts.append(table[_KEYS].assign(metric=metric, region=region, **values))
    return pd.concat(parts, ignore_index=True)
