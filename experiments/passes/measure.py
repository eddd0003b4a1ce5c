"""Fit and measure one method on one task; what is there is not done again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd

from experiments.fitting import count_changes
from experiments.passes.sets import FREE, PLAIN, POOL, SETS, SINGLE
from experiments.passes.tasks import Task
from segcal import Case, create, evaluate
from segcal.calibrators import Calibrator
from segcal.files import staged_file, write_json
from segcal.training.processes import choose_device
from segcal.types import InputError

REPORT, ROWS = "report.json", "rows.csv.gz"
_REPETITIONS = 2  # intervals are taken over all splits, when tables are made


def measure(task: Task, method: str, out: Path, device: str = "auto") -> None:
    """Fit on the cases to fit on, measure the others, and write one row per case, region and metric."""
    folder = out / "measured" / task.data.replace(", ", "-to-") / str(task.number) / method.replace(" ", "-")
    if (folder / REPORT).exists():
        return
    dims = task.fit[0].logits.ndim - 1
    views = SETS[dims][method.removeprefix(POOL).removeprefix(FREE)] if method.startswith(POOL) else ()
    fit = list(task.single) if method.endswith(SINGLE) else task.with_passes(task.fit, views)
    test = task.with_passes(task.test, views)
    started = perf_counter()
    calibrator = _fitted(method, fit, dict(task.about), dims, device)
    ready = perf_counter()
    results = evaluate(test, {method: calibrator}, **task.about, patches=0, repetitions=_REPETITIONS)
    changed = 0 if calibrator is None else count_changes(test, {method: calibrator})[method][0]
    groups = {case.name: case.group or case.name for case in test}
    rows = results.to_frame().query("region in ('all', 'boundary')")
    keys: dict[str, Any] = {"part": task.data, "split": task.number, "images": len(fit), "changed": changed}
    keys["seconds"] = ready - started
    frame = rows.assign(**keys, group=rows["case"].map(groups))
    folder.mkdir(parents=True, exist_ok=True)
    with staged_file(folder / ROWS) as file:
        frame.to_csv(file, index=False, compression="gzip")
    report = {} if calibrator is None else calibrator.fit_report_.details
    with staged_file(folder / REPORT) as file:  # last: its presence says that all is done
        write_json(
            file, {"method": method, **keys, **{name: report.get(name) for name in ("chosen", "why", "weights")}}
        )
    nll = frame.query("metric == 'nll' and region == 'all'")["value"].mean()
    print(f"{task.data} {task.number}, {method}: {ready - started:.1f} s, NLL {nll:.4f}, moved {changed:,}", flush=True)


def _fitted(method: str, cases: Sequence[Case], about: dict[str, Any], dims: int, device: str) -> Calibrator | None:
    name = "pool" if method.startswith(POOL) else PLAIN[method.removesuffix(SINGLE)]
    if name is None:
        return None
    own: dict[str, Any] = {} if name == "ts" else {"spatial_dims": dims}
    if FREE in method:
        own["free_labels"] = True
    return create(name, **about, **own).to(choose_device(device)).fit(cases)


def gathered(out: Path) -> pd.DataFrame:
    """Return all rows that are there."""
    paths = sorted((out / "measured").glob(f"*/*/*/{REPORT}"))
    if not paths:
        raise InputError(f"'{out}' holds nothing measured; run `python -m experiments.passes measure` first")
    return pd.concat([pd.read_csv(path.with_name(ROWS)) for path in paths], ignore_index=True)
