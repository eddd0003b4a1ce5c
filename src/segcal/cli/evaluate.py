"""`segcal evaluate`: measure the calibration of a folder of cases, before and after."""

from __future__ import annotations

from functools import partial

from segcal.cli.options import (
    Data,
    FolderOptions,
    MeasureOptions,
    OutputOptions,
    ReferenceOptions,
    RunOptions,
    SavedCalibrators,
    Split,
)
from segcal.progress import Tracked, progress_of


def evaluate(
    data: Data,
    run_options: RunOptions,
    output_options: OutputOptions,
    folder_options: FolderOptions,
    reference_options: ReferenceOptions,
    measure_options: MeasureOptions,
    calibrators: SavedCalibrators = None,
    split: Split = None,
) -> None:
    """Measure the calibration of scores and of saved calibrators, by region.

    Uses the split "test" of splits.json if there is one, else all cases. With --out, an interrupted run can be resumed.

    Example: segcal evaluate DATA --calibrators ts/ --reference TS --out results/ --page page.html
    """
    from segcal.cli.results_view import check_outputs, presentation_of, protocol_of, save_results, show_results
    from segcal.cli.steps import load_all, open_at
    from segcal.engines import Run, engine_of
    from segcal.evaluation.methods import UNCALIBRATED
    from segcal.evaluation.run import evaluate_folder
    from segcal.training.processes import choose_device

    engine, device = engine_of(run_options.engine, run_options.address), choose_device(run_options.device)
    folder = open_at(data, folder_options, split, "test")
    check_outputs(folder, output_options, data, folder_options.labels, *(calibrators or []))
    compared = {UNCALIBRATED: None, **{name: one.to(device) for name, one in load_all(calibrators or []).items()}}
    presentation = presentation_of(reference_options, tuple(compared))
    protocol = protocol_of(folder, measure_options)
    progress = progress_of("measuring")
    with Run("evaluate", output_options.out, engine, partial(Tracked, progress=progress)) as run:
        with progress:
            results = evaluate_folder(folder, compared, protocol, run)
        if results is None:
            return
        results = results.presented(presentation, dataset=folder.path.resolve().name)
        save_results(results, folder, compared, output_options)
    show_results(results, output_options, floor=measure_options.floor)
