"""`segcal diagnose`: over-, under- or balanced confidence of a data set, each image, each pixel."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from segcal.cli.console import OUT, Answer, say, say_where, warn
from segcal.cli.options import OUTPUT, Data, FolderOptions, RunOptions, Split, option
from segcal.progress import progress_of

if TYPE_CHECKING:
    from segcal.evaluation.diagnosis import Diagnosis
    from segcal.tables import TextTable

_SHOWN = 20
"""Images in the table; --json has all."""
_UNJUDGED = "T varies: difference of the best temperature between parts of an image; -: too few pixels or errors"


def diagnose(
    data: Data,
    run_options: RunOptions,
    folder_options: FolderOptions,
    split: Split = None,
    maps: Annotated[Path | None, option(OUTPUT, "Folder for maps of NLL minus entropy, in nats.")] = None,
    limits: Annotated[
        bool, option(OUTPUT, "Add the scores of oracle temperatures, and the floor.", "--limits")
    ] = False,
    out: Annotated[Path | None, option(OUTPUT, "Folder to save the diagnosis in, as JSON.")] = None,
) -> Answer | None:
    """Report whether the network is over- or underconfident: data set, images, pixels.

    Example: segcal diagnose DATA --maps maps/
    """
    from segcal.engines import Run, write_cases
    from segcal.evaluation.diagnosis import diagnose_folder, plain_diagnosis, save_diagnosis, write_excess_maps
    from segcal.evaluation.limits import limits as limits_of
    from segcal.evaluation.limits import limits_table
    from segcal.evaluation.methods import heads_of_folder
    from segcal.files import check_output_folder

    progress = progress_of("diagnosing")
    run, device = run_options.prepare("diagnose", out, progress)
    check_output_folder(out, "diagnosis", data, folder_options.labels)
    check_output_folder(maps, "maps", data, folder_options.labels)
    folder = folder_options.open(data, split)
    with run, progress:
        found = diagnose_folder(folder, run, device=device)
        if maps is not None:
            with Run("diagnose", maps, run.engine, run.track) as drawing:
                decided = [folder.num_classes, folder.activation, folder.ignore_index]
                write_cases(folder, drawing, "maps", decided, partial(write_excess_maps, folder, device))
        if found is None:
            return None
        if out is not None:
            save_diagnosis(found, out)
    heads = heads_of_folder(folder) if limits else []
    reached = {head.name: limits_of(head.cases(folder), head.protocol) for head in heads}

    def show() -> None:
        for name, diagnosis in found.items():
            if len(found) > 1:
                say(f"channel {name}", style="bold")
            if diagnosis.doubt:
                warn(diagnosis.doubt)
            OUT.print(_table(diagnosis))
            say(diagnosis.advice())
            if limits:
                OUT.print("", limits_table(reached[name]))
        if maps is not None:
            say(f"maps in {maps}")
        say_where(out)

    return Answer(lambda: plain_diagnosis(found, reached), show)


def _table(found: Diagnosis) -> TextTable:
    """Return the state of the data set and of the images that are furthest from balance."""
    from numpy import nan_to_num

    from segcal.tables import TextTable

    shown = sorted(found.images, key=lambda image: -nan_to_num(abs(image.nll - image.entropy)))
    rows = [
        (
            finding.name,
            finding.state if finding.pixels else "no pixels",
            f"{finding.nll:.4f}",
            f"{finding.entropy:.4f}",
            f"{finding.temperature:.3f}",
            "-" if finding.spread is None else f"{math.expm1(finding.spread):.0%}",
        )
        for finding in (found.dataset, *shown[:_SHOWN])
    ]
    notes = [f"... and {len(shown) - _SHOWN} more (--json shows all)"] if len(shown) > _SHOWN else []
    if any(finding.spread is None for finding in (found.dataset, *shown)):
        notes.append(_UNJUDGED)
    headings = ("image", "state", "NLL,\nnats", "entropy,\nnats", "best T", "T varies")
    return TextTable(headings, rows, keys=2, note="\n".join(notes))
