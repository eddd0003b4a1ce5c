"""The options that several commands share, declared once: a parameter of a command may stand for a group of options.

Imports nothing heavy: help must be quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

DATA, FITTING, MEASURING, OUTPUT = "Data", "Fitting", "Measuring", "Output"
"""Titles of the panels in the help."""


def option(panel: str, text: str, *flags: str, **more: Any) -> Any:
    """Return an option with its help, in one of the panels."""
    return typer.Option(*flags, help=text, rich_help_panel=panel, **more)


def complete_method() -> list[str]:
    """Return the names of the methods, for the completion of shells."""
    from segcal.calibrators import methods

    return list(methods())


class OptionGroup:
    """Base of dataclasses whose fields are options, with annotations as typer reads them."""

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Return the options as keyword-only parameters."""
        hints = get_type_hints(cls, include_extras=True)
        return [
            _keyword(field.name, hints[field.name], Parameter.empty if field.default is MISSING else field.default)
            for field in fields(cls)  # type: ignore[arg-type]  # subclasses are dataclasses
        ]


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` as typer needs it: each parameter that is an `OptionGroup` is replaced by its options.

    An option that the command itself or an earlier group has already is not added a second time.
    """
    hints = get_type_hints(command, include_extras=True)
    owners: dict[str, str] = {}
    groups: dict[str, type[OptionGroup]] = {}
    parameters: dict[str, Parameter] = {}
    plain = inspect.signature(command).parameters
    for name, parameter in plain.items():
        hint = hints[name]
        if not (inspect.isclass(hint) and issubclass(hint, OptionGroup)):
            parameters[name] = _keyword(name, hint, parameter.default)
            continue
        groups[name] = hint
        for option in hint.parameters():
            if option.name not in plain and option.name not in owners:
                owners[option.name], parameters[option.name] = name, option

    @wraps(command)
    def run(**values: Any) -> None:
        shared = {
            name: group(**{option: values.pop(option) for option, owner in owners.items() if owner == name})
            for name, group in groups.items()
        }
        command(**values, **shared)

    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.__doc__ or "").split("\n\n"))
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


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
Passes = Annotated[list[Path] | None, option(DATA, "Further passes, if not in DATA/passes.", metavar="DIR ...")]
Scores = Annotated[
    Literal["logits", "probabilities"] | None, option(DATA, "The files hold logits, or probabilities.", metavar="KIND")
]


@dataclass(frozen=True)
class FolderOptions(OptionGroup):
    """Options of reading the data folder, which override `segcal.toml`."""

    labels: Annotated[Path | None, option(DATA, "True labels, if not in DATA/labels.")] = None
    passes: Passes = None
    num_classes: Annotated[int | None, option(DATA, "Number of classes, if not in segcal.toml.")] = None
    activation: Annotated[
        Literal["softmax", "sigmoid"] | None,
        option(DATA, "softmax, or sigmoid (overlapping channels).", metavar="KIND"),
    ] = None
    ignore_index: Annotated[list[int] | None, option(DATA, "Label(s) ignored everywhere.", metavar="N ...")] = None
    background: Annotated[int | None, option(DATA, "Class outside the region All, in fits too.")] = None
    scores: Scores = None


@dataclass(frozen=True)
class ScoreOptions(OptionGroup):
    """Options of reading scores alone, without labels."""

    passes: Passes = None
    scores: Scores = None


@dataclass(frozen=True)
class FitOptions(OptionGroup):
    """Options of fitting."""

    settings: Annotated[
        list[str] | None,
        option(FITTING, "Setting; see 'segcal methods NAME'.", "--set", metavar="KEY=VALUE"),
    ] = None
    epochs: Annotated[int | None, option(FITTING, "Epochs of training.")] = None
    validation: Annotated[str | None, option(FITTING, "Split for choosing weights ('validation').")] = None
    logits_only: Annotated[bool, option(FITTING, "Do not read the images.", "--logits-only")] = False
    seed: Annotated[int | None, option(FITTING, "Random seed of training.")] = None


@dataclass(frozen=True)
class FitCommand(OptionGroup):
    """Options of a command that fits one calibrator, besides those of the folder and of fitting."""

    out: Annotated[Path, option(OUTPUT, "Folder to save the calibrator in.")]
    method: Method = "auto"
    split: Split = None
    device: Device = "auto"
    as_json: AsJson = False


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """Options of the device and the engine."""

    device: Device = "auto"
    engine: Annotated[str | None, typer.Option(help="Share the cases with a Ray cluster.", metavar="ray")] = None
    address: Annotated[str | None, typer.Option(help="Ray cluster; this machine by default.")] = None


@dataclass(frozen=True)
class MeasureOptions(OptionGroup):
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


@dataclass(frozen=True)
class ReferenceOptions(OptionGroup):
    """Options of the presentation: fields of `segcal.tables.Presentation`."""

    reference: Annotated[str | None, option(MEASURING, "Method to test the others against.")] = None
    test: Annotated[str | None, option(MEASURING, "wilcoxon (paired), paper (Mann-Whitney).")] = None
    average: Annotated[str | None, option(MEASURING, "Over images (default), or over pixels.")] = None


@dataclass(frozen=True)
class OutputOptions(OptionGroup):
    """Options of the output."""

    out: Annotated[Path | None, option(OUTPUT, "Folder to save the results in.")] = None
    page: Annotated[Path | None, option(OUTPUT, "HTML file to show the results in.")] = None
    cases: Annotated[
        list[str] | None, option(OUTPUT, "Cases on the page; by default worst to best.", metavar="NAME")
    ] = None
    as_json: AsJson = False
