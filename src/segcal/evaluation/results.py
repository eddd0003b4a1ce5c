"""What an evaluation found: one row per case, method, region and metric, and the readings that people want of it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.calibrators import method_titles
from segcal.files import MARKER, read_json, staged_file, staged_folder, write_json
from segcal.tables import (
    CALIBRATION,
    QUALITY,
    REGIONS,
    Drawing,
    PaperTable,
    Presentation,
    image_means,
    latex_table,
    markdown_table,
    paper_table,
    summary,
    volume_bias,
)
from segcal.types import Array, InputError

FORMAT = 2
"""Version of the saved form: 2 adds the tables of `_FURTHER`, without which results of version 1 are read."""

_TABLES = {"frame": "images.csv", "patch_frame": "patches.csv", "pooled_frame": "pooled.csv"}
_FURTHER = {
    "case_frame": "cases.csv",
    "curve_frame": "curves.csv",
    "sensitivity_frame": "bins.csv",
    "volume_frame": "volumes.csv",
}
_SIZES = "sizes.csv"
_FLOOR = "floor"
_SUFFIXES = (".csv", ".parquet", ".json", ".tex", ".md")
_NAMES = dict.fromkeys(("case", "group", "method", "region", "metric", "origin", "label"), str)

_VALUES = ("value", "low", "high", "low_edge", "high_edge", "confidence", "ece", "predicted")


@dataclass(frozen=True)
class Results:
    """The outcome of `segcal.evaluation.run`.

    Attributes:
        frame: One row per case, method, region and metric; values are fractions, NaN where the region is empty.
        patch_frame: The same for each Local patch, with its place.
        pooled_frame: Figures over all pixels of all cases, with bootstrap intervals over images.
        settings: How it was measured.
        case_frame: The cases and their groups.
        curve_frame: Reliability diagrams over all pixels of all cases.
        sensitivity_frame: Pooled ECE for other numbers of bins.
        volume_frame: Expected and true volume of each class in each case.
        size_frame: Local-Avg and Local-Max for further sizes of the patches, where they were measured.
        redrawn: The same with labels drawn from each method's own probabilities, where the floor was measured.
    """

    frame: pd.DataFrame
    patch_frame: pd.DataFrame
    pooled_frame: pd.DataFrame
    settings: Mapping[str, Any]
    case_frame: pd.DataFrame | None = None
    curve_frame: pd.DataFrame | None = None
    sensitivity_frame: pd.DataFrame | None = None
    volume_frame: pd.DataFrame | None = None
    size_frame: pd.DataFrame | None = None
    redrawn: Results | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods compared, in the order given."""
        return tuple(self.settings["methods"])

    @property
    def baseline(self) -> str:
        """What the other methods are to improve on: the scores as they are, else the first method."""
        return str(self.settings.get("baseline", "UC" if "UC" in self.methods else self.methods[0]))

    def to_frame(self) -> pd.DataFrame:
        """Columns `case method region metric value pixels`, one row per case, method, region and metric."""
        return self.frame.copy()

    def patches(self) -> pd.DataFrame:
        """The rows of each Local patch: columns `case method patch origin metric value pixels`."""
        return self.patch_frame.copy()

    def pooled(self) -> pd.DataFrame:
        """Figures over all pixels together: columns `method region metric value low high images pixels`.

        The metrics of `to_frame`, those of `segcal.functional.decomposition` and `ece-smooth`. `low` and `high` bound
        the 95 % interval of a bootstrap over images, or over groups where there are any. ACE and smooth ECE have none:
        they depend on all pixels at once, and what is kept of each image does not hold them.
        """
        return self.pooled_frame.copy()

    def cases(self) -> pd.DataFrame:
        """The cases in order: columns `case group`; the group is "" where there is none."""
        if self.case_frame is None:
            return pd.DataFrame({"case": list(dict.fromkeys(self.frame["case"])), "group": ""})
        return self.case_frame.copy()

    def curves(self) -> pd.DataFrame:
        """Reliability diagrams over all pixels: a row for each method, region, label and bin.

        Columns `method region label bin low_edge high_edge count hit confidence low high`. The label is "" for all
        pixels and else the class predicted; `hit` and `confidence` are sums, and `low` and `high` bound the 95 %
        bootstrap interval of the accuracy `hit / count`.
        """
        return self._further("curve_frame")

    def sensitivity(self) -> pd.DataFrame:
        """Pooled ECE for 5 to 100 bins: columns `method region bins ece`."""
        return self._further("sensitivity_frame")

    def volumes(self) -> pd.DataFrame:
        """Volumes of each class over all labelled pixels of each case: columns `case method label predicted true`.

        `predicted` is the sum of the class's probability, `true` the number of its pixels; calibrated probabilities
        give the right volume on average.
        """
        return self._further("volume_frame")

    def patch_sizes(self) -> pd.DataFrame:
        """Local-Avg and Local-Max for further sizes: columns `case method size region metric value pixels`."""
        if self.size_frame is None:
            raise InputError("no further patch sizes were measured; evaluate with patch_sizes (--patch-sizes 24 48 72)")
        return self.size_frame.copy()

    def floor(self) -> pd.DataFrame:
        """What each method would score if it were perfectly calibrated; the columns of `to_frame`.

        The labels were drawn from the method's own probabilities, and scored in the same regions, patches and bins.
        """
        return self._measured_floor().to_frame()

    def skipped(self) -> dict[str, int]:
        """How many regions and patches had no pixel, and so no value, by region."""
        first = self.frame[(self.frame.method == self.methods[0]) & (self.frame.metric == "ece")]
        counts = {region: int((rows.pixels == 0).sum()) for region, rows in first.groupby("region", sort=False)}
        patches = self.patch_frame
        if len(patches):
            patches = patches[(patches.method == self.methods[0]) & (patches.metric == "ece")]
            counts["patches"] = int((patches.pixels == 0).sum())
        return {str(region): count for region, count in counts.items()}

    def summary(self) -> pd.DataFrame:
        """Means over images with intervals: columns `method region metric mean std low high count floor`.

        As in the paper's table, Local-Avg is over patches. `low` and `high` bound the 95 % interval of the mean from a
        bootstrap over images or groups; `floor` is the mean of the floor, NaN where that was not measured.
        """
        found = summary(self.frame, self.patch_frame, self._drawing())
        if self.redrawn is None:
            return found.assign(floor=np.nan)
        keys = ["method", "region", "metric"]
        floor = summary(self.redrawn.frame, self.redrawn.patch_frame, self._drawing())
        return found.merge(floor[[*keys, "mean"]].rename(columns={"mean": "floor"}), on=keys, how="left")

    def volume_bias(self) -> pd.DataFrame:
        """How far expected volumes are off over all cases: columns `method label predicted true bias low high`.

        `bias` is predicted / true - 1, and `low` and `high` bound its 95 % bootstrap interval.
        """
        return volume_bias(self.volumes(), self._drawing())

    @property
    def presentation(self) -> Presentation:
        """The choice of reference, test and average that tables, page and figures share."""
        return Presentation.saved_in(self.settings)

    def presented(self, presentation: Presentation, *, dataset: str | None = None) -> Results:
        """The same results with this choice, which is saved with them; `dataset` is the name shown on the page."""
        chosen = {"presentation": asdict(presentation.checked(self.methods))}
        named = {} if dataset is None else {"dataset": dataset}
        return replace(self, settings={**self.settings, **chosen, **named})

    def table(
        self,
        reference: str | None = None,
        *,
        test: str | None = None,
        average: str | None = None,
        floor: bool = False,
    ) -> PaperTable:
        """The paper's table; marks where `reference` is significantly better than another method.

        Reference, test and average are explained in `segcal.tables.Presentation`. Those not given are the ones saved
        with the results; by default no reference, the Mann-Whitney U test and means over images.

        Args:
            reference: The method that the others are tested against.
            test: "mann-whitney" (the paper's) or "wilcoxon" (paired).
            average: "images" (the paper's) or "pixels".
            floor: Whether to show below each method what it would score if it were perfectly calibrated.
        """
        chosen = self.presentation.with_changes(reference, test, average).checked(self.methods)
        return paper_table(
            self._samples(),
            self.methods,
            chosen,
            tested=image_means(self.frame, self._drawing()) if chosen.test == "wilcoxon" else None,
            floors=self._measured_floor()._samples() if floor else None,
            pooled=self._pooled_values() if chosen.average == "pixels" else None,
            titles=method_titles(self.methods),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the patches, as JSON can hold it: settings, counts, and each table as a list of rows."""
        tables = {"images": self.frame, "pooled": self.pooled_frame, "cases": self.cases()}
        later = {"curves": self.curve_frame, "bins": self.sensitivity_frame, "volumes": self.volume_frame}
        content: dict[str, Any] = {"settings": dict(self.settings), "skipped": self.skipped()}
        content |= {name: _rows(table) for name, table in (tables | later).items() if table is not None}
        return content if self.redrawn is None else {**content, "floor": self.redrawn.to_dict()}

    def export(
        self,
        path: str | Path,
        reference: str | None = None,
        *,
        test: str | None = None,
        average: str | None = None,
        floor: bool = False,
    ) -> None:
        """Write one file, of the kind that its name ends in.

        .csv and .parquet hold the rows of `to_frame`, .json what `to_dict` gives, .tex and .md the paper's table.
        """
        suffix = check_suffix(path)
        if suffix == ".parquet":
            _need_pyarrow()
        table = self.table(reference, test=test, average=average, floor=floor) if suffix in (".tex", ".md") else None
        with staged_file(path) as staging:
            if suffix == ".csv":
                self.frame.to_csv(staging, index=False)
            elif suffix == ".parquet":
                self.frame.to_parquet(staging, index=False, engine="pyarrow")
            elif suffix == ".json":
                write_json(staging, self.to_dict())
            elif table is not None:
                text = latex_table(table) if suffix == ".tex" else markdown_table(table)
                staging.write_text(text, encoding="utf-8")

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: a CSV file for each table, and the settings; the floor in a folder of its own."""
        with staged_folder(path) as folder:
            self._write(folder)

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read results that were saved."""
        folder = Path(path)
        content = read_json(folder / MARKER)
        if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
            raise InputError(f"'{folder}' holds no results; give one that 'segcal evaluate' or 'segcal compare' wrote")
        if content["format"] > FORMAT:
            raise InputError(f"the results in '{folder}' were saved by a newer segcal; update segcal")
        studied = {"size_frame": _SIZES} if content["results"].get("patch_sizes") else {}
        wanted = {**_TABLES, **(_FURTHER if content["format"] > 1 else {}), **studied}
        try:
            tables = {attribute: _read(folder / name) for attribute, name in wanted.items()}
        except (OSError, ValueError) as error:
            raise InputError(f"the results in '{folder}' cannot be read ({error}); evaluate anew") from error
        redrawn = cls.load(folder / _FLOOR) if content["results"].get("floor") else None
        return cls(settings=content["results"], redrawn=redrawn, **tables)

    def _write(self, folder: Path) -> None:
        for attribute, name in {**_TABLES, **_FURTHER, "size_frame": _SIZES}.items():
            if (table := getattr(self, attribute)) is not None:
                table.to_csv(folder / name, index=False)
        complete = all(getattr(self, attribute) is not None for attribute in _FURTHER)
        write_json(folder / MARKER, {"format": FORMAT if complete else 1, "results": dict(self.settings)})
        if self.redrawn is not None:
            (folder / _FLOOR).mkdir()
            self.redrawn._write(folder / _FLOOR)

    def _further(self, attribute: str) -> pd.DataFrame:
        table: pd.DataFrame | None = getattr(self, attribute)
        if table is None:
            raise InputError("these results were saved by an older segcal, without this table; evaluate anew")
        return table.copy()

    def _measured_floor(self) -> Results:
        if self.redrawn is None:
            raise InputError("the floor was not measured; evaluate with floor=True (segcal evaluate --floor)")
        return self.redrawn

    def _drawing(self) -> Drawing:
        cases = self.cases()
        told = {"kind": "interval", "repetitions": "repetitions", "seed": "seed"}
        options = {name: self.settings[key] for name, key in told.items() if key in self.settings}
        return Drawing(cases["case"].tolist(), cases["group"].tolist(), **options)

    def _samples(self) -> dict[tuple[str, str, str], Array]:
        """The values that each mean(std) of the paper's table is taken over."""
        columns = [(metric, region) for metric in CALIBRATION for region in REGIONS]
        columns += [(metric, "all") for metric in QUALITY]
        return {
            (method, *column): values
            for method in self.methods
            for column in columns
            if len(values := self._sample(method, *column))
        }

    def _pooled_values(self) -> dict[tuple[str, str, str], tuple[float, float, float]]:
        rows = self.pooled_frame.itertuples()
        return {(row.method, row.metric, row.region): (row.value, row.low, row.high) for row in rows}  # type: ignore[misc]

    def _sample(self, method: str, metric: str, region: str) -> Array:
        """The values that mean(std) is taken over: patches for Local-Avg, images for all others."""
        local = region == "local-avg"
        rows = self.patch_frame if local else self.frame[self.frame.region == region]
        chosen = rows[(rows.method == method) & (rows.metric == metric)] if len(rows) else rows
        return np.asarray(chosen["value"], dtype=np.float64)


def _read(path: Path) -> pd.DataFrame:
    """A table in which names are what they were ("007", "NA") and values come back to the last bit."""
    values = dict.fromkeys(
        ("value", "low", "high", "confidence", "ece", "predicted"), lambda text: float(text or "nan")
    )
    return pd.read_csv(path, dtype=_NAMES, converters=values, keep_default_na=False)


def check_suffix(path: str | Path) -> str:
    """The end of a file's name, which must be one of a kind that results are written in."""
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"the name of the file must end in one of {', '.join(_SUFFIXES)}, got '{path}'")
    return suffix


def _need_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise InputError("Parquet files need pyarrow, which is not there; pip install segcal[parquet]")


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(table.to_json(orient="records", double_precision=15))  # type: ignore[no-any-return]
