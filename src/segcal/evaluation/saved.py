"""Tables of saved results: which columns they have, and the checks of what is read back.

Nothing in a folder of results is trusted. `segcal.json` holds a checksum of each table, so that a changed or damaged
one is refused. Columns, types and whether rows are complete are checked as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from segcal.evaluation.protocol import Protocol
from segcal.evaluation.schema import SETTINGS
from segcal.files import refuse_special
from segcal.files.schema import problem
from segcal.tables import Presentation
from segcal.text import as_cell, from_cell
from segcal.types import InputError

_LARGEST = 1 << 32
"""Bytes of a table that are read."""


class Table(NamedTuple):
    """Columns of names, whole numbers and numbers of a table, and those that identify a row of a method.

    `aligned` says whether all methods have the same rows.
    """

    file: str
    names: tuple[str, ...]
    counts: tuple[str, ...]
    numbers: tuple[str, ...]
    key: tuple[str, ...]
    aligned: bool = True


TABLES = {
    "frame": Table(
        "images.csv", ("case", "method", "region", "metric"), ("pixels",), ("value",), ("case", "region", "metric")
    ),
    "patch_frame": Table(
        "patches.csv",
        ("case", "method", "origin", "metric"),
        ("patch", "pixels"),
        ("value",),
        ("case", "patch", "metric"),
    ),
    "pooled_frame": Table(
        "pooled.csv",
        ("method", "region", "metric"),
        ("images", "pixels"),
        ("value", "low", "high"),
        ("region", "metric"),
    ),
    "case_frame": Table("cases.csv", ("case", "group"), (), (), ("case",)),
    "curve_frame": Table(
        "curves.csv",
        ("method", "region", "label"),
        ("bin", "count", "hit"),
        ("low_edge", "high_edge", "confidence", "low", "high"),
        ("region", "label", "bin"),
    ),
    "sensitivity_frame": Table("bins.csv", ("method", "region"), ("bins",), ("ece",), ("region", "bins")),
    "volume_frame": Table("volumes.csv", ("case", "method", "label"), ("true",), ("predicted",), ("case", "label")),
    "size_frame": Table(
        "sizes.csv",
        ("case", "method", "region", "metric"),
        ("size", "pixels"),
        ("value",),
        ("case", "size", "region", "metric"),
    ),
    "surface_frame": Table(
        "surfaces.csv",
        ("case", "method", "label", "metric"),
        (),
        ("value",),
        ("case", "label", "metric"),
        aligned=False,
    ),
    "limits_frame": Table("limits.csv", ("level", "metric"), (), ("value",), ("level", "metric")),
}
_ALWAYS = {"pooled.csv": {"ece", "nll", "brier"}, "surfaces.csv": {"dice"}}
"""Metrics that a table must have; the others must have ECE."""


def checksums(folder: Path, tables: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of each table in a folder, by the name of its file."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in tables}


def write_table(rows: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, in which no name is a formula."""
    names = {name for table in TABLES.values() for name in table.names} & set(rows.columns)
    rows.assign(**{name: rows[name].map(as_cell) for name in names}).to_csv(path, index=False)


def check_settings(settings: Mapping[str, Any], folder: Path) -> None:
    """Raise unless the settings of saved results are complete and of the right types."""
    unusable = f"the settings of the results in '{folder}' cannot be used"
    if wrong := problem(settings, SETTINGS) or _contradiction(settings):
        raise InputError(f"{unusable}: {wrong}; evaluate again")
    try:
        Protocol.of(settings)
        Presentation.saved_in(settings).checked(settings["methods"])
    except (TypeError, ValueError) as error:
        raise InputError(f"{unusable}: {error}; evaluate again") from error


def _contradiction(settings: Mapping[str, Any]) -> str | None:
    """Return which settings of the right types do not belong together, if any."""
    methods, channels = settings["methods"], settings.get("channels", [])
    if not methods or len(set(methods)) < len(methods):
        return "'methods' must be different names, at least one"
    if len(set(channels)) < len(channels):
        return "'channels' must be different names"
    baseline = settings.get("baseline", methods[0])
    if baseline not in methods:
        return f"'baseline' must be one of {', '.join(methods)}, got {baseline!r}"
    if "ece" not in settings.get("unnamed_background", {}).get("scores", {}).get(baseline, {"ece": 0}):
        return f"'unnamed_background' must have the ECE of {baseline}"
    background = settings.get("background")
    return f"'background' must be 0 or more, got {background}" if background is not None and background < 0 else None


def read_tables(
    folder: Path, wanted: Sequence[str], methods: Sequence[str], sums: Mapping[str, str]
) -> dict[str, pd.DataFrame]:
    """Return tables of saved results by attribute of `Results`; raise unless all are as they were written."""
    found = {name: read_table(folder, TABLES[name], methods) for name in wanted}
    known = checksums(folder, [TABLES[name].file for name in wanted])
    if sums != known:
        raise InputError(
            f"the results in '{folder}' must be as they were saved, got another checksum: a table was changed or "
            "damaged; evaluate again"
        )
    if "case_frame" in found and set(found["case_frame"]["case"]) != set(found["frame"]["case"]):
        raise InputError(f"the tables in '{folder}' must be of the same cases, got others; evaluate again")
    return found


def read_table(folder: Path, table: Table, methods: Sequence[str]) -> pd.DataFrame:
    """Return a table of saved results; names stay strings ("007", "NA") and values are restored to the last bit."""
    path = folder / table.file
    damaged = f"'{path}' must be a table that segcal wrote"
    try:
        refuse_special(path)
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{damaged}, got a file of more than {_LARGEST >> 30} GiB; evaluate again")
        found = pd.read_csv(path, dtype=str, keep_default_na=False)
        if missing := [name for name in (*table.names, *table.counts, *table.numbers) if name not in found]:
            raise InputError(f"{damaged}, got one without the column '{missing[0]}'; evaluate again")
        converted = {name: found[name].map(from_cell) for name in table.names}
        converted |= {name: _whole(found[name]) for name in table.counts}
        converted |= {name: found[name].map(lambda text: float(text or "nan")) for name in table.numbers}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{damaged}, but it is missing; evaluate again") from error
    except Exception as error:  # pandas raises almost anything on damaged text
        raise InputError(f"{damaged}, got a damaged one ({' '.join(str(error).split())}); evaluate again") from error
    found = found.assign(**converted)
    if wrong := _incomplete(found, table, methods):
        raise InputError(f"{damaged}, got one {wrong}; evaluate again")
    return found


def _incomplete(found: pd.DataFrame, table: Table, methods: Sequence[str]) -> str | None:
    """Say what is wrong with the rows: each method must have each row of the first one, once."""
    if found.duplicated(["method", *table.key] if "method" in found else list(table.key)).any():
        return "with a row twice"
    needed = _ALWAYS.get(table.file, {"ece"})
    if "metric" in found and len(found) and (missing := needed - set(found["metric"])):
        return f"without the metric '{min(missing)}'"
    if "method" not in found or not len(found) or not table.aligned:
        return None
    if set(found["method"]) != set(methods):
        return f"of the methods {', '.join(dict.fromkeys(found['method']))} instead of {', '.join(methods)}"
    rows = [frozenset(part.itertuples(index=False)) for _, part in found.groupby("method")[list(table.key)]]
    return None if all(own == rows[0] for own in rows) else "in which not every method has the same rows"


def _whole(column: pd.Series) -> pd.Series:
    """Return whole numbers, written as 3 or as 3.0; raise for anything else."""
    counts = [int(text) if text.isdigit() else int(Fraction(text)) for text in column]
    if any(str(count) != text and float(text) != count for count, text in zip(counts, column, strict=True)):
        raise ValueError(f"'{column.name}' must be whole numbers")
    return pd.Series(counts, index=column.index, dtype=np.int64)
