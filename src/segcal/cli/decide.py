"""`segcal decide`: thresholds with a guarantee, risk against coverage, and volumes with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from segcal.cli.console import OUT, Answer, say_where, warn
from segcal.cli.options import (
    OUTPUT,
    Data,
    FolderOptions,
    SavedCalibrators,
    Split,
    load_calibrators,
    meaning_of,
    option,
)
from segcal.progress import Tracked, progress_of

if TYPE_CHECKING:
    from segcal.calibrators import Calibrator

_RULES = "Rules"


def decide(
    data: Data,
    folder_options: FolderOptions,
    calibrators: SavedCalibrators = None,
    split: Split = None,
    risk: Annotated[float, option(_RULES, "Fraction of a class's pixels that its threshold may miss.")] = 0.1,
    level: Annotated[float, option(_RULES, "Fraction of new images whose volume lies in the interval.")] = 0.9,
    rules: Annotated[
        Path | None, option(_RULES, "Folder of saved rules: print the volumes of new cases, without labels.")
    ] = None,
    out: Annotated[Path | None, option(OUTPUT, "Folder to save the rules in.")] = None,
    page: Annotated[Path | None, option(OUTPUT, "HTML file to show them in.")] = None,
) -> Answer:
    """Learn thresholds, rejection rules and volume intervals from held-out images.

    Uses the split "test" of splits.json if there is one, else all cases. The images must be ones that neither the
    network nor the calibrator has seen.

    Example: segcal decide DATA --calibrators lts/ --risk 0.1 --out rules/ --page page.html
    """
    from segcal.evaluation.decisions import decide as learn
    from segcal.evaluation.decisions import decision_tables
    from segcal.evaluation.methods import UNCALIBRATED
    from segcal.files import check_output_file, check_output_folder
    from segcal.report import write_decisions_page
    from segcal.types import InputError

    if rules is not None:
        if page is not None:
            raise InputError("a page shows rules that are learned, and --rules uses learned ones; leave out --page")
        return _new(data, folder_options, split, rules, calibrators or [], out)
    check_output_folder(out, "decisions", data, folder_options.labels, *(calibrators or []))
    check_output_file(page, (".html", ".htm"), data, folder_options.labels, *(calibrators or []))
    folder = folder_options.open(data, split, "test")
    compared = {UNCALIBRATED: None, **load_calibrators(calibrators)}
    with progress_of("deciding") as progress:
        found = learn(Tracked(folder, progress), compared, **meaning_of(folder), risk=risk, level=level)
    if out is not None:
        found.save(out)
    if page is not None:
        write_decisions_page(found, page)
    for warning in found.settings["warnings"]:
        warn(warning)

    def show() -> None:
        for table in decision_tables(found):
            OUT.print(table)
        say_where(out, page)

    return Answer(found.to_dict, show)


def _new(
    data: Path, options: FolderOptions, split: str | None, rules: Path, calibrators: list[Path], out: Path | None
) -> Answer:
    """Return the volumes of new cases with their intervals, and write them to a CSV file."""
    import json

    from segcal.evaluation.decisions import Decisions, new_volumes, volume_table
    from segcal.evaluation.methods import UNCALIBRATED
    from segcal.evaluation.saved import write_table
    from segcal.files import check_output_file, signed_file

    check_output_file(out, (".csv",), data, rules, *calibrators)
    known = Decisions.load(rules)
    classes, activation = len(known.class_names), known.protocol.activation
    folder = options.open(data, split, num_classes=classes, activation=activation, require_labels=False)
    compared: dict[str, Calibrator | None] = {**load_calibrators(calibrators)} or {UNCALIBRATED: None}
    with progress_of("measuring volumes") as progress:
        found = new_volumes(Tracked(folder, progress), compared, known)
    if out is not None:
        with signed_file(out) as staging:
            write_table(found, staging)

    def show() -> None:
        OUT.print(volume_table(found, known.settings["level"]))
        say_where(out)

    return Answer(lambda: {"volumes": json.loads(found.to_json(orient="records", double_precision=15))}, show)
