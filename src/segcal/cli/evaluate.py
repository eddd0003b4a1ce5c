"""`segcal evaluate`: measure the calibration of a folder of cases, before and after."""

from __future__ import annotations

from functools import partial

from segcal.cli.console import Tracked, progress_of
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
from segcal.cli.sharing import PartOption, say_part, sharing_of


def evaluate(
    data: Data,
    page_options: PageOptions,
    folder_options: FolderOptions,
    reference_options: ReferenceOptions,
    measure_options: MeasureOptions,
    calibrators: SavedCalibrators = None,
    split: Split = None,
    device: Device = "auto",
    part: PartOption = None,
    as_json: AsJson = False,
) -> None:
    """Measure the calibration of scores and of saved calibrators, by region.

    Uses the split "test" of splits.json if there is one, else all cases. With --out, an interrupted run can be resumed.

    Example: segcal evaluate DATA --calibrators ts/ --reference TS --out results/ --page page.html
    """
    asked = dict(locals())
    from segcal.cli.results_view import print_results
    from segcal.cli.steps import check_outputs, keep, load_all, open_at, protocol_of
    from segcal.evaluation.compare import UNCALIBRATED
    from segcal.evaluation.shared import evaluate_folder
    from segcal.parts.work import publishing
    from segcal.tables import Presentation
    from segcal.training.processes import choose_device

    sharing = sharing_of(evaluate, asked, page_options.out)
    folder = open_at(data, folder_options, split, "test")
    check_outputs(folder, page_options, data, folder_options.labels, *(calibrators or []), parts=part is not None)
    place = choose_device(device)
    compared = {UNCALIBRATED: None, **{name: one.to(place) for name, one in load_all(calibrators or []).items()}}
    shown = Presentation().with_changes(reference_options.reference, reference_options.test, reference_options.average)
    shown = shown.checked(tuple(compared))  # now, not after an hour of measuring
    protocol = protocol_of(folder, measure_options)
    with progress_of("measuring") as progress:
        track = partial(Tracked, progress=progress)
        results = evaluate_folder(folder, compared, protocol, sharing, track=track)
    if results is None:
        say_part(sharing, as_json)
        return
    results = results.presented(shown, dataset=folder.path.resolve().name)
    with publishing(sharing):
        keep(results, folder, compared, page_options)
    print_results(results, results.table(floor=measure_options.floor), page_options.out, as_json, page_options.page)
