"""`segcal evaluate`: measure the calibration of a folder of cases, before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import Tracked, progress_of
from segcal.cli.options import (
    AsJson,
    Data,
    Device,
    FolderOptions,
    MeasureOptions,
    PageOptions,
    ReferenceOptions,
    Split,
)


def evaluate(
    data: Data,
    page_options: PageOptions,
    folder_options: FolderOptions,
    reference_options: ReferenceOptions,
    measure_options: MeasureOptions,
    calibrators: Annotated[
        list[Path] | None, typer.Option(help="Folders of saved calibrators, to compare with the scores as they are.")
    ] = None,
    split: Split = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure calibration: the paper's table by region, mean(std), best in bold, with significance.

    Uses the split "test" of splits.json if there is one, else all cases.

    Example: segcal evaluate DATA --calibrators ts/ --reference TS --out results/ --page page.html
    """
    from segcal.cli.results_view import print_results
    from segcal.cli.steps import check_outputs, keep, load_all, open_at, protocol_of
    from segcal.evaluation.compare import UNCALIBRATED
    from segcal.evaluation.run import evaluate as measure
    from segcal.tables import Presentation
    from segcal.training.processes import choose_device

    folder = open_at(data, folder_options, split, "test")
    check_outputs(folder, page_options, data, folder_options.labels, *(calibrators or []))
    place = choose_device(device)
    compared = {UNCALIBRATED: None, **{name: one.to(place) for name, one in load_all(calibrators or []).items()}}
    shown = Presentation().with_changes(reference_options.reference, reference_options.test, reference_options.average)
    shown.checked(tuple(compared))  # now, not after an hour of measuring
    protocol = protocol_of(folder, measure_options)
    with progress_of("measuring") as progress:
        results = measure(Tracked(folder, progress), compared, **protocol)
    results = results.presented(shown, dataset=folder.path.resolve().name)
    keep(results, folder, compared, page_options)
    print_results(results, results.table(floor=measure_options.floor), page_options.out, as_json, page_options.page)
