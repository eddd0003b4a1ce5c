"""`segcal diagnose`: over-, under- or balanced confidence of a data set, each image, each pixel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segcal.cli.console import OUT, Tracked, progress_of, say, say_json
from segcal.cli.options import OUTPUT, AsJson, Data, FolderOptions, Split

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from segcal.evaluation.diagnosis import Diagnosis

_SHOWN = 20
"""Images in the table; --json has all."""


def diagnose(
    data: Data,
    folder_options: FolderOptions,
    split: Split = None,
    maps: Annotated[
        Path | None,
        typer.Option(
            help="Folder for a map of each case: NLL minus entropy, above 0 where overconfident.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    limits: Annotated[
        bool,
        typer.Option("--limits", help="Also show what temperatures chosen with the labels would reach, and the floor."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Report whether the scores are over-, under- or balanced in confidence: data set, each image, each pixel.

    Example: segcal diagnose DATA --maps maps/
    """
    from segcal.cli.steps import open_at
    from segcal.evaluation.diagnosis import diagnose as examine
    from segcal.evaluation.diagnosis import write_maps
    from segcal.evaluation.heads import heads_of_folder
    from segcal.evaluation.limits import limits as limits_of
    from segcal.evaluation.limits import verdict
    from segcal.files import refuse_foreign, refuse_overwriting

    if maps is not None:
        refuse_overwriting(maps, data, folder_options.labels)
        refuse_foreign(maps, "maps")
    folder = open_at(data, folder_options, split)
    found, reached = {}, {}
    with progress_of("diagnosing") as progress:
        for head in heads_of_folder(folder):
            read: dict[str, Any] = {
                "num_classes": head.protocol.num_classes,
                "ignore_index": folder.ignore_index,
                "background": folder.background,
            }
            found[head.name] = examine(head.cases(Tracked(folder, progress)), **read)
            if limits:
                reached[head.name] = limits_of(head.cases(folder), **read)
        if maps is not None:
            write_maps(Tracked(folder, progress), like=folder, out=maps)
    if as_json:
        say_json(_content(found, reached))
        return
    for name, diagnosis in found.items():
        if len(found) > 1:
            say(f"channel {name}", style="bold")
        OUT.print(_table(diagnosis))
        say(diagnosis.advice())
        if limits:
            OUT.print(_limits_table(reached[name]))
            say(verdict(reached[name]))
    if maps is not None:
        say(f"maps in {maps}")


def _content(found: Mapping[str, Diagnosis], reached: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return what was found as plain values; that of several channels by the name of each."""
    limits = {name: {"limits": frame.to_dict(orient="records")} for name, frame in reached.items()}
    content = {name: {**diagnosis.to_dict(), **limits.get(name, {})} for name, diagnosis in found.items()}
    return {"channels": content} if len(content) > 1 else next(iter(content.values()))


def _table(found: Diagnosis) -> Table:
    """Return the state of the data set and of the images that are furthest from balance."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    headings = ("image", "state", "NLL", "entropy", "best T", "T varies", "pixels over", "under")
    for k, heading in enumerate(headings):
        table.add_column(heading, justify="left" if k < 2 else "right", no_wrap=k > 0, overflow="fold")
    shown = sorted(found.images, key=lambda image: -_imbalance(image.nll - image.entropy))
    for finding in (found.dataset, *shown[:_SHOWN]):
        table.add_row(
            finding.name,
            finding.state if finding.pixels else "no pixels",
            f"{finding.nll:.4f}",
            f"{finding.entropy:.4f}",
            f"{finding.temperature:.3f}",
            "-" if finding.spread is None else f"{math.expm1(finding.spread):.0%}",
            f"{finding.overconfident_share:.1%}",
            f"{finding.underconfident_share:.1%}",
        )
    if len(shown) > _SHOWN:
        table.caption, table.caption_justify = f"... and {len(shown) - _SHOWN} more (--json shows all)", "left"
    return table


def _limits_table(found: pd.DataFrame) -> Table:
    """Return ECE and NLL of every level of an oracle, and which pixels share a temperature at each."""
    from rich.table import Table

    from segcal.evaluation.limits import as_rows

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title="What limits calibration", title_justify="left")
    for heading, justify in (("oracle for", "left"), ("ECE, %", "right"), ("NLL", "right"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for level, text, ece, nll in as_rows(found):
        table.add_row(level, f"{100 * ece:.2f}", f"{nll:.4f}", text)
    return table


def _imbalance(gap: float) -> float:
    return 0.0 if math.isnan(gap) else abs(gap)
