"""`segcal compare`: fit several methods on the same images and measure them on the same others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segcal.cli.console import Answer, warn
from segcal.cli.options import (
    DATA,
    Data,
    FolderFitOptions,
    FolderOptions,
    MeasureOptions,
    OutputOptions,
    ReferenceOptions,
    RunOptions,
    complete_method,
    option,
)
from segcal.progress import Tracked, progress_of

if TYPE_CHECKING:
    from segcal.evaluation.compare import Comparison
    from segcal.tables import Presentation, TextTable


def compare(
    data: Data,
    run_options: RunOptions,
    output_options: OutputOptions,
    folder_options: FolderOptions,
    reference_options: ReferenceOptions,
    measure_options: MeasureOptions,
    fit_options: FolderFitOptions,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Methods; by default the paper's.", metavar="NAME", autocompletion=complete_method),
    ] = None,
    fit_split: Annotated[str | None, option(DATA, "Split to fit on; 'fit' if present.")] = None,
    test_split: Annotated[str | None, option(DATA, "Split to measure on; 'test' if present.")] = None,
) -> Answer | None:
    """Fit several methods on the same images and measure them on others.

    A method that cannot be fitted is reported. With --out, a run can be resumed.

    Example: segcal compare DATA --methods ts,lts,isotonic --out results/
    """
    from segcal.calibrators.progress import fit_with_progress
    from segcal.calibrators.report import with_class_names
    from segcal.cli.results_view import answer_of, save_results
    from segcal.cli.settings import chosen_settings, unfitted
    from segcal.evaluation.compare import PAPER, check_cases, check_names, compare_folder
    from segcal.evaluation.methods import UNCALIBRATED
    from segcal.tables import Presentation

    progress = progress_of("measuring")
    run, device = run_options.prepare("compare", output_options.out, progress)
    names = [name for part in methods or PAPER for name in part.split(",") if name]
    check_names(names)
    chosen = chosen_settings(names, fit_options, seed=measure_options.seed, device=run_options.device)
    folder = folder_options.open(data, fit_split, "fit")
    tested = folder_options.open(data, test_split, "test")
    output_options.check(tested, data, folder_options.labels)
    held_out = fit_options.held_out(data, folder_options, folder)
    made = unfitted(chosen, folder, logits_only=fit_options.logits_only, device=run_options.device)
    calibrators = {name.upper(): calibrator for name, (calibrator, _) in made.items()}
    training = {name.upper(): settings for name, (_, settings) in made.items()}
    presentation = Presentation().with_changes(**vars(reference_options)).checked((UNCALIBRATED, *calibrators))
    protocol = measure_options.protocol(folder)
    with progress_of("checking") as checking:
        check_cases(Tracked(tested, checking), protocol)
    fit = {
        name: partial(fit_with_progress, calibrator, folder, held_out, training[name])
        for name, calibrator in calibrators.items()
    }
    about = [folder.identities(), None if held_out is None else held_out.identities(), training]
    with run:
        with progress:
            comparison = compare_folder(tested, calibrators, fit, about, protocol, run, device=device)
        if comparison is None:
            return None
        compared = {UNCALIBRATED: None, **comparison.calibrators}
        comparison = _presented(comparison, presentation, compared, tested.path.resolve().name)
        save_results(comparison, tested, compared, output_options)
    rows = comparison.records()
    channels = folder.class_names or ()
    warnings = [
        f"{name}: {with_class_names(text, channels, 'channel')}"
        for name, calibrator in comparison.calibrators.items()
        for text in calibrator.fit_report_.warnings
    ]
    failures = [f"{name} could not be fitted: {fit.failure}" for name, fit in comparison.fits.items() if fit.failure]
    return answer_of(
        comparison.results,
        output_options,
        floor=measure_options.floor,
        warnings=(*warnings, *failures),
        further={"methods": rows},
        below=_cost_table(rows),
    )


def _presented(comparison: Comparison, shown: Presentation, compared: Collection[str], dataset: str) -> Comparison:
    """Return a comparison that is shown as asked for, as far as its reference could be fitted."""
    if shown.reference is not None and shown.reference not in compared:
        warn(f"the reference {shown.reference} could not be fitted, so nothing is tested against it")
        shown = replace(shown, reference=None)
    return replace(comparison, results=comparison.results.presented(shown, dataset=dataset))


def _cost_table(rows: Iterable[Mapping[str, Any]]) -> TextTable:
    """Return what each method costs and does to labels."""
    from segcal.tables import TextTable

    return TextTable(
        ("Method", "parameters", "fit, s", "memory, MB", "labels\nchanged", "accuracy,\npoints", "mIoU,\npoints"),
        [_cost_row(row) for row in rows],
        title="Cost, and effect on labels",
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
