"""The measurements that the published tables are made from, in one small file.

Values are kept as integers in units of 1e-6, below the last digit that a table prints.
"""

from __future__ import annotations

import lzma
from io import StringIO
from pathlib import Path

import pandas as pd

from segcal.files import staged_file
from segcal.tables import CALIBRATION, REGIONS

MEASURED = Path(__file__).with_name("measured.csv.xz")
_KEYS = ["part", "split", "images", "method", "case", "group", "changed", "seconds"]
_COLUMNS = [("nll", "all"), ("brier", "all"), *((metric, region) for metric in CALIBRATION for region in REGIONS)]
_UNIT = 1e6


def pack(rows: pd.DataFrame, path: Path) -> None:
    """Write the rows of `table.gathered` that tables show; one line per case, split and method."""
    wide = rows.set_index([*_KEYS, "metric", "region"])[["value", "pixels"]].unstack(["metric", "region"])
    table = pd.DataFrame(index=wide.index)
    for metric, region in _COLUMNS:
        values = wide["value", metric, region]
        table[f"{metric} {region}"] = (values * _UNIT).round().astype("Int64")
    table["pixels"] = wide["pixels", "nll", "all"].astype("Int64")  # what NLL and Brier score are weighted by
    text = table.reset_index().round({"seconds": 1}).to_csv(index=False)
    with staged_file(path) as staging:
        staging.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def unpack(path: Path) -> pd.DataFrame:
    """Return the rows again."""
    text = lzma.decompress(path.read_bytes()).decode()
    table = pd.read_csv(StringIO(text), dtype={"case": str, "group": str}, keep_default_na=False)
    parts = []
    for metric, region in _COLUMNS:
        values = pd.to_numeric(table[f"{metric} {region}"], errors="coerce") / _UNIT
        parts.append(table[[*_KEYS, "pixels"]].assign(metric=metric, region=region, value=values))
    return pd.concat(parts, ignore_index=True)
