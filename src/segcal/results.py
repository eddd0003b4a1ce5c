"""What an evaluation found: one row per case, method, region and metric, and the readings that people want of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.files import MARKER, read_json, staged_folder, write_json
from segcal.tables import CALIBRATION, QUALITY, REGIONS, PaperTable, paper_table
from segcal.types import Array, InputError

FORMAT = 1
_TABLES = {"frame": "images.csv", "patch_frame": "patches.csv", "pooled_frame": "pooled.csv"}
_NAMES = dict.fromkeys(("case", "method", "region", "metric", "origin"), str)


@dataclass(frozen=True)
class Results:
    """The outcome of `segcal.evaluate`.

    Attributes:
        frame: One row per case, method, region and metric; values are fractions, NaN where the region is empty.
        patch_frame: The same for each Local patch, with its place.
        pooled_frame: Figures over all pixels of all cases, with bootstrap intervals over images.
        settings: How it was measured.
    """

    frame: pd.DataFrame
    patch_frame: pd.DataFrame
    pooled_frame: pd.DataFrame
    settings: Mapping[str, Any]

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods compared, in the order given."""
        return tuple(self.settings["methods"])

    def to_frame(self) -> pd.DataFrame:
        """Columns `case method region metric value pixels`, one row per case, method, region and metric."""
        return self.frame.copy()

    def patches(self) -> pd.DataFrame:
        """The rows of each Local patch: columns `case method patch origin metric value pixels`."""
        return self.patch_frame.copy()

    def pooled(self) -> pd.DataFrame:
        """Figures over all pixels together: columns `method region metric value low high images pixels`.

        `low` and `high` bound the 95 % interval of a bootstrap over images. ACE has none: its bins depend on all
        pixels at once, and what is kept of each image does not hold them.
        """
        return self.pooled_frame.copy()

    def skipped(self) -> dict[str, int]:
        """How many regions and patches had no pixel, and so no value, by region."""
        first = self.frame[(self.frame.method == self.methods[0]) & (self.frame.metric == "ece")]
        counts = {region: int((rows.pixels == 0).sum()) for region, rows in first.groupby("region", sort=False)}
        patches = self.patch_frame
        if len(patches):
            patches = patches[(patches.method == self.methods[0]) & (patches.metric == "ece")]
            counts["patches"] = int((patches.pixels == 0).sum())
        return {str(region): count for region, count in counts.items()}

    def table(self, reference: str | None = None) -> PaperTable:
        """The paper's table; marks where `reference` is significantly better than another method."""
        check_reference(reference, self.methods)
        columns = [(metric, region) for metric in CALIBRATION for region in REGIONS]
        columns += [(metric, "all") for metric in QUALITY]
        samples = {
            (method, *column): values
            for method in self.methods
            for column in columns
            if len(values := self._sample(method, *column))
        }
        return paper_table(samples, self.methods, reference)

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: three CSV files and the settings."""
        with staged_folder(path) as folder:
            for attribute, name in _TABLES.items():
                getattr(self, attribute).to_csv(folder / name, index=False)
            write_json(folder / MARKER, {"format": FORMAT, "results": dict(self.settings)})

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read results that were saved."""
        folder = Path(path)
        content = read_json(folder / MARKER)
        if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
            raise InputError(f"'{folder}' holds no results; give the folder that 'segcal evaluate --out' wrote")
        if content["format"] > FORMAT:
            raise InputError(f"the results in '{folder}' were saved by a newer segcal; update segcal")
        try:
            tables = {attribute: _read(folder / name) for attribute, name in _TABLES.items()}
        except (OSError, ValueError) as error:
            raise InputError(f"the results in '{folder}' cannot be read ({error}); evaluate anew") from error
        return cls(settings=content["results"], **tables)

    def _sample(self, method: str, metric: str, region: str) -> Array:
        """The values that mean(std) is taken over: patches for Local-Avg, images for all others."""
        local = region == "local-avg"
        rows = self.patch_frame if local else self.frame[self.frame.region == region]
        chosen = rows[(rows.method == method) & (rows.metric == metric)] if len(rows) else rows
        return np.asarray(chosen["value"], dtype=np.float64)


def _read(path: Path) -> pd.DataFrame:
    """A table in which names are what they were ("007", "NA") and values come back to the last bit."""
    values = dict.fromkeys(("value", "low", "high"), lambda text: float(text or "nan"))
    return pd.read_csv(path, dtype=_NAMES, converters=values, keep_default_na=False)


def check_reference(reference: str | None, methods: Sequence[str]) -> None:
    """Raise unless the reference is one of the methods, or none is asked for."""
    if reference is not None and reference not in methods:
        raise InputError(f"reference must be one of {', '.join(methods)}, got '{reference}'")
