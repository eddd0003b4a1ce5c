"""`segcal evaluate`: measure the calibration of a folder of cases, before and after."""

from __future__ import annotations

from segcal.cli.console import Answer
from segcal.cli.options import (
    Data,
    FolderOptions,
    MeasureOptions,
    OutputOptions,
    ReferenceOptions,
    RunOptions,
    SavedCalibrators,
    Split,
    load_calibrators,
)
from segcal.progress import progress_of


def evaluate(
    data: Data,
    run_options: RunOptions,
    output_options: OutputOptions,
    folder_options: FolderOptions,
    reference_options: ReferenceOptions,
    measure_options: MeasureOptions,
    calibrators: SavedCalibrators = None,
    split: Split = None,
) -> Answer | None:
    """Measure the calibration of scores and of saved calibrators, by region.

    Uses the split "test" of splits.json if there is one, else all cases. With --out, an interrupted run can be resumed.

    Example: segcal evaluate DATA --calibrators ts/ --reference TS --out results/ --page page.html
    """
    from segcal.cli.results_view import answer_of, save_results
    from segcal.evaluation.methods import UNCALIBRATED
    from segcal.evaluation.run import evaluate_folder
    from segcal.tables import Presentation

    progress = progress_of("measuring")
    run, device = run_options.prepare("evaluate", output_options.out, progress)
    folder = folder_options.open(data, split, "test")
    output_options.check(folder, data, folder_options.labels, *(calibrators or []))
    compared = {UNCALIBRATED: None, **{name: one.to(device) for name, one in load_calibrators(calibrators).items()}}
    presentation = Presentation().with_changes(**vars(reference_options)).checked(tuple(compared))
    protocol = measure_options.protocol(folder)
    with run:
        with progress:
            results = evaluate_folder(folder, compared, protocol, run)
        if results is None:
            return None
        results = results.presented(presentation, dataset=folder.path.resolve().name)
        save_results(results, folder, compared, output_options)
    return answer_of(results, output_options, floor=measure_options.floor)
