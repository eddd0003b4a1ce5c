"""The options that several commands share, and what they stand for: a parameter of a command may be a group of options.

Imports nothing heavy: help must be quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial, wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from segcal.cli.console import OUT, Answer
from segcal.progress import Tracked

if TYPE_CHECKING:
    import torch
    from rich.progress import Progress

    from segcal.calibrators import Calibrator
    from segcal.data.folders.folder import Folder
    from segcal.engines import Run
    from segcal.evaluation.protocol import Protocol

DATA, FITTING, MEASURING, OUTPUT = "Data", "Fitting", "Measuring", "Output"
"""Titles of the panels in the help."""


def option(panel: str, text: str, *flags: str, **more: Any) -> Any:
    """Return an option with its help, in one of the panels."""
    return typer.Option(*flags, help=text, rich_help_panel=panel, **more)


def complete_method() -> list[str]:
    """Return the names of the methods, for the completion of shells."""
    from segcal.calibrators import methods

    return list(methods())


def flattened(command: Callable[..., Answer | None]) -> Callable[..., None]:
    """Return `command` as typer needs it: each parameter that is a dataclass is replaced by its fields, the options.

    An option that the command itself or an earlier group has already is not added a second time. Every command gets
    `--json`, and its result is printed.
    """
    own, parameters, owners = _parameters(command), dict[str, Parameter](), dict[str, str]()
    groups: dict[str, Any] = {name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)}
    for name, parameter in own.items():
        if name not in groups:
            parameters[name] = parameter
            continue
        for option, each in _parameters(groups[name]).items():
            if option not in own and option not in owners:
                owners[option], parameters[option] = name, each
    parameters["as_json"] = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)

    @wraps(command)
    def run(*, as_json: bool, **values: Any) -> None:
        shared = {
            name: group(**{option: values.pop(option) for option, owner in owners.items() if owner == name})
            for name, group in groups.items()
        }
        quiet, OUT.quiet = OUT.quiet, OUT.quiet or as_json  # a command that runs others keeps them quiet
        try:
            answer = command(**values, **shared)
            if answer is not None:
                answer.print(as_json)
        finally:
            OUT.quiet = quiet

    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.__doc__ or "").split("\n\n"))
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run


def _parameters(of: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of a command, or the fields of a group, as keyword-only parameters."""
    hints = get_type_hints(of, include_extras=True)
    return {
        name: each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, each in inspect.signature(of).parameters.items()
    }


Data = Annotated[Path, typer.Argument(help="logits/ and labels/, or nnU-Net's folder.")]
SavedCalibrator = Annotated[Path, typer.Argument(help="Folder of a saved calibrator.")]
SavedCalibrators = Annotated[
    list[Path] | None, typer.Option(help="Saved calibrators, compared with the uncalibrated scores.")
]
ResultsFolder = Annotated[Path, typer.Argument(help="Folder that 'segcal evaluate' or 'segcal compare' wrote.")]
Method = Annotated[str, typer.Option(help="Method; 'segcal methods' lists them.", autocompletion=complete_method)]
Device = Annotated[str, typer.Option(help="auto (GPU if any), cpu, cuda, ...")]
AsJson = Annotated[bool, option(OUTPUT, "Print JSON instead of text.", "--json")]
Split = Annotated[str | None, option(DATA, "Use only the cases of this split of splits.json.")]


def load_calibrators(paths: Sequence[Path] | None) -> dict[str, Calibrator]:
    """Return saved calibrators by method, or by folder where two have the same method."""
    from segcal.calibrators import load
    from segcal.types import InputError

    loaded = [(path, load(path)) for path in paths or ()]
    kinds = [calibrator.method.upper() for _, calibrator in loaded]
    names = [
        kind if kinds.count(kind) == 1 else path.resolve().name for (path, _), kind in zip(loaded, kinds, strict=True)
    ]
    if len(set(names)) < len(names):
        raise InputError(f"calibrators must have different names, got {', '.join(names)}; rename a folder")
    return {name: calibrator for name, (_, calibrator) in zip(names, loaded, strict=True)}


@dataclass(frozen=True)
class ScoreOptions:
    """Options of reading scores, which override `segcal.toml`."""

    passes: Annotated[list[Path] | None, option(DATA, "Further passes, if not in DATA/passes.", metavar="DIR ...")] = (
        None
    )
    scores: Annotated[
        Literal["logits", "probabilities"] | None,
        option(DATA, "The files hold logits, or probabilities.", metavar="KIND"),
    ] = None

    def open(self, data: Path, split: str | None, preferred: str | None = None, **known: Any) -> Folder:
        """Open a folder at the split asked for, else at the preferred one if it exists.

        Args:
            data: The folder.
            split: Name of a split, or None.
            preferred: Split that is used if none is asked for.
            known: Further arguments of `open_folder`, for options that were not given.
        """
        from segcal.data.folders.folder import open_folder

        given = {name: value for name, value in vars(self).items() if value not in (None, [])}
        folder = open_folder(data, split=split, **{**known, **given})
        return folder.select(preferred) if split is None and preferred in folder.splits else folder


@dataclass(frozen=True)
class FolderOptions(ScoreOptions):
    """Options of reading the data folder, which override `segcal.toml`."""

    labels: Annotated[Path | None, option(DATA, "True labels, if not in DATA/labels.")] = None
    num_classes: Annotated[int | None, option(DATA, "Number of classes, if not in segcal.toml.")] = None
    activation: Annotated[
        Literal["softmax", "sigmoid"] | None,
        option(DATA, "softmax, or sigmoid (overlapping channels).", metavar="KIND"),
    ] = None
    ignore_index: Annotated[list[int] | None, option(DATA, "Label(s) ignored everywhere.", metavar="N ...")] = None
    background: Annotated[int | None, option(DATA, "Class outside the region All, in fits too.")] = None


@dataclass(frozen=True)
class FitOptions:
    """Options of fitting."""

    settings: Annotated[
        list[str] | None,
        option(FITTING, "Setting; see 'segcal methods NAME'.", "--set", metavar="KEY=VALUE"),
    ] = None
    epochs: Annotated[int | None, option(FITTING, "Epochs of training.")] = None
    validation: Annotated[str | None, option(FITTING, "Split for choosing weights ('validation').")] = None
    seed: Annotated[int | None, option(FITTING, "Random seed of training.")] = None

    def held_out(self, data: Path, options: FolderOptions, fitted: Folder) -> Folder | None:
        """Return the cases on which the best weights are chosen, if there are any."""
        if self.validation is None and "validation" not in fitted.splits:
            return None
        return options.open(data, self.validation or "validation")


@dataclass(frozen=True)
class FolderFitOptions(FitOptions):
    """Options of fitting on a folder, which may hold images."""

    logits_only: Annotated[bool, option(FITTING, "Do not read the images.", "--logits-only")] = False


@dataclass(frozen=True)
class FitCommand:
    """Options of a command that fits one calibrator, besides those of the folder and of fitting."""

    out: Annotated[Path, option(OUTPUT, "Folder to save the calibrator in.")]
    method: Method = "auto"
    split: Split = None
    device: Device = "auto"


@dataclass(frozen=True)
class RunOptions:
    """Options of the device and the engine."""

    device: Device = "auto"
    engine: Annotated[str | None, typer.Option(help="Share the cases with a Ray cluster.", metavar="ray")] = None
    address: Annotated[str | None, typer.Option(help="Ray cluster; this machine by default.")] = None

    def prepare(self, command: str, out: Path | None, progress: Progress) -> tuple[Run, torch.device]:
        """Return the run of a command, which advances a progress bar, and the device; raise if there is none."""
        from segcal.engines import Run, engine_of
        from segcal.training.processes import choose_device

        run = Run(command, out, engine_of(self.engine, self.address), partial(Tracked, progress=progress))
        return run, choose_device(self.device)


@dataclass(frozen=True)
class MeasureOptions:
    """Options of measuring: fields of `segcal.Protocol`."""

    bins: Annotated[int, option(MEASURING, "Number of confidence bins.")] = 10
    form: Annotated[str, option(MEASURING, "SCE, ACE: tables, equations, marginal.", show_default=False)] = "tables"
    patch_size: Annotated[int | None, option(MEASURING, "Side of the Local patches in pixels.")] = None
    patch_sizes: Annotated[list[int] | None, option(MEASURING, "Further sides to measure.", metavar="N ...")] = None
    patches: Annotated[int, option(MEASURING, "Local patches per image.")] = 10
    patch_rule: Annotated[str, option(MEASURING, "labelled patches (default), or paper.", show_default=False)] = (
        "labelled"
    )
    interval: Annotated[str, option(MEASURING, "Bootstrap: percentile (default), bca.", show_default=False)] = (
        "percentile"
    )
    floor: Annotated[bool, option(MEASURING, "Add the scores of perfect calibration.", "--floor")] = False
    surfaces: Annotated[bool, option(MEASURING, "Add Dice and surface distances.", "--surfaces")] = False
    surface_tolerance: Annotated[float, option(MEASURING, "Tolerance, mm or pixels.")] = 1.0
    limits: Annotated[bool, option(MEASURING, "Add the scores of oracle temperatures.", "--limits")] = False
    seed: Annotated[int, option(MEASURING, "Random seed.")] = 0

    def protocol(self, folder: Folder) -> Protocol:
        """Return how a folder is measured; raise now if an option is wrong, not after an hour of fitting."""
        from segcal.evaluation.protocol import Protocol

        return Protocol(**{**vars(self), "patch_sizes": self.patch_sizes or ()}, **meaning_of(folder))


@dataclass(frozen=True)
class ReferenceOptions:
    """Options of the presentation: fields of `segcal.tables.Presentation`, whose values hold where none is given."""

    reference: Annotated[str | None, option(MEASURING, "Method to test the others against.")] = None
    test: Annotated[str | None, option(MEASURING, "wilcoxon (paired), paper (Mann-Whitney).")] = None
    average: Annotated[str | None, option(MEASURING, "Over images (default), or over pixels.")] = None


@dataclass(frozen=True)
class OutputOptions:
    """Options of the output."""

    out: Annotated[Path | None, option(OUTPUT, "Folder to save the results in.")] = None
    page: Annotated[Path | None, option(OUTPUT, "HTML file to show the results in.")] = None
    cases: Annotated[
        list[str] | None, option(OUTPUT, "Cases on the page; by default worst to best.", metavar="NAME")
    ] = None

    def check(self, folder: Folder, *inputs: Path | None) -> None:
        """Raise now, rather than after measuring, if folder or page must not be written or a case does not exist."""
        from segcal.files import check_output_file, check_output_folder

        check_output_folder(self.out, "results", *inputs)
        check_output_file(self.page, (".html", ".htm"), *inputs)
        for name in self.cases or ():
            folder.find(name)


def meaning_of(folder: Folder) -> dict[str, Any]:
    """Return what the classes of a folder are: fields of `segcal.Protocol`."""
    names = ("num_classes", "activation", "ignore_index", "background", "class_names")
    return {name: getattr(folder, name) for name in names}
