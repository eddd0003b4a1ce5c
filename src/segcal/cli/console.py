"""What the commands say on the screen: errors in one sentence, progress, reports and tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from segcal.calibrators import Calibrator, FitReport
from segcal.data.folders.folder import Folder
from segcal.evaluation.compare import Comparison
from segcal.evaluation.diagnosis import Diagnosis
from segcal.evaluation.limits import as_rows
from segcal.evaluation.results import Results
from segcal.statistics import Test
from segcal.tables import PaperTable
from segcal.types import Case, InputError

OUT = Console()
ERR = Console(stderr=True)


class Group(TyperGroup):
    """Turn bad input into one sentence and exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(f"segcal: {error}", err=True)
        except BrokenPipeError:
            raise  # whoever reads has had enough, which the caller ends quietly
        except OSError as error:
            typer.echo(
                f"segcal: {error.strerror or error} ('{error.filename}'); check the path and its rights", err=True
            )
        raise typer.Exit(2)


class ManyValues(TyperCommand):
    """Let an option that may be repeated take several values at once: `--calibrators a b` for two options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Name the option again before each further value."""
        repeatable = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, list(_expand(args, repeatable)))


def _expand(args: Sequence[str], repeatable: set[str]) -> Iterator[str]:
    current, used = None, False
    for arg in args:
        if arg.startswith("-") and not _is_number(arg):
            current, used = (arg, False) if arg in repeatable else (None, False)
        elif current is not None:
            if used:
                yield current
            used = True
        yield arg


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


class Tracked(Sequence[Case]):
    """A folder that moves a progress bar each time it hands out a case; every pass over the data is a new bar."""

    def __init__(self, folder: Folder, progress: Progress) -> None:
        self.folder, self.progress = folder, progress

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: Any) -> Any:
        return self.folder[index]

    def __iter__(self) -> Iterator[Case]:
        task = self.progress.task_ids[-1]
        self.progress.reset(task, total=len(self.folder))
        for case in self.folder:
            yield case
            self.progress.advance(task)


def progress_of(what: str) -> Progress:
    """A bar on standard error, where that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # elsewhere than in a terminal even an empty bar leaves a blank line, and errors are one line
    progress = Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal)
    progress.add_task(what, total=None)
    return progress


def print_report(method: str, report: FitReport, out: Path, as_json: bool) -> None:
    """What a fit did."""
    if as_json:
        content = {"method": method, "out": str(out), **{k: v for k, v in vars(report).items() if k != "names"}}
        typer.echo(json.dumps(content))
        return
    OUT.print(
        f"{method}: NLL {report.nll_before:.4f} -> {report.nll_after:.4f} on {report.cases} cases "
        f"({report.pixels:,} pixels), {report.steps} steps, {report.seconds:.1f} s",
        highlight=False,
    )
    if "scores" in report.details:
        _print_choice(report.details)
    _print_details(report.details.get("chosen_details", report.details))
    for warning in report.warnings:
        _warn(warning)
    OUT.print(f"saved in {out}", highlight=False)


def _print_details(details: Mapping[str, Any]) -> None:
    """One line for each detail; where the fit has words for its lists, those instead."""
    words = details.get("words", ())
    for name, value in details.items():
        if not (words and isinstance(value, list)):
            OUT.print(f"  {name}: {value:.5g}" if isinstance(value, float) else f"  {name}: {value}", highlight=False)
    for sentence in words:
        OUT.print(f"  {sentence}", highlight=False, soft_wrap=True)


def _print_choice(details: Mapping[str, Any]) -> None:
    """How each candidate did on groups of images left out, and why one was taken."""
    if details["scores"]:
        OUT.print(_score_table(details["scores"], details["chosen"]))
    for name, score in details["scores"].items():
        if score["note"]:
            OUT.print(f"{name}: {score['note']}", style="dim", highlight=False)
    OUT.print(details["why"], highlight=False)


def _score_table(scores: Mapping[str, Mapping[str, Any]], chosen: str) -> Table:
    table = Table(title="on images left out", title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for k, heading in enumerate(("method", "NLL", "difference to ts", "learned numbers", "seconds")):
        table.add_column(heading, justify="left" if k == 0 else "right", no_wrap=True)
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


def print_written(written: Mapping[str, int], calibrator: Calibrator, out: Path, as_json: bool) -> None:
    """How much was calibrated, and whether labels changed."""
    if as_json:
        typer.echo(json.dumps({"out": str(out), **written}))
        return
    kept = "every predicted label kept" if calibrator.preserves_labels else f"{written['changed']:,} labels changed"
    OUT.print(f"{written['cases']} cases, {written['pixels']:,} pixels, {kept}; written to {out}", highlight=False)


def print_results(
    results: Results, table: PaperTable, out: Path | None, as_json: bool, page: Path | None = None
) -> None:
    """The paper's table and the pooled figures, or all as JSON; warnings on standard error."""
    for warning in results.settings["warnings"]:
        _warn(warning)
    if as_json:
        typer.echo(json.dumps(results.to_dict()))
        return
    OUT.print(table)
    OUT.print(_pooled_table(results))
    if skipped := {name: count for name, count in results.skipped().items() if count}:
        counts = ", ".join(f"{count} {name}" for name, count in skipped.items())
        OUT.print(f"left out for want of pixels: {counts}", style="dim", highlight=False)
    _say_where(out, page)


def print_comparison(
    comparison: Comparison,
    reference: str | None,
    test: Test,
    floor: bool,
    out: Path | None,
    as_json: bool,
    page: Path | None = None,
) -> None:
    """The paper's table and, below it, what each method costs and does to labels; or all as JSON."""
    results = comparison.results
    warnings = [f"{name}: {text}" for name, c in comparison.calibrators.items() for text in c.fit_report_.warnings]
    failures = [f"{name} could not be fitted: {fit.failure}" for name, fit in comparison.fits.items() if fit.failure]
    if reference is not None and reference not in results.methods:
        failures.append(f"the reference {reference} could not be fitted, so that nothing is tested against it")
        reference = None
    for warning in (*results.settings["warnings"], *warnings, *failures):
        _warn(warning)
    if as_json:
        typer.echo(json.dumps({**results.to_dict(), "methods": comparison.records()}))
        return
    OUT.print(results.table(reference, test=test, floor=floor))
    OUT.print(_cost_table(comparison))
    OUT.print(
        "memory: growth of this process's resident memory while fitting; kept: no label can change; "
        "accuracy, mIoU: change against UC in points, mean over images of All",
        style="dim",
        highlight=False,
    )
    _say_where(out, page)


def _say_where(out: Path | None, page: Path | None) -> None:
    if out is not None:
        OUT.print(f"saved in {out}", highlight=False)
    if page is not None:
        OUT.print(f"shown in {page}", highlight=False)


def _cost_table(comparison: Comparison) -> Table:
    table = Table(title="what they cost, and what they do to labels", title_justify="left", box=None, pad_edge=False)
    headings = ("method", "parameters", "fit, s", "memory, MB", "labels changed", "accuracy", "mIoU")
    for k, heading in enumerate(headings):
        table.add_column(heading, justify="left" if k == 0 else "right", no_wrap=True)
    for row in comparison.records():
        if row["failure"] is not None:
            table.add_row(row["method"], "could not be fitted")
            continue
        moves = not row["keeps_labels"]
        table.add_row(
            row["method"],
            f"{row['parameters']:,}",
            f"{row['seconds']:.1f}",
            "-" if row["memory"] is None else f"{row['memory'] / 1e6:.0f}",
            f"{row['changed']:.2%}" if moves else "kept",
            f"{100 * row['accuracy']:+.2f}" if moves else "",
            f"{100 * row['miou']:+.2f}" if moves else "",
        )
    return table


def _pooled_table(results: Results) -> Table:
    pooled = results.pooled()
    over = "groups of images" if results.cases().group.any() else "images"
    title = f"all pixels together, with 95 % bootstrap intervals over {over}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("method", "region", "ECE(%)", "NLL", "Brier"):
        table.add_column(column, justify="left" if column in ("method", "region") else "right", no_wrap=True)
    for (method, region), rows in pooled.groupby(["method", "region"], sort=False):
        by_metric = rows.set_index("metric")
        shown = [(by_metric.loc[metric], scale) for metric, scale in (("ece", 100), ("nll", 1), ("brier", 1))]
        table.add_row(str(method), str(region), *(_with_interval(row, scale) for row, scale in shown))
    return table


def diagnosis_table(found: Diagnosis) -> Table:
    """The state of the data set and of the images that are furthest from balance."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    headings = ("image", "state", "NLL", "entropy", "best T", "T varies", "pixels over", "under")
    for k, heading in enumerate(headings):
        table.add_column(heading, justify="left" if k < 2 else "right", no_wrap=k > 0, overflow="fold")
    shown = sorted(found.images, key=lambda image: -abs(np.nan_to_num(image.nll - image.entropy)))
    for finding in (found.dataset, *shown[:20]):
        table.add_row(
            finding.name,
            finding.state if finding.pixels else "no pixels",
            f"{finding.nll:.4f}",
            f"{finding.entropy:.4f}",
            f"{finding.temperature:.3f}",
            "-" if finding.spread is None else f"{np.expm1(finding.spread):.0%}",
            f"{finding.overconfident_share:.1%}",
            f"{finding.underconfident_share:.1%}",
        )
    if len(shown) > 20:
        table.caption, table.caption_justify = f"... and {len(shown) - 20} more (--json shows all)", "left"
    return table


def limits_table(found: pd.DataFrame) -> Table:
    """Return the ECE and NLL of every level of an oracle, and what shares a temperature at each."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title="What limits calibration", title_justify="left")
    for heading, justify in (("oracle for", "left"), ("ECE, %", "right"), ("NLL", "right"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for level, text, ece, nll in as_rows(found):
        table.add_row(level, f"{100 * ece:.2f}", f"{nll:.4f}", text)
    return table


def print_step(title: str, command: str) -> None:
    """A title, and the command that comes next."""
    OUT.print(f"\n[bold]{title}[/bold]\n[dim]$ {command}[/dim]", highlight=False)


def _warn(text: str) -> None:
    ERR.print(f"warning: {text}", style="yellow", highlight=False)


def _with_interval(row: Any, scale: int) -> str:
    digits = 2 if scale == 100 else 3
    value, low, high = (f"{scale * float(row[name]):.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
