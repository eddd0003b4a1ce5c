"""`segcal compare`: fit several methods on the same images and measure them on the same others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segcal.cli.console import OUT, Tracked, progress_of, say_json, warn
from segcal.cli.engine import EngineAddress, EngineName
from segcal.cli.options import (
    DATA,
    AsJson,
    Data,
    FitOptions,
    FolderOptions,
    MeasureOptions,
    PageOptions,
    ReferenceOptions,
    complete_method,
    option,
)

if TYPE_CHECKING:
    from segcal.evaluation.compare import Comparison
    from segcal.tables import Presentation, TerminalTable


def compare(
    data: Data,
    page_options: PageOptions,
    folder_options: FolderOptions,
    reference_options: ReferenceOptions,
    measure_options: MeasureOptions,
    fit_options: FitOptions,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Methods; those of the paper's tables by default.", autocompletion=complete_method),
    ] = None,
    fit_split: Annotated[str | None, option(DATA, "Split to fit on; 'fit' if there is one.")] = None,
    test_split: Annotated[str | None, option(DATA, "Split to measure on; 'test' if there is one.")] = None,
    engine: EngineName = None,
    address: EngineAddress = None,
    as_json: AsJson = False,
) -> None:
    """Fit several methods on the same images and measure them on others, with their costs.

    A method that cannot be fitted is reported, and the others continue. With --out, an interrupted run can be resumed.

    Example: segcal compare DATA --methods ts,lts,isotonic --reference lts --out results/
    """
    from segcal.cli.steps import check_outputs, create_for, fit_with_progress, keep, open_at, protocol_of, validation_of
    from segcal.engines import Run, engine_of
    from segcal.evaluation.compare import PAPER, UNCALIBRATED, check_cases, check_names
    from segcal.evaluation.folders import compare_folder
    from segcal.tables import Presentation
    from segcal.training.processes import choose_device

    mapper = engine_of(engine, address)
    names = [name for part in methods or PAPER for name in part.split(",") if name]
    check_names(names)
    arguments = fit_options.arguments(names, seed=measure_options.seed)
    place = choose_device(fit_options.device)
    folder = open_at(data, folder_options, fit_split, "fit")
    tested = open_at(data, folder_options, test_split, "test")
    check_outputs(tested, page_options, data, folder_options.labels)
    checked = validation_of(data, folder_options, fit_options.validation, folder)
    calibrators = {name.upper(): create_for(name, folder, fit_options, arguments[name][0]) for name in names}
    shown = Presentation().with_changes(reference_options.reference, reference_options.test, reference_options.average)
    shown = shown.checked((UNCALIBRATED, *calibrators))
    protocol = protocol_of(folder, measure_options)
    with progress_of("checking") as progress:
        check_cases(Tracked(tested, progress), protocol)
    training = {name.upper(): fit_settings for name, (_, fit_settings) in arguments.items()}
    fit = {
        name: partial(fit_with_progress, calibrator, folder, checked, training[name])
        for name, calibrator in calibrators.items()
    }
    about = [folder.identities(), None if checked is None else checked.identities(), training]
    progress = progress_of("measuring")
    with Run("compare", page_options.out, mapper, partial(Tracked, progress=progress)) as run:
        with progress:
            comparison = compare_folder(tested, calibrators, fit, about, protocol, run, device=place)
        if comparison is None:
            return
        compared = {UNCALIBRATED: None, **comparison.calibrators}
        comparison = _presented(comparison, shown, compared, tested.path.resolve().name)
        keep(comparison, tested, compared, page_options)
    _print_comparison(comparison, measure_options.floor, page_options.out, as_json, page_options.page)


def _presented(comparison: Comparison, shown: Presentation, compared: Collection[str], dataset: str) -> Comparison:
    """Return a comparison that is shown as asked for, as far as its reference could be fitted."""
    if shown.reference is not None and shown.reference not in compared:
        warn(f"the reference {shown.reference} could not be fitted, so nothing is tested against it")
        shown = replace(shown, reference=None)
    return replace(comparison, results=comparison.results.presented(shown, dataset=dataset))


def _print_comparison(comparison: Comparison, floor: bool, out: Path | None, as_json: bool, page: Path | None) -> None:
    """Print ECE and NLL by region and, below, what each method costs and does to labels; or everything as JSON."""
    from segcal.cli.results_view import print_summary, say_rest, warn_of

    results = comparison.results
    warn_of(results)
    warnings = [f"{name}: {text}" for name, c in comparison.calibrators.items() for text in c.fit_report_.warnings]
    failures = [f"{name} could not be fitted: {fit.failure}" for name, fit in comparison.fits.items() if fit.failure]
    for warning in (*warnings, *failures):
        warn(warning)
    if as_json:
        say_json({**results.to_dict(), "methods": comparison.records()})
        return
    print_summary(results, floor=floor)
    OUT.print(_cost_table(comparison))
    say_rest(out, page)


def _cost_table(comparison: Comparison) -> TerminalTable:
    from segcal.tables import TerminalTable

    rows = [_cost_row(row) for row in comparison.records()]
    return TerminalTable(
        ("method", "parameters", "fit, s", "memory, MB", "labels\nchanged", "accuracy,\npoints", "mIoU,\npoints"),
        rows,
        title="cost, and effect on labels",
        note="memory: growth of the resident memory of this process during the fit; kept: no label can change; "
        "accuracy, mIoU: change against UC, mean over images of All",
    )


def _cost_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["failure"] is not None:
        return (row["method"], "could not be fitted", "", "", "", "", "")
    moves = not row["keeps_labels"]
    return (
        row["method"],
        f"{row['parameters']:,}",
        f"{row['seconds']:.1f}",
        "-" if row["memory"] is None else f"{row['memory'] / 1e6:.0f}",
        f"{row['changed']:.2%}" if moves else "kept",
        f"{100 * row['accuracy']:+.2f}" if moves else "",
        f"{100 * row['miou']:+.2f}" if moves else "",
    )
