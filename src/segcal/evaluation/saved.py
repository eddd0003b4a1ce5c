"""Saved tables, of results and of decisions: which columns they have, and the checks of what is read back.

Nothing in such a folder is trusted. `segcal.json` holds a checksum of each file, its own included, so that a changed
or damaged one is refused. Columns, types and whether rows are complete are checked as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pandas as pd

from segcal.calibrators.saving import FIT
from segcal.evaluation.protocol import Protocol, ProtocolSettings
from segcal.files import MARKER, read_json, refuse_special
from segcal.files.guards import refuse_changed
from segcal.files.reading import FLAG, NUMBER, TEXT, WHOLE, list_of, optional, problem, record, table_of
from segcal.tables import Presentation
from segcal.text import as_cell, from_cell
from segcal.types import IgnoreIndex, InputError

_LARGEST = 1 << 32
"""Bytes of a table that are read."""


@dataclass(frozen=True)
class Table:
    """A saved table.

    Attributes:
        file: Name of its file.
        spec: Its columns in order; those that are not text with their type, as in `value:float`.
        keys: The columns that identify a row of a method.
        aligned: Whether all methods have the same rows.
    """

    file: str
    spec: str
    keys: str
    aligned: bool = True

    @property
    def columns(self) -> dict[str, type]:
        """The type of each column."""
        types = {"": str, "int": int, "float": float}
        return {name: types[kind] for name, _, kind in (column.partition(":") for column in self.spec.split())}

    @property
    def key(self) -> list[str]:
        """Names of the columns that identify a row of a method."""
        return self.keys.split()

    def frame(self, rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
        """Return rows with the names of the columns."""
        return pd.DataFrame(rows, columns=list(self.columns))


_VALUE = "metric value:float"
_CURVE = "bin:int low_edge:float high_edge:float count:int hit:int confidence:float low:float high:float"

TABLES = {
    "frame": Table("images.csv", f"case method region {_VALUE} pixels:int", "case region metric"),
    "patch_frame": Table("patches.csv", f"case method patch:int origin {_VALUE} pixels:int", "case patch metric"),
    "pooled_frame": Table(
        "pooled.csv", f"method region {_VALUE} low:float high:float images:int pixels:int", "region metric"
    ),
    "case_frame": Table("cases.csv", "case group", "case"),
    "curve_frame": Table("curves.csv", f"method region label {_CURVE}", "region label bin"),
    "sensitivity_frame": Table("bins.csv", "method region bins:int ece:float", "region bins"),
    "volume_frame": Table("volumes.csv", "case method label predicted:float true:int", "case label"),
    "size_frame": Table("sizes.csv", f"case method size:int region {_VALUE} pixels:int", "case size region metric"),
    "surface_frame": Table("surfaces.csv", f"case method label {_VALUE}", "case label metric", aligned=False),
    "limits_frame": Table("limits.csv", f"level {_VALUE}", "level metric"),
}
"""Tables of results, by attribute of `Results`."""
_ALWAYS = {"pooled.csv": {"ece", "nll", "brier"}, "surfaces.csv": {"dice"}}
"""Metrics that a table must have; the others must have ECE."""


_FIT = record(FIT, {"learned": WHOLE, "preserves_labels": FLAG, "changed": NUMBER, "shared_cases": WHOLE})
_BACKGROUND = record({"class": WHOLE, "name": TEXT, "fraction": NUMBER, "scores": table_of(table_of(NUMBER))})

_BY_TYPE = {
    int: WHOLE,
    bool: FLAG,
    float: NUMBER,
    int | None: optional(WHOLE),
    IgnoreIndex: list_of(WHOLE),
    Sequence[int]: list_of(WHOLE),
    Sequence[str] | None: optional(list_of(TEXT)),
}
_PROTOCOL = {name: _BY_TYPE.get(hint, TEXT) for name, hint in get_type_hints(ProtocolSettings).items()}
"""The fields of `Protocol`, whose values are checked when it is made of them."""

SETTINGS = record(
    {"methods": list_of(TEXT), "warnings": list_of(TEXT), "num_classes": WHOLE},
    {
        "channels": list_of(TEXT),
        "regions": list_of(TEXT),
        **_PROTOCOL,
        "segcal": TEXT,
        "date": TEXT,
        "versions": table_of(TEXT),
        "baseline": TEXT,
        "fits": table_of(_FIT),
        "unnamed_background": _BACKGROUND,
        "surface_background": TEXT,
        "surface_unit": TEXT,
        "presentation": record({}, {"reference": optional(TEXT), "test": TEXT, "average": TEXT}),
        "dataset": TEXT,
    },
)
"""Settings of saved results."""


def write_table(rows: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, in which no name is a formula."""
    names = [str(name) for name in rows.select_dtypes(exclude="number")]
    rows.assign(**{name: rows[name].map(as_cell) for name in names}).to_csv(path, index=False)


def table_records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows in values that JSON can hold; infinite and missing ones are None."""
    finite = rows.replace([np.inf, -np.inf], np.nan)
    return json.loads(finite.to_json(orient="records", double_precision=15))  # type: ignore[no-any-return]


def read_settings(folder: Path, kind: str, version: int, origin: str, remedy: str) -> dict[str, Any]:
    """Return the settings of saved results or decisions; raise unless the folder holds some of this version."""
    content = read_json(folder / MARKER)
    if not isinstance(content, dict) or not isinstance(content.get(kind), dict):
        raise InputError(f"'{folder}' holds no {kind}; give {origin}")
    if content.get("format") != version:
        raise InputError(f"the {kind} in '{folder}' were saved by another version of segcal; {remedy}")
    return dict(content[kind])


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
    folder: Path, tables: Mapping[str, Table], methods: Sequence[str], remedy: str
) -> dict[str, pd.DataFrame]:
    """Return saved tables by their names; raise unless they and the marker are as they were written."""
    found = {name: read_table(folder, table, methods, remedy) for name, table in tables.items()}
    refuse_changed(folder, [table.file for table in tables.values()], remedy)
    return found


def read_table(folder: Path, table: Table, methods: Sequence[str], remedy: str) -> pd.DataFrame:
    """Return a saved table; names stay strings ("007", "NA") and values are restored to the last bit."""
    path = folder / table.file
    damaged = f"'{path}' must be a table that segcal wrote"
    try:
        refuse_special(path)
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{damaged}, got a file of more than {_LARGEST >> 30} GiB; {remedy}")
        found = pd.read_csv(path, dtype=str, keep_default_na=False)
        if missing := [name for name in table.columns if name not in found]:
            raise InputError(f"{damaged}, got one without the column '{missing[0]}'; {remedy}")
        found = found.assign(**{name: _as(kind, found[name]) for name, kind in table.columns.items()})
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{damaged}, but it is missing; {remedy}") from error
    except Exception as error:  # pandas raises almost anything on damaged text
        raise InputError(f"{damaged}, got a damaged one ({' '.join(str(error).split())}); {remedy}") from error
    if wrong := _incomplete(found, table, methods):
        raise InputError(f"{damaged}, got one {wrong}; {remedy}")
    return found


def _incomplete(found: pd.DataFrame, table: Table, methods: Sequence[str]) -> str | None:
    """Say what is wrong with the rows: each method must have each row of the first one, once."""
    if found.duplicated(["method", *table.key] if "method" in found else table.key).any():
        return "with a row twice"
    needed = _ALWAYS.get(table.file, {"ece"})
    if "metric" in found and len(found) and (missing := needed - set(found["metric"])):
        return f"without the metric '{min(missing)}'"
    if "method" not in found or not len(found) or not table.aligned:
        return None
    if set(found["method"]) != set(methods):
        return f"of the methods {', '.join(dict.fromkeys(found['method']))} instead of {', '.join(methods)}"
    rows = [frozenset(part.itertuples(index=False)) for _, part in found.groupby("method")[table.key]]
    return None if all(own == rows[0] for own in rows) else "in which not every method has the same rows"


def _as(kind: type, column: pd.Series) -> pd.Series:
    """Return a column of numbers or text in its type; raise unless whole numbers are (3.0 is one)."""
    if kind is str:
        return column.map(from_cell)
    numbers = column.map(lambda text: float(text or "nan")).astype(np.float64)  # also without rows
    if kind is float:
        return numbers
    if (numbers % 1 != 0).any():
        raise ValueError(f"'{column.name}' must be whole numbers")
    return numbers.astype(np.int64)
