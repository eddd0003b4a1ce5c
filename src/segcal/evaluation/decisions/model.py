"""The rules that `decide` learned, and what they cost: saved as JSON and CSV, shown as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from segcal.evaluation.protocol import Protocol
from segcal.evaluation.saved import Table, read_settings, read_tables, table_records, write_table
from segcal.files import MARKER, staged_folder, write_json
from segcal.files.reading import NUMBER, TEXT, WHOLE, Kind, list_of, optional, problem, record
from segcal.functional.probability import at_least_float32_dtype
from segcal.tables import TextTable, named_method
from segcal.tables.numbers import MISSING, percent, threshold_number, volume_number
from segcal.types import InputError, Probs
from segcal.version import __version__

FORMAT = 2
_GROUPS = "images:int groups:int needed:int"
_SHARES = "risk:float threshold:float missed:float left_out:float precision:float size:float by_label:float"
_AREAS = "aurc:float low:float high:float excess:float risk:float count:int"
TABLES = {
    "thresholds": Table("thresholds.csv", f"method label {_SHARES} {_GROUPS}", "label"),
    "curves": Table(
        "curves.csv", "method channel unit coverage:float risk:float confidence:float", "channel unit coverage"
    ),
    "selective": Table("selective.csv", f"method channel unit {_AREAS}", "channel unit"),
    "intervals": Table("intervals.csv", f"method label level:float radius:float left_out:float {_GROUPS}", "label"),
    "volumes": Table("volumes.csv", "case method label expected:float low:float high:float true:float", "case label"),
}
"""Tables of decisions, by attribute."""
_SHARE = Kind("a number between 0 and 1", lambda value: NUMBER.accepts(value) and 0 < value < 1)
_SETTINGS = {
    "methods": list_of(TEXT),
    "class_names": list_of(TEXT),
    "activation": TEXT,
    "ignore_index": list_of(WHOLE),
    "background": optional(WHOLE),
    "risk": _SHARE,
    "level": _SHARE,
    "cases": list_of(TEXT),
    "groups": list_of(optional(TEXT)),
    "warnings": list_of(TEXT),
    "volume_unit": TEXT,
}
_REMEDY = "run 'segcal decide' again"
_COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Decisions:
    """Rules for decisions, each learned on held-out images.

    A label is a class of a softmax, or a channel of a sigmoid head. A `channel` is "" for a softmax.

    Attributes:
        thresholds: Columns `method label risk threshold missed left_out precision size by_label images groups needed`.
            A pixel is taken for a class where its probability is at least `threshold`; then at most a share `risk` of
            the pixels of this class is missed, on average over new images that contain it. `missed` is the share on
            these images, `left_out` the same with the threshold of all other images, `by_label` that of the predicted
            labels. `precision` is the share of the pixels above the threshold that are of the class, `size` their
            number relative to the true one. With fewer than `needed` groups no threshold above 0 is safe.
        curves: Columns `method channel unit coverage risk confidence`: the share of wrong pixels among those kept.
        selective: Columns `method channel unit aurc low high excess risk count`; the exact AURC lies in `low` to
            `high`.
        intervals: Columns `method label level radius left_out images groups needed`: half the length of a volume's
            interval in uncertain volumes, and the share of these images inside the interval of all others.
        volumes: Columns `case method label expected low high true`: the volume of each class in each case, with the
            interval that all other images give; in `volume_unit`.
        settings: How they were learned.
    """

    thresholds: pd.DataFrame
    curves: pd.DataFrame
    selective: pd.DataFrame
    intervals: pd.DataFrame
    volumes: pd.DataFrame
    settings: Mapping[str, Any]

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order given."""
        return tuple(self.settings["methods"])

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the channels of a sigmoid head."""
        return tuple(self.settings["class_names"])

    @property
    def volume_unit(self) -> str:
        """Unit of volumes: mm^3 (mm^2 of pictures) where the spacing is known, else voxels or pixels; "" if unknown."""
        return str(self.settings["volume_unit"])

    @property
    def protocol(self) -> Protocol:
        """The head and labels that the rules are for."""
        names = ("activation", "ignore_index", "background", "class_names")
        return Protocol(len(self.class_names), **{name: self.settings[name] for name in names})

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels of a sigmoid head; one empty name for a softmax."""
        return self.class_names if self.protocol.activation == "sigmoid" else ("",)

    def threshold(self, method: str) -> Tensor:
        """Return the threshold of each class `[L]`."""
        own = self.thresholds["method"] == named_method(method, self.methods, "method")
        rows = self.thresholds[own].set_index("label")["threshold"]
        return torch.tensor([float(rows[name]) for name in self.class_names], dtype=torch.float64)

    def keep(self, probs: Probs, method: str) -> Bool[Tensor, "B L *S"]:
        """Return the pixels that may be of each class: where its probability reaches the threshold.

        The guarantee is for probabilities in float64. Those of another precision may fall short of theirs, and so of
        a threshold that many pixels have (shares of votes), by a few units in the last place: these count as reached.
        """
        rounding = 8 * torch.finfo(at_least_float32_dtype(probs.dtype)).eps
        limits = (self.threshold(method) * (1 - rounding)).to(probs)
        if probs.shape[1] != len(limits):
            raise InputError(f"probs must have shape (B, {len(limits)}, *S), got {tuple(probs.shape)}")
        return probs >= limits.view(1, -1, *[1] * (probs.ndim - 2))

    def mean_volumes(self) -> pd.DataFrame:
        """Return means over the cases: columns `method label expected true reach`, the last half an interval."""
        reach = self.volumes["high"] - self.volumes["expected"]
        means = self.volumes.assign(reach=reach).groupby(["method", "label"], sort=False)
        return means[["expected", "true", "reach"]].mean().reset_index()

    def to_dict(self) -> dict[str, Any]:
        """Return settings and tables in values that JSON can hold; infinite and missing values are None."""
        return {"settings": dict(self.settings), **{name: table_records(getattr(self, name)) for name in TABLES}}

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: a CSV file for each table, and the settings."""
        with staged_folder(path) as folder:
            for name, table in TABLES.items():
                write_table(getattr(self, name), folder / table.file)
            write_json(folder / MARKER, {"format": FORMAT, "segcal": __version__, "decisions": dict(self.settings)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read saved decisions; raise unless they are as they were saved."""
        folder = Path(path)
        saved = read_settings(folder, "decisions", FORMAT, "a folder that 'segcal decide --out' wrote", _REMEDY)
        if wrong := problem(saved, record(_SETTINGS)):
            raise InputError(f"the settings of the decisions in '{folder}' cannot be used: {wrong}; {_REMEDY}")
        try:
            settings = {name: saved[name] for name in _SETTINGS}
            tables = read_tables(folder, TABLES, settings["methods"], _REMEDY)
            found = cls(**tables, settings=settings)
            found.protocol  # noqa: B018  (checks the settings)
        except (KeyError, TypeError) as error:
            raise InputError(f"the decisions in '{folder}' cannot be read ({error!r}); {_REMEDY}") from error
        if any(
            set(table["label"]) != set(found.class_names)
            for table in (found.thresholds, found.intervals, found.volumes)
        ):
            raise InputError(f"the decisions in '{folder}' must have a rule for each class, got others; {_REMEDY}")
        return found


def decision_tables(found: Decisions) -> tuple[TextTable, TextTable, TextTable]:
    """Return thresholds, risk against coverage, and volumes."""
    return _thresholds(found), _selective(found), _intervals(found)


def volume_table(volumes: pd.DataFrame, level: float) -> TextTable:
    """Return the volumes of new cases with their intervals."""
    names = ("expected", "low", "high")
    rows = [
        (*(row[key] for key in ("case", "method", "label")), *(volume_number(row[name]) for name in names), row["unit"])
        for row in _rows(volumes)
    ]
    headings = ("Case", "Method", "Class", "expected", "low", "high", "unit")
    return TextTable(headings, rows, f"Volumes with {percent(level)} intervals", keys=3)


def _thresholds(found: Decisions) -> TextTable:
    rows = []
    for row in _rows(found.thresholds):
        shares = (_share(row[name]) for name in ("missed", "left_out", "by_label", "precision"))
        times = MISSING if math.isnan(row["size"]) else f"{row['size']:.2f}"
        shown = threshold_number(row["threshold"]) if _is_enough(row) else f"0 ({_needed(found, row)})"
        rows.append((row["method"], row["label"], shown, *shares, times, str(row["images"])))
    title = (
        f"Thresholds that miss at most {percent(found.settings['risk'])} of each class, on average over new images "
        "that contain it"
    )
    note = (
        "A pixel is taken for a class where its probability reaches the threshold (conformal risk control). Left out: "
        f"missed with the threshold of all other {_units(found)}. By label: missed by the predicted labels. Size: "
        "pixels taken, relative to the true number."
    )
    headings = ("Method", "Class", "threshold", "missed", "left out", "by label", "precision", "size", "images")
    return TextTable(headings, rows, title, note, keys=2)


def _selective(found: Decisions) -> TextTable:
    keys = {"Method": "method", "Reject": "unit"}
    if found.channels != ("",):
        keys = {"Method": "method", "Channel": "channel", "Reject": "unit"}
    risks = {(*(row[key] for key in keys.values()), row["coverage"]): row["risk"] for row in _rows(found.curves)}
    rows = []
    for row in _rows(found.selective):
        own = [row[key] for key in keys.values()]
        if any((*own, at) not in risks for at in _COVERAGES):
            raise InputError(
                "the curves of saved decisions must have every coverage, got fewer; run 'segcal decide' again"
            )
        shares = (_share(risks[*own, at]) for at in _COVERAGES)
        rows.append((*own, *shares, f"{row['aurc']:.4f}", f"{row['excess']:.4f}"))
    headings = (*keys, *(percent(at) for at in _COVERAGES[:-1]), "all", "AURC", "excess")
    title = "Risk (fraction of wrong pixels) of the most confident part"
    note = "AURC: area under the curve of risk against coverage; excess: above that of a perfect order."
    return TextTable(headings, rows, title, note, keys=len(keys))


def _intervals(found: Decisions) -> TextTable:
    means = {(row["method"], row["label"]): row for row in _rows(found.mean_volumes())}
    rows = []
    for row in _rows(found.intervals):
        own = means[row["method"], row["label"]]
        reach = volume_number(own["reach"]) if _is_enough(row) else _needed(found, row)
        numbers = volume_number(own["expected"]), volume_number(own["true"]), reach
        rows.append((row["method"], row["label"], *numbers, _share(row["left_out"]), str(row["images"])))
    unit = f" in {found.volume_unit}" if found.volume_unit else ""
    level = percent(found.settings["level"])
    title = f"Volume = sum of probabilities{unit}, with intervals for {level} of new images"
    note = (
        "Means over images; the interval is conformal, in units of the uncertain volume of each image. Inside, left "
        f"out: images inside the interval of all other {_units(found)}."
    )
    headings = ("Method", "Class", "expected", "true", "half interval", "inside, left out", "images")
    return TextTable(headings, rows, title, note, keys=2)


def _rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
    return table.to_dict(orient="records")


def _share(value: float) -> str:
    return MISSING if math.isnan(value) else percent(value, 1)


def _is_enough(row: Mapping[Any, Any]) -> bool:
    return bool(row["groups"] >= row["needed"])


def _needed(found: Decisions, row: Mapping[Any, Any]) -> str:
    return f"needs {row['needed']} {_units(found)}"


def _units(found: Decisions) -> str:
    return "groups" if any(found.settings["groups"]) else "images"
