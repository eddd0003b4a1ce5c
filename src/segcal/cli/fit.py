"""`segcal fit`: fit a calibrator on a folder of cases and save it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from segcal.cli.console import OUT, say, say_json, warn
from segcal.cli.options import Data, FitCommand, FitOptions, FolderOptions
from segcal.text import counted

if TYPE_CHECKING:
    from segcal.calibrators import FitReport


def fit(
    data: Data,
    fit_command: FitCommand,
    folder_options: FolderOptions,
    fit_options: FitOptions,
) -> None:
    """Fit a calibrator on a folder of scores and labels, and save it.

    Uses the split "fit" of splits.json if there is one, else all cases. Data-parallel under torchrun.

    Example: segcal fit DATA --method lts --out lts/
    """
    from segcal.calibrators.progress import fit_with_progress
    from segcal.cli.settings import chosen_settings
    from segcal.cli.steps import create_for, open_at, validation_of
    from segcal.files import check_output_folder
    from segcal.training.processes import choose_device, is_first_process

    method, out, device = fit_command.method, fit_command.out, choose_device(fit_command.device)
    check_output_folder(out, "method", data, folder_options.labels)
    constructor, training = chosen_settings([method], fit_options, device=fit_command.device)[method]
    folder = open_at(data, folder_options, fit_command.split, "fit")
    calibrator = create_for(method, folder, constructor, logits_only=fit_options.logits_only, device=device)
    fit_with_progress(calibrator, folder, validation_of(data, folder_options, fit_options.validation, folder), training)
    if is_first_process():
        calibrator.save(out)
        print_report(method, calibrator.fit_report_, out, fit_command.as_json, folder.class_names or ())


def print_report(method: str, report: FitReport, out: Path, as_json: bool, class_names: Sequence[str] = ()) -> None:
    """Print the result of a fit; classes are called by their names if these are known."""
    for warning in report.warnings:
        warn(warning)
    if as_json:
        content = {name: value for name, value in vars(report).items() if name != "names"}
        say_json({"method": method, "out": str(out), **content})
        return
    say(
        f"{method}: NLL {report.nll_before:.4f} -> {report.nll_after:.4f} nats on {counted(report.cases, 'case')} "
        f"({counted(report.pixels, 'pixel')}), {counted(report.steps, 'step')}, {report.seconds:.1f} s"
    )
    if "scores" in report.details:
        _print_choice(report.details)
    _print_details(report.details.get("chosen_details", report.details), class_names)
    say(f"saved in {out}")


_SENTENCES = (
    "temperature {temperature:.4g}",
    "temperatures from {temperature_low:.4g} to {temperature_high:.4g} (ts: {ts_temperature:.4g})",
    "weights from epoch {best_epoch}; {share:.0%} of their change from ts is kept",
    "NLL of the validation images: {validation_nll:.4f} nats (ts: {validation_nll_ts:.4f})",
    "temperatures of the confidence bins: {temperatures}",
    "weights: {weights[scaled]:.3g} scaled, {weights[raw]:.3g} uncalibrated, {weights[uniform]:.3g} uniform",
    "scale factors of the classes: {scales}",
    "diagonal of the matrix: {diagonal}; largest other entry: {largest_off_diagonal:.3g}",
    "deviations of the classes: {deviations}",
    "offsets of the classes: {biases}",
    "steps of the fitted function: {knots}",
    "bins without pixels: {empty_bins}",
    "attended pixels: {attended:,}",
    "weights that are 0: {zero_share:.0%}",
)
"""Details of a fit in words; a sentence is printed if all that it names is known. JSON has every detail."""

_CLASS = re.compile(r"class (\d+)")
"""A class by its number, in sentences of a method."""


def _print_details(details: Mapping[str, Any], class_names: Sequence[str] = ()) -> None:
    """Print what a fit learned: in its own words if it has any, otherwise those details that have a sentence here."""

    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"'{class_names[number]}'" if number < len(class_names) else found[0]

    for sentence in details.get("words") or _in_words(details):
        say("  " + _CLASS.sub(named, sentence), soft_wrap=True)
    for name, value in details.items():
        if isinstance(value, Mapping) and name.startswith("channel "):
            say(f"  {name}")
            _print_details(value.get("chosen_details", value))


def _in_words(details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences of which every value is known; lists of numbers are given as their range."""
    known = {
        name: f"{min(value):.4g} to {max(value):.4g}" if isinstance(value, list) and value else value
        for name, value in details.items()
        if value not in (None, 0)
    }
    for sentence in _SENTENCES:
        names = {name.partition("[")[0] for _, name, _, _ in Formatter().parse(sentence) if name}
        if names <= known.keys():
            yield sentence.format_map(known)


def _print_choice(details: Mapping[str, Any]) -> None:
    """Print how each candidate did on groups of images left out, and why one was chosen."""
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
    say(details["why"])
