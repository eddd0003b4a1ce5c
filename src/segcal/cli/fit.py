"""`segcal fit`: fit a calibrator on a folder of cases and save it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segcal.cli.console import OUT, Answer, say, warn
from segcal.cli.options import Data, FitCommand, FolderFitOptions, FolderOptions
from segcal.text import counted

if TYPE_CHECKING:
    from segcal.calibrators import FitReport


def fit(
    data: Data,
    fit_command: FitCommand,
    folder_options: FolderOptions,
    fit_options: FolderFitOptions,
) -> Answer | None:
    """Fit a calibrator on a folder of scores and labels, and save it.

    Uses the split "fit" of splits.json if there is one, else all cases. Data-parallel under torchrun.

    Example: segcal fit DATA --method lts --out lts/
    """
    from segcal.calibrators.progress import fit_with_progress
    from segcal.calibrators.report import with_class_names
    from segcal.cli.settings import chosen_settings, unfitted
    from segcal.files import check_output_folder
    from segcal.training.processes import is_first_process

    method, out, device = fit_command.method, fit_command.out, fit_command.device
    check_output_folder(out, "method", data, folder_options.labels)
    chosen = chosen_settings([method], fit_options, device=device)
    folder = folder_options.open(data, fit_command.split, "fit")
    calibrator, settings = unfitted(chosen, folder, logits_only=fit_options.logits_only, device=device)[method]
    fit_with_progress(calibrator, folder, fit_options.held_out(data, folder_options, folder), settings)
    if not is_first_process():
        return None
    calibrator.save(out)
    report = calibrator.fit_report_
    for warning in report.warnings:
        warn(with_class_names(warning, folder.class_names or (), "channel"))
    content = {name: value for name, value in vars(report).items() if name != "names"}
    show = partial(print_report, method, report, out, folder.class_names or ())
    return Answer({"method": method, "out": str(out), **content}, show)


def print_report(method: str, report: FitReport, out: Path, class_names: Sequence[str] = ()) -> None:
    """Print the result of a fit; classes are called by their names if these are known."""
    say(
        f"{method}: NLL {report.nll_before:.4f} -> {report.nll_after:.4f} nats on {counted(report.cases, 'case')} "
        f"({counted(report.pixels, 'pixel')}), {counted(report.steps, 'step')}, {report.seconds:.1f} s"
    )
    if "scores" in report.details:
        _print_choice(report.details)
    for sentence in report.sentences(class_names):
        say(f"  {sentence}", soft_wrap=True)
    say(f"saved in {out}")


def _print_choice(details: Mapping[str, Any]) -> None:
    """Print how each candidate did on groups of images left out."""
    from segcal.tables import TextTable

    rows = [
        (
            name,
            "-" if score["nll"] is None else f"{score['nll']:.4f} ± {score['error']:.4f}",
            "-" if score["nll"] is None else f"{score['difference']:+.4f} ± {score['difference_error']:.4f}",
            "-" if score["numbers"] is None else f"{score['numbers']:,}",
            f"{score['seconds']:.1f}",
        )
        for name, score in details["scores"].items()
    ]
    notes = [f"{name}: {score['note']}" for name, score in details["scores"].items() if score["note"]]
    if rows:
        headings = ("method", "NLL, nats", "difference to ts", "parameters", "time, s")
        OUT.print(TextTable(headings, rows, title="on held-out images", note="\n".join(notes)))
