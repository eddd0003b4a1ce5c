"""`segcal apply`: write calibrated probabilities of a folder of cases."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import Tracked, progress_of, say, say_json
from segcal.cli.engine import EngineAddress, EngineName
from segcal.cli.options import OUTPUT, AsJson, Data, Device, SavedCalibrator, Scores, Split


def apply(
    calibrator: SavedCalibrator,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder to write the probabilities in.", rich_help_panel=OUTPUT)],
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Also write temperature maps.", rich_help_panel=OUTPUT)
    ] = False,
    dtype: Annotated[
        str, typer.Option(help="Precision of the files: float32 or float16.", rich_help_panel=OUTPUT)
    ] = "float32",
    split: Split = None,
    scores: Scores = None,
    device: Device = "auto",
    engine: EngineName = None,
    address: EngineAddress = None,
    as_json: AsJson = False,
) -> None:
    """Write the calibrated probabilities of every case.

    Labels are not needed. NIfTI and nnU-Net files are written in the format in which they were read. Finished cases are
    skipped when an interrupted run is started again.

    Example: segcal apply ts/ DATA --out probs/
    """
    from segcal.apply import apply_to_folder
    from segcal.calibrators import load
    from segcal.cli.steps import scores_of
    from segcal.data.folders.folder import open_folder
    from segcal.engines import Run, engine_of
    from segcal.files import refuse_foreign, refuse_overwriting
    from segcal.training.processes import choose_device

    refuse_overwriting(out, calibrator, data)
    refuse_foreign(out, "probabilities")
    mapper = engine_of(engine, address)
    fitted = load(calibrator).to(choose_device(device))
    folder = open_folder(
        data,
        split=split,
        num_classes=fitted.num_classes,
        activation=fitted.activation,
        ignore_index=fitted.ignore_index,
        scores=scores_of(scores),
        require_labels=False,
    )
    with progress_of("calibrating") as progress:
        run = Run("apply", out, mapper, partial(Tracked, progress=progress))
        written = apply_to_folder(fitted, folder, out=out, dtype=dtype, maps=temperature, run=run)
    if written is None:
        return
    if as_json:
        say_json({"out": str(out), **written})
        return
    kept = "every predicted label kept" if fitted.preserves_labels else f"{written['changed']:,} labels changed"
    say(f"{written['cases']} cases, {written['pixels']:,} pixels, {kept}; written to {out}")
