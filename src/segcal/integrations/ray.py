"""Ray Data: calibrate and measure data sets that live in an object store, on a cluster (`pip install segcal[ray]`).

Both classes are for `Dataset.map_batches`. A row is one image or volume; columns hold arrays without a batch axis, and
images of a batch may differ in size.

    calibrated = dataset.map_batches(
        CalibrateBatches, fn_constructor_kwargs={"calibrator": "lts/"}, batch_size=4, concurrency=2
    )
    settings = {"calibrators": {"UC": None, "LTS": "lts/"}, "protocol": {"num_classes": 11, "patch_size": 72}}
    found = dataset.map_batches(MeasureBatches, fn_constructor_kwargs=settings, batch_size=8, concurrency=2)
    results = measured_results(found.iter_rows(), **settings)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from segcal.calibrators import Calibrator, load
from segcal.evaluation.measure import CaseEvidence, Evaluation
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.evaluation.run import ResultsBuilder
from segcal.regions import chosen_regions
from segcal.types import Array, Case

Batch = dict[str, Array]
Calibrators = Mapping[str, Calibrator | str | Path | None]


class CalibrateBatches:
    """Add a column of calibrated probabilities.

    Args:
        calibrator: A fitted calibrator, or the folder of a saved one, which every worker must be able to read.
        logits: Name of the column of logits `[L, *S]`.
        image: Name of the column of images `[C, *S]`, for methods that use them.
        probabilities: Name of the new column.
        device: Where to compute.
    """

    def __init__(
        self,
        calibrator: Calibrator | str | Path,
        *,
        logits: str = "logits",
        image: str | None = None,
        probabilities: str = "probabilities",
        device: str = "cpu",
    ) -> None:
        self.calibrator = _loaded(calibrator).to(device)
        self.logits, self.image, self.probabilities, self.device = logits, image, probabilities, device

    def __call__(self, batch: Batch) -> Batch:
        """Calibrate a batch."""
        columns = [self.logits] if self.image is None else [self.logits, self.image]
        found = list[Array]()
        for row in zip(*(batch[name] for name in columns), strict=True):
            given = (torch.from_numpy(np.array(values))[None].to(self.device) for values in row)
            with torch.no_grad():
                found.append(self.calibrator.predict_proba(*given)[0].cpu().numpy())
        return {**batch, self.probabilities: _column(found)}


class MeasureBatches:
    """Turn batches of cases into evidence, which `measured_results` merges to the results of one process.

    Rows have the columns `name`, `logits` `[L, *S]`, `labels` `[*S]` and, where they are needed, `image` and `group`.

    Args:
        calibrators: Fitted calibrators, or folders of saved ones, by their name in the tables; None stands for the
            uncalibrated scores.
        protocol: The measuring keywords of `segcal.evaluate`.
    """

    def __init__(self, calibrators: Calibrators, protocol: Mapping[str, Any]) -> None:
        self.evaluation = _evaluation(calibrators, protocol)

    def __call__(self, batch: Batch) -> Batch:
        """Measure a batch; the result is one row per case."""
        found = np.empty(len(batch["name"]), object)
        for k, name in enumerate(batch["name"]):
            image = np.array(batch["image"][k]) if "image" in batch else None
            group = str(batch["group"][k]) if "group" in batch else None
            case = Case(str(name), np.array(batch["logits"][k]), np.array(batch["labels"][k]), image, group=group)
            found[k] = self.evaluation.measure(case).to_bytes()
        return {"found": found}


def measured_results(
    rows: Iterable[Mapping[str, Any]], calibrators: Calibrators, protocol: Mapping[str, Any]
) -> Results:
    """Return the results of all cases, in the order of their names, from the rows of `MeasureBatches`.

    Calibrators and protocol must be those that were measured with.
    """
    builder = ResultsBuilder(_evaluation(calibrators, protocol))
    for case in sorted((CaseEvidence.from_bytes(row["found"]) for row in rows), key=lambda case: case.name):
        builder.add(case)
    return builder.results()


def _evaluation(calibrators: Calibrators, protocol: Mapping[str, Any]) -> Evaluation:
    fitted = {name: None if given is None else _loaded(given) for name, given in calibrators.items()}
    chosen = Protocol(**{"patch_size": 72, **protocol})
    return Evaluation(fitted, chosen, chosen_regions(None))


def _loaded(calibrator: Calibrator | str | Path) -> Calibrator:
    return calibrator if isinstance(calibrator, Calibrator) else load(calibrator)


def _column(values: Sequence[Array]) -> Array:
    """Return arrays as one, or as an array of arrays where their shapes differ."""
    if len({part.shape for part in values}) == 1:
        return np.stack(values)
    column = np.empty(len(values), object)
    for k, part in enumerate(values):
        column[k] = part
    return column
