"""Keep the measurements that tables are made from, in little space: one file per network.

A saved evaluation holds every metric of every image and patch to 17 digits, which text stores in megabytes. An
archive keeps the metrics that the tables show, as integers in units of 1e-4 for patches and 1e-5 for images: the last
digit that a table prints, or below it. Text files (reports, pooled figures, settings) are kept as they are; fitted
calibrators are left out.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.evaluation.results import FORMAT
from segcal.files import MARKER, staged_file, staged_folder, write_json
from segcal.files.guards import list_files
from segcal.tables import CALIBRATION, QUALITY
from segcal.types import Array, InputError

_TABLES = {"patches.csv": ("patch", 1e4), "images.csv": ("region", 1e5)}
"""Tables stored as integers: the column besides `case` that names a row, and units per 1."""
_TEXT = {".json", ".csv"}
_MISSING = np.iinfo(np.int32).min


def pack(folder: str | Path, path: str | Path) -> None:
    """Write the measurements below `folder` into one archive."""
    root = Path(folder)
    with staged_file(path) as staging, zipfile.ZipFile(staging, "w", zipfile.ZIP_LZMA) as archive:
        for file in sorted(p for p in root.rglob("*") if p.suffix in _TEXT and "calibrators" not in p.parts):
            name = file.relative_to(root).as_posix()
            if file.name in _TABLES:
                header, values = _integers(pd.read_csv(file, dtype={"case": str}, keep_default_na=False), file.name)
                archive.writestr(f"{name}.head", json.dumps(header, separators=(",", ":")))
                archive.writestr(f"{name}.i4", _planes(values))
            else:
                archive.writestr(name, file.read_bytes())


def unpack(path: str | Path, folder: str | Path) -> None:
    """Write what an archive holds as the folder that it was packed from."""
    with zipfile.ZipFile(path) as archive, staged_folder(folder) as staging:
        averages: dict[Path, pd.DataFrame] = {}
        for name in sorted(archive.namelist()):
            target = (staging / name).resolve()
            if not target.is_relative_to(staging.resolve()):
                raise InputError(f"'{path}' holds '{name}', which points outside the folder; use another archive")
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".head"):
                header = json.loads(archive.read(name))
                table = _table(header, archive.read(name.removesuffix(".head") + ".i4"))
                table.to_csv(target.with_suffix(""), index=False)
                if header["row"] == "patch":
                    averages[target.with_name("images.csv")] = _averages(table)
            elif not name.endswith(".i4"):
                target.write_bytes(archive.read(name))
        for path_of_images, local in averages.items():
            rows = pd.read_csv(path_of_images, dtype={"case": str}, keep_default_na=False)
            pd.concat([rows, local], ignore_index=True).to_csv(path_of_images, index=False)
        for marker in sorted(staging.rglob(MARKER), key=lambda path: -len(path.parts)):  # inner ones first
            _sign(marker)


def _sign(marker: Path) -> None:
    """List the checksums of the tables of results, whose last digits are not those that were saved."""
    content = json.loads(marker.read_bytes())
    if "results" in content:
        write_json(marker, {**content, "format": FORMAT})
        list_files(marker.parent)


def _averages(patches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of Local-Avg, which archives do not hold: means over the patches of each image."""
    kept = patches[patches.pixels > 0]
    means = kept.groupby(["case", "method", "metric"], sort=False).agg(
        value=("value", "mean"), pixels=("pixels", "sum")
    )
    return means.reset_index().assign(region="local-avg")[["case", "method", "region", "metric", "value", "pixels"]]


def _integers(table: pd.DataFrame, kind: str) -> tuple[dict[str, Any], Array]:
    """The rows of a table as integers `[method and metric, case and row]`, with the names of both axes."""
    row, unit = _TABLES[kind]
    wanted = table.metric.isin(CALIBRATION)
    if row == "region":
        wanted &= table.region != "local-avg"  # tables take Local-Avg over the patches
        wanted |= table.metric.isin(QUALITY) & table.region.isin(("all", "boundary"))
    numbers = table[wanted].assign(value=pd.to_numeric(table["value"], errors="coerce") * unit)
    names = list(numbers[["method", "metric"]].drop_duplicates().itertuples(index=False, name=None))
    rows = numbers[["case", row, "pixels"]].drop_duplicates(["case", row])
    wide = numbers.set_index(["case", row, "method", "metric"])["value"].unstack(["method", "metric"])
    wide = wide.reindex(pd.MultiIndex.from_frame(rows[["case", row]]))[names]
    values = np.where(wide.isna(), _MISSING, wide.fillna(0).round()).astype(np.int32).T
    header = {"row": row, "unit": unit, "columns": names, **{c: rows[c].tolist() for c in ("case", row, "pixels")}}
    return header, values


def _planes(values: Array) -> bytes:
    """Bytes of equal significance together, which compress better."""
    return np.ascontiguousarray(values, dtype="<i4").view(np.uint8).reshape(-1, 4).T.tobytes()


def _table(header: dict[str, Any], content: bytes) -> pd.DataFrame:
    row, columns = header["row"], header["columns"]
    values = np.frombuffer(content, np.uint8).reshape(4, -1).T.copy().view("<i4").reshape(len(columns), -1)
    numbers = np.where(values == _MISSING, np.nan, values / header["unit"])
    frames = []
    for (method, metric), column in zip(columns, numbers, strict=True):
        names = {"case": header["case"], "method": method, row: header[row]}
        origin = {"origin": ""} if row == "patch" else {}
        frames.append(pd.DataFrame({**names, **origin, "metric": metric, "value": column, "pixels": header["pixels"]}))
    return pd.concat(frames, ignore_index=True)
