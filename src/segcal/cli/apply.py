"""`segcal apply`: write calibrated probabilities of a folder of cases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from segcal.cli.console import Answer
from segcal.cli.options import OUTPUT, Data, RunOptions, SavedCalibrator, ScoreOptions, Split, option
from segcal.progress import progress_of
from segcal.text import counted


def apply(
    calibrator: SavedCalibrator,
    data: Data,
    run_options: RunOptions,
    score_options: ScoreOptions,
    out: Annotated[Path, option(OUTPUT, "Folder to write the probabilities in.")],
    temperature: Annotated[bool, option(OUTPUT, "Also write temperature maps.", "--temperature")] = False,
    maps: Annotated[
        list[str] | None,
        option(OUTPUT, "Further maps: entropy, confidence, labels, disagreement (of passes), temperature."),
    ] = None,
    dtype: Annotated[str, option(OUTPUT, "Precision of the files: float32 or float16.")] = "float32",
    split: Split = None,
) -> Answer | None:
    """Write the calibrated probabilities of every case.

    Labels are not needed. NIfTI and nnU-Net files are written in the format in which they were read. Finished cases are
    skipped when an interrupted run is started again.

    Example: segcal apply ts/ DATA --out probs/
    """
    from segcal.apply import apply_to_folder
    from segcal.calibrators import load
    from segcal.files import check_output_folder

    check_output_folder(out, "probabilities", calibrator, data)
    progress = progress_of("calibrating")
    run, device = run_options.prepare("apply", out, progress)
    fitted = load(calibrator).to(device)
    known = {name: getattr(fitted, name) for name in ("num_classes", "activation", "ignore_index")}
    folder = score_options.open(data, split, **known, require_labels=False)
    with progress:
        wanted = dict.fromkeys([*(maps or []), *(["temperature"] if temperature else [])])
        written = apply_to_folder(fitted, folder, out=out, dtype=dtype, maps=list(wanted), run=run)
    if written is None:
        return None
    changed = f"{counted(written['changed'], 'label')} changed"
    kept = "every predicted label kept" if fitted.preserves_labels else changed
    done = f"{counted(written['cases'], 'case')}, {counted(written['pixels'], 'pixel')}, {kept}; written to {out}"
    return Answer({"out": str(out), **written}, done)
