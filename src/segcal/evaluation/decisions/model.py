"""The rules that `decide` learned, and what they cost; saved as JSON and CSV."""

from __future__ import annotations

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
from segcal.functional.probability import at_least_float32_dtype
from segcal.tables import named_method
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
_SETTINGS = (
    *("methods", "class_names", "activation", "ignore_index", "background"),
    *("risk", "level", "cases", "groups", "warnings", "volume_unit"),
)
_REMEDY = "run 'segcal decide' again"


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
