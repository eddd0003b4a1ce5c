"""`segcal evaluate`: measure the calibration of a folder of cases, before and after."""

from __future__ import annotations

from functools import partial

from segcal.cli.console import Tracked, progress_of, say_json
from segcal.cli.engine import EngineAddress, EngineName
from segcal.cli.options import (
    AsJson,
    Data,
    Device,
    FolderOptions,
    MeasureOptions,
    PageOptions,
    ReferenceOptions,
    SavedCalibrators,
    Split,
)


def evaluate(
    data: Data,
    page_options: PageOptions,
    folder_options: FolderOptions,
    reference_options: ReferenceOptions,
    measure_options: MeasureOptions,
    calibrators: SavedCalibrators = None,
    split: Split = None,
    device: Device = "auto",
    engine: EngineName = None,
    address: EngineAddress = None,
    as_json: AsJson = False,
) -> None:
    """Measure the calibration of scores and of saved calibrators, by region.

    Uses the split "test" of splits.json if there is one, else all cases. With --out, an interrupted run can be resumed.

    Example: segcal evaluate DATA --calibrators ts/ --reference TS --out results/ --page page.html
    """
    from segcal.cli.results_view import print_summary, say_rest, warn_of
    from segcal.cli.steps import check_outputs, keep, load_all, open_at, protocol_of
    from segcal.engines import Run, engine_of
    from segcal.evaluation.compare import UNCALIBRATED
    from segcal.evaluation.folders import evaluate_folder
    from segcal.tables import Presentation
    from segcal.training.processes import choose_device

    mapper = engine_of(engine, address)
    folder = open_at(data, folder_options, split, "test")
    check_outputs(folder, page_options, data, folder_options.labels, *(calibrators or []))
    place = choose_device(device)
    compared = {UNCALIBRATED: None, **{name: one.to(place) for name, one in load_all(calibrators or []).items()}}
    shown = Presentation().with_changes(reference_options.reference, reference_options.test, reference_options.average)
    shown = shown.checked(tuple(compared))  # now, not after an hour of measuring
    protocol = protocol_of(folder, measure_options)
    progress = progress_of("measuring")
    with Run("evaluate", page_options.out, mapper, partial(Tracked, progress=progress)) as run:
        with progress:
            results = evaluate_folder(folder, compared, protocol, run)
        if results is None:
            return
        results = results.presented(shown, dataset=folder.path.resolve().name)
        keep(results, folder, compared, page_options)
    warn_of(results)
    if as_json:
        say_json(results.to_dict())
        return
    print_summary(results, floor=measure_options.floor)
    say_rest(page_options.out, page_options.page)
