"""The results of an evaluation: one row per case, method, region and metric, and everything derived from the rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from segcal.calibrators import method_titles
from segcal.evaluation.limits import limits_table
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.saved import TABLES, check_settings, read_settings, read_tables, table_records, write_table
from segcal.files import MARKER, signed_file, staged_folder, write_json
from segcal.files.guards import list_files, listed_files
from segcal.functional.catalogue import CALIBRATION, CATALOGUE, QUALITY
from segcal.regions import in_table_order
from segcal.statistics import TESTS, Drawing
from segcal.tables import (
    PaperTable,
    Presentation,
    TextTable,
    averaged_rows,
    image_means,
    latex_table,
    markdown_table,
    mean_quality,
    paper_table,
    structure_table,
    summary,
    surface_table,
    volume_bias,
)
from segcal.text import printable
from segcal.types import Array, InputError, public

FORMAT = 2
"""Version of the saved format."""

_WHERE_MEASURED = ("size_frame", "surface_frame", "limits_frame")
"""Tables that only some results have."""
_FLOOR = "floor"
_CHANNELS = "channels"
_SUFFIXES = (".csv", ".parquet", ".json", ".tex", ".md")
_PAPER = (*CALIBRATION, *QUALITY)
_MAIN_METRICS = ("ece", "nll", "brier", "accuracy", "miou")


@public
@dataclass(frozen=True, repr=False)
class Results:
    """The results of `segcal.evaluate`.

    The frames are what the methods return copies of: `frame` those of `to_frame`, `patch_frame` those of `patches`, and
    so on. Values are fractions, NaN where a region is empty.

    Attributes:
        settings: How it was measured.
        limits_frame: What temperatures chosen with the labels would reach; None if that was not measured.
        redrawn: The results with labels drawn from each method's own probabilities; None without the floor.
        channels: The results of each channel by name, if these are the mean over several sigmoid channels.
    """

    frame: pd.DataFrame
    patch_frame: pd.DataFrame
    pooled_frame: pd.DataFrame
    settings: Mapping[str, Any]
    case_frame: pd.DataFrame
    curve_frame: pd.DataFrame
    sensitivity_frame: pd.DataFrame
    volume_frame: pd.DataFrame
    size_frame: pd.DataFrame | None = None
    surface_frame: pd.DataFrame | None = None
    limits_frame: pd.DataFrame | None = None
    redrawn: Self | None = None
    channels: Mapping[str, Self] = field(default_factory=dict)

    def __repr__(self) -> str:
        """A small table: the main metrics of each method in *All*, over all pixels."""
        values = self.pooled_frame.query("region == 'all'").set_index(["method", "metric"])["value"]
        shown = [CATALOGUE[name] for name in _MAIN_METRICS if name in set(self.pooled_frame["metric"])]
        rows = []
        for method in self.methods:
            found = [values.get((method, metric.name), np.nan) for metric in shown]
            rows.append((method, *(metric.number(value) for metric, value in zip(shown, found, strict=True))))
        cases = len(self.cases())
        over = f", mean over {len(self.channels)} channels" if self.channels else ""
        title = f"Results of {cases} case{'s' if cases != 1 else ''}, region All, pooled over all pixels{over}:"
        return str(TextTable(("", *(metric.heading for metric in shown)), rows, title))

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order given."""
        return tuple(self.settings["methods"])

    @property
    def baseline(self) -> str:
        """Name of the method that the others should improve on: the uncalibrated scores, else the first method."""
        return str(self.settings.get("baseline", "UC" if "UC" in self.methods else self.methods[0]))

    @property
    def is_whole(self) -> bool:
        """True if there is no background, so that *All* holds every labelled pixel."""
        return self.settings.get("background", 0) is None

    @property
    def regions(self) -> tuple[str, ...]:
        """Names of the regions, in the order of tables."""
        return tuple(in_table_order([str(region) for region in dict.fromkeys(self.frame["region"])]))

    def to_frame(self) -> pd.DataFrame:
        """Return the columns `case method region metric value pixels`, one row per case, method, region and metric."""
        return self.frame.copy()

    def patches(self) -> pd.DataFrame:
        """Return the rows of the Local patches: columns `case method patch origin metric value pixels`."""
        return self.patch_frame.copy()

    def pooled(self) -> pd.DataFrame:
        """Return metrics over all pixels together: columns `method region metric value low high images pixels`.

        These are the metrics of `to_frame`, those of `segcal.evidence.readings.FURTHER` and `ece-smooth`. `low` and
        `high` bound the 95 % bootstrap interval over images, or over groups if there are any. ACE and smooth ECE have
        no interval: they depend on all pixels at once, which the evidence kept for each image does not hold.
        """
        return self.pooled_frame.copy()

    def cases(self) -> pd.DataFrame:
        """Return the cases in order: columns `case group`; the group is "" if there is none."""
        return self.case_frame.copy()

    def curves(self) -> pd.DataFrame:
        """Return reliability diagrams over all pixels: one row per method, region, label and bin.

        Columns `method region label bin low_edge high_edge count hit confidence low high`. The label is the predicted
        class, or "" for all pixels; `hit` and `confidence` are sums, and `low` and `high` bound the 95 % bootstrap
        interval of the accuracy `hit / count`.
        """
        return self.curve_frame.copy()

    def sensitivity(self) -> pd.DataFrame:
        """Return pooled ECE for 5 to 100 bins: columns `method region bins ece`."""
        return self.sensitivity_frame.copy()

    def volumes(self) -> pd.DataFrame:
        """Return the volume of each class over all labelled pixels: columns `case method label predicted true`.

        `predicted` is the sum of the probability of the class, `true` the number of its pixels; calibrated
        probabilities give the correct volume on average.
        """
        return self.volume_frame.copy()

    def patch_sizes(self) -> pd.DataFrame:
        """Return Local-Avg and Local-Max for further sizes: columns `case method size region metric value pixels`."""
        if self.size_frame is None:
            raise InputError("no further patch sizes were measured; evaluate with patch_sizes (--patch-sizes 24 48 72)")
        return self.size_frame.copy()

    def surfaces(self) -> pd.DataFrame:
        """Return the segmentation quality of each structure: columns `case method label metric value`.

        The metrics are `dice`, `surface-dice` and, in the unit of the spacing, `asd`, `md95`, `hd95` and `md`: average
        surface distance, 95 % of both directions together and of the larger one, and maximum. The background is left
        out. A structure that neither the prediction nor the truth has is left out; one that
        only one of them has scores a Dice of 0 and has no distances (NaN).
        """
        if self.surface_frame is None:
            raise InputError("segmentation quality was not measured; evaluate with surfaces=True (--surfaces)")
        return self.surface_frame.copy()

    def mean_surfaces(self) -> pd.DataFrame:
        """Return the means of `surfaces`, over structures and then over cases.

        Columns `method metric mean std cases undefined`; `undefined` counts structures of cases without a distance.
        """
        return mean_quality(self.surfaces(), "method", self.methods)

    def surface_table(self, method: str | None = None) -> TextTable:
        """Return `mean_surfaces` as a table; of one method, the means over cases of each structure."""
        means = self.mean_surfaces()
        if method is not None:
            own = self.surfaces().query("method == @method")
            means = mean_quality(own, "label", [*dict.fromkeys(own["label"])])
        unit, tolerance = self.settings.get("surface_unit", ""), Protocol.of(self.settings).surface_tolerance
        return surface_table(means, unit, tolerance, self.settings.get("surface_background", ""), method)

    def structure_table(self, methods: Sequence[str] | None = None) -> TextTable:
        """Return ECE and volume of each class or channel as a table, with Dice and ASD where they were measured."""
        about = {"unit": self.settings.get("surface_unit", ""), "channels": bool(self.channels)}
        return structure_table(self.curves(), self.volume_bias(), self.surface_frame, methods or self.methods, **about)

    def floor(self) -> pd.DataFrame:
        """Return what each method would score if it were perfectly calibrated, in the columns of `to_frame`.

        The labels are drawn from the method's own probabilities and scored in the same regions, patches and bins.
        """
        return self._measured_floor().to_frame()

    def skipped(self) -> dict[str, int]:
        """Return the number of empty regions and patches, which have no value, by region."""
        first = self.frame[(self.frame.method == self.methods[0]) & (self.frame.metric == "ece")]
        counts = {region: int((rows.pixels == 0).sum()) for region, rows in first.groupby("region", sort=False)}
        patches = self.patch_frame
        if len(patches):
            patches = patches[(patches.method == self.methods[0]) & (patches.metric == "ece")]
            counts["patches"] = int((patches.pixels == 0).sum())
        return {str(region): count for region, count in counts.items()}

    def summary(self) -> pd.DataFrame:
        """Return means over images with intervals: columns `method region metric mean std low high count floor`.

        As in the paper's table, Local-Avg is over patches. `low` and `high` bound the 95 % bootstrap interval of the
        mean over images or groups; `floor` is the mean of the floor, NaN if it was not measured.
        """
        found = summary(self.frame, self.patch_frame, self.drawing())
        if self.redrawn is None:
            return found.assign(floor=np.nan)
        keys = ["method", "region", "metric"]
        floor = summary(self.redrawn.frame, self.redrawn.patch_frame, self.drawing())
        return found.merge(floor[[*keys, "mean"]].rename(columns={"mean": "floor"}), on=keys, how="left")

    def volume_bias(self) -> pd.DataFrame:
        """Return the bias of expected volumes over all cases: columns `method label predicted true bias low high`.

        `bias` is predicted / true - 1; `low` and `high` bound its 95 % bootstrap interval.
        """
        return volume_bias(self.volumes(), self.drawing())

    @property
    def presentation(self) -> Presentation:
        """The choice of reference, test and average that tables, page and figures share."""
        return Presentation.saved_in(self.settings)

    def presented(self, presentation: Presentation, *, dataset: str | None = None) -> Results:
        """Return the same results with this choice, saved with them; `dataset` is the name shown on the page."""
        chosen = {"presentation": asdict(presentation.checked(self.methods))}
        named = {} if dataset is None else {"dataset": printable(dataset)}
        channels = {name: own.presented(presentation, dataset=dataset) for name, own in self.channels.items()}
        return replace(self, settings={**self.settings, **chosen, **named}, channels=channels)

    def table(
        self,
        reference: str | None = None,
        *,
        test: str | None = None,
        average: str | None = None,
        floor: bool = False,
    ) -> PaperTable:
        """Return the paper's table, which marks where `reference` is significantly better than another method.

        Reference, test and average are explained in `segcal.tables.Presentation`. Those not given are the ones saved
        with the results; by default no reference, the paired Wilcoxon test and means over images.

        Args:
            reference: Method that the others are tested against.
            test: "wilcoxon" (paired over images or groups) or "paper" (Mann-Whitney U).
            average: "images" (the paper's) or "pixels".
            floor: Whether to show below each method what it would score if it were perfectly calibrated.
        """
        chosen = self.presentation.with_changes(reference, test, average).checked(self.methods)
        return paper_table(
            self._samples(),
            self.methods,
            chosen,
            tested=image_means(self.frame, self.drawing()) if TESTS[chosen.test].paired else None,
            floors=self._measured_floor()._samples() if floor else None,
            pooled=self._pooled_values() if chosen.average == "pixels" else None,
            titles=method_titles(self.methods),
            warnings=self.settings.get("warnings", ()),
            whole=self.is_whole,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the patches in values that JSON can hold: settings, counts, tables as rows."""
        tables = {Path(table.file).stem: getattr(self, name) for name, table in TABLES.items()}
        tables["patches"] = None
        content: dict[str, Any] = {"settings": dict(self.settings), "skipped": self.skipped()}
        content |= {name: table_records(table) for name, table in tables.items() if table is not None}
        if self.channels:
            content["channels"] = {name: own.to_dict() for name, own in self.channels.items()}
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
        """Write one file in the format of its suffix.

        .csv and .parquet hold the rows of `to_frame`, .json the content of `to_dict`, .tex and .md the paper's table,
        the classes and, if they were measured, the segmentation (`mean_surfaces`) and what limits calibration.
        """
        suffix = check_suffix(path)
        table = self.table(reference, test=test, average=average, floor=floor) if suffix in (".tex", ".md") else None
        with signed_file(path) as staging:
            if suffix == ".csv":
                write_table(self.frame, staging)
            elif suffix == ".parquet":
                self.frame.to_parquet(staging, index=False, engine="pyarrow")
            elif suffix == ".json":
                write_json(staging, self.to_dict())
            elif table is not None:
                written = latex_table if suffix == ".tex" else markdown_table
                staging.write_text(written(table, self._further_tables()), encoding="utf-8")

    def _further_tables(self) -> list[TextTable]:
        found = [] if self.surface_frame is None else [self.surface_table()]
        found.append(self.structure_table())
        return found if self.limits_frame is None else [*found, limits_table(self.limits_frame)]

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: a CSV file for each table, and the settings; the floor in its own folder."""
        with staged_folder(path) as folder:
            self._write(folder)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read saved results."""
        return cls._load(Path(path))

    @classmethod
    def _load(cls, folder: Path, parent: str | None = None) -> Self:
        """Read results, or those inside them: the floor or a channel."""
        origin = "one that 'segcal evaluate' or 'segcal compare' wrote"
        settings = read_settings(folder, "results", FORMAT, origin, "evaluate again")
        check_settings(settings, folder)
        names = settings.get("channels", [])
        if parent is not None and (len(names) > 1 or (parent == _FLOOR and settings.get("floor"))):
            raise InputError(f"the results in '{folder}' must not hold further ones, got some; evaluate again")
        listed = listed_files(folder) or {}
        wanted = {name: table for name, table in TABLES.items() if name not in _WHERE_MEASURED or table.file in listed}
        tables = read_tables(folder, wanted, settings["methods"], "evaluate again")
        if set(tables["case_frame"]["case"]) != set(tables["frame"]["case"]):
            raise InputError(f"the tables in '{folder}' must be of the same cases, got others; evaluate again")
        redrawn = cls._load(folder / _FLOOR, _FLOOR) if settings.get("floor") else None
        several = enumerate(names) if len(names) > 1 else ()  # one channel has no results but these
        channels = {name: cls._load(folder / _CHANNELS / str(k), _CHANNELS) for k, name in several}
        found = cls(settings=settings, redrawn=redrawn, channels=channels, **tables)
        if redrawn is not None and not found._samples().keys() <= redrawn._samples().keys():
            raise InputError(f"the floor in '{folder}' must have every value of the results, got fewer; evaluate again")
        return found

    def _write(self, folder: Path) -> None:
        for attribute, table in TABLES.items():
            if (rows := getattr(self, attribute)) is not None:
                write_table(rows, folder / table.file)
        write_json(folder / MARKER, {"format": FORMAT, "results": dict(self.settings)})
        if self.redrawn is not None:
            (folder / _FLOOR).mkdir()
            self.redrawn._write(folder / _FLOOR)
        for k, own in enumerate(self.channels.values()):
            (folder / _CHANNELS / str(k)).mkdir(parents=True)
            own._write(folder / _CHANNELS / str(k))
        list_files(folder)

    def _measured_floor(self) -> Self:
        if self.redrawn is None:
            raise InputError("the floor was not measured; evaluate with floor=True (segcal evaluate --floor)")
        return self.redrawn

    def drawing(self) -> Drawing:
        """Return the bootstrap over the cases or their groups."""
        keys = {"kind": "interval", "repetitions": "repetitions", "seed": "seed"}  # all that joined results have
        options = {name: self.settings[key] for name, key in keys.items() if key in self.settings}
        return Drawing(self.case_frame["case"].tolist(), self.case_frame["group"].tolist(), **options)

    def _samples(self) -> dict[tuple[str, str, str], Array]:
        """Return the values that each mean(std) of the paper's table is taken over."""
        rows, keys = averaged_rows(self.frame, self.patch_frame), ["method", "metric", "region"]
        found = {key: values.to_numpy(np.float64) for key, values in rows.groupby(keys, sort=False)["value"]}
        own = [metric for metric in dict.fromkeys(self.frame["metric"].map(str)) if metric not in CATALOGUE]
        everywhere = {*CALIBRATION, "nll", *own}
        metrics = [(metric, self.regions if metric in everywhere else ("all",)) for metric in (*_PAPER, *own)]
        ordered = product(self.methods, ((metric, region) for metric, regions in metrics for region in regions))
        return {key: found[key] for method, column in ordered if (key := (method, *column)) in found}

    def _pooled_values(self) -> dict[tuple[str, str, str], tuple[float, float, float]]:
        rows = self.pooled_frame.itertuples()
        return {(row.method, row.metric, row.region): (row.value, row.low, row.high) for row in rows}  # type: ignore[misc]


def check_suffix(path: str | Path) -> str:
    """Return the suffix of a file's name; raise unless results can be written in that format."""
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"the name of the file must end in one of {', '.join(_SUFFIXES)}, got '{path}'")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError("Parquet files need pyarrow, which is not installed; pip install segcal[parquet]")
    return suffix
