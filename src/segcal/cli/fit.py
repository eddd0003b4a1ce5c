"""`segcal fit`: fit a calibrator on a folder of cases and save it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from segcal.cli.console import OUT, say, say_json, warn
from segcal.cli.options import OUTPUT, AsJson, Data, FitOptions, FolderOptions, Method, Split, option
from segcal.text import counted

if TYPE_CHECKING:
    from rich.table import Table

    from segcal.calibrators import FitReport


def fit(
    data: Data,
    out: Annotated[Path, option(OUTPUT, "Folder to save the calibrator in.")],
    folder_options: FolderOptions,
    fit_options: FitOptions,
    method: Method = "ts",
    split: Split = None,
    as_json: AsJson = False,
) -> None:
    """Fit a calibrator on a folder of scores and labels, and save it.

    Uses the split "fit" of splits.json if there is one, else all cases. Data-parallel under torchrun.

    Example: segcal fit DATA --method lts --out lts/
    """
    from segcal.cli.steps import create_for, fit_shown, open_at, validation_of
    from segcal.files import refuse_foreign, refuse_overwriting
    from segcal.training.processes import is_first_process

    refuse_overwriting(out, data, folder_options.labels)
    refuse_foreign(out, "method")
    constructor, training = fit_options.arguments([method])[method]
    folder = open_at(data, folder_options, split, "fit")
    calibrator = create_for(method, folder, fit_options, constructor)
    fit_shown(calibrator, folder, validation_of(data, folder_options, fit_options.validation, folder), training)
    if is_first_process():
        calibrator.save(out)
        print_report(method, calibrator.fit_report_, out, as_json)


def print_report(method: str, report: FitReport, out: Path, as_json: bool) -> None:
    """Print what a fit did."""
    if as_json:
        content = {name: value for name, value in vars(report).items() if name != "names"}
        say_json({"method": method, "out": str(out), **content})
        return
    say(
        f"{method}: NLL {report.nll_before:.4f} -> {report.nll_after:.4f} on {counted(report.cases, 'case')} "
        f"({counted(report.pixels, 'pixel')}), {counted(report.steps, 'step')}, {report.seconds:.1f} s"
    )
    if "scores" in report.details:
        _print_choice(report.details)
    _print_details(report.details.get("chosen_details", report.details))
    for warning in report.warnings:
        warn(warning)
    say(f"saved in {out}")


def _print_details(details: Mapping[str, Any]) -> None:
    """Print one line for each detail; where the fit has words for its lists, those instead."""
    words = details.get("words", ())
    for name, value in details.items():
        if isinstance(value, Mapping) and name.startswith("channel "):
            say(f"  {name}")
            _print_details(value.get("chosen_details", value))
        elif value is not None and not (words and isinstance(value, list)):
            say(f"  {name}: {value:.5g}" if isinstance(value, float) else f"  {name}: {value}")
    for sentence in words:
        say(f"  {sentence}", soft_wrap=True)


def _print_choice(details: Mapping[str, Any]) -> None:
    """Print how each candidate did on groups of images left out, and why one was chosen."""
    if details["scores"]:
        OUT.print(_score_table(details["scores"], details["chosen"]))
    for name, score in details["scores"].items():
        if score["note"]:
            say(f"{name}: {score['note']}", style="dim")
    say(details["why"])


def _score_table(scores: Mapping[str, Mapping[str, Any]], chosen: str) -> Table:
    from rich.table import Table

    table = Table(title="on images left out", title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for k, heading in enumerate(("method", "NLL", "difference to ts", "learned numbers", "seconds")):
        table.add_column(heading, justify="left" if k == 0 else "right", overflow="fold")
    for name, score in scores.items():
        table.add_row(
            name,
            "-" if score["nll"] is None else f"{score['nll']:.4f} ± {score['error']:.4f}",
            "-" if score["nll"] is None else f"{score['difference']:+.4f} ± {score['difference_error']:.4f}",
            "-" if score["numbers"] is None else f"{score['numbers']:,}",
            f"{score['seconds']:.1f}",
            style="bold" if name == chosen else None,
        )
    return table
