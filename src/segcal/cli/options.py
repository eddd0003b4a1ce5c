"""The options that several commands share, in the words of their help. Imports nothing heavy: help must be quick."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from segcal.cli.groups import OptionGroup

DATA, FITTING, MEASURING, OUTPUT = "Data", "Fitting", "Measuring", "Output"
"""Titles of the panels in the help."""


def option(panel: str, text: str, *flags: str, **more: Any) -> Any:
    """Return an option with its help, in one of the panels."""
    return typer.Option(*flags, help=text, rich_help_panel=panel, **more)


def complete_method() -> list[str]:
    """Return the names of the methods, for the completion of shells."""
    from segcal.calibrators import methods

    return list(methods())


Data = Annotated[Path, typer.Argument(help="Folder with logits/ and labels/, or predictions of nnU-Net.")]
SavedCalibrator = Annotated[Path, typer.Argument(help="Folder of a saved calibrator.")]
SavedCalibrators = Annotated[
    list[Path] | None, typer.Option(help="Saved calibrators, compared with the uncalibrated scores.")
]
ResultsFolder = Annotated[Path, typer.Argument(help="Folder that 'segcal evaluate' or 'segcal compare' wrote.")]
Method = Annotated[str, typer.Option(help="Method; 'segcal methods' lists them.", autocompletion=complete_method)]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, ...")]
AsJson = Annotated[bool, option(OUTPUT, "Print JSON instead of text.", "--json")]

Split = Annotated[str | None, option(DATA, "Use only the cases of this split of splits.json.")]
Scores = Annotated[Literal["logits", "probabilities"] | None, option(DATA, "Content of the score files.")]


@dataclass(frozen=True)
class FolderOptions(OptionGroup):
    """Options of reading the data folder, which override `segcal.toml`."""

    labels: Annotated[Path | None, option(DATA, "Folder of the true labels, if not DATA/labels.")] = None
    num_classes: Annotated[int | None, option(DATA, "Number of classes, if not in segcal.toml.")] = None
    activation: Annotated[
        Literal["softmax", "sigmoid"] | None, option(DATA, "Exclusive classes, or channels that may overlap.")
    ] = None
    ignore_index: Annotated[list[int] | None, option(DATA, "Label(s) ignored everywhere.")] = None
    background: Annotated[int | None, option(DATA, "Class outside the region All, in fits too.")] = None
    scores: Scores = None


@dataclass(frozen=True)
class FitOptions(OptionGroup):
    """Options of fitting."""

    settings: Annotated[
        list[str] | None,
        option(FITTING, "Setting of the method; 'segcal methods NAME' lists them.", "--set", metavar="KEY=VALUE"),
    ] = None
    epochs: Annotated[int | None, option(FITTING, "Epochs of training.")] = None
    validation: Annotated[str | None, option(FITTING, "Split that chooses the weights; 'validation' if present.")] = (
        None
    )
    logits_only: Annotated[bool, option(FITTING, "Do not read the images.", "--logits-only")] = False
    seed: Annotated[int | None, option(FITTING, "Random seed of training.")] = None


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """Options of the device and the engine."""

    device: Device = "auto"
    engine: Annotated[
        str | None, typer.Option(help="Divide the cases between the workers of a Ray cluster.", metavar="ray")
    ] = None
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; this machine by default.")] = None


@dataclass(frozen=True)
class MeasureOptions(OptionGroup):
    """Options of measuring: fields of `segcal.Protocol`."""

    bins: Annotated[int, option(MEASURING, "Number of confidence bins.")] = 10
    form: Annotated[str, option(MEASURING, "SCE, ACE: tables, equations, marginal.")] = "tables"
    patch_size: Annotated[int | None, option(MEASURING, "Side of the Local patches in pixels.")] = None
    patch_sizes: Annotated[list[int] | None, option(MEASURING, "Further sides to measure.")] = None
    patches: Annotated[int, option(MEASURING, "Local patches per image.")] = 10
    patch_rule: Annotated[str, option(MEASURING, "Patches: labelled, or paper for all.")] = "labelled"
    interval: Annotated[str, option(MEASURING, "Bootstrap: percentile or bca.")] = "percentile"
    floor: Annotated[bool, option(MEASURING, "Add the scores of perfect calibration.", "--floor")] = False
    surfaces: Annotated[bool, option(MEASURING, "Add Dice and surface distances.", "--surfaces")] = False
    surface_tolerance: Annotated[float, option(MEASURING, "Tolerance in mm, or in pixels.")] = 1.0
    limits: Annotated[bool, option(MEASURING, "Add the scores of oracle temperatures.", "--limits")] = False
    seed: Annotated[int, option(MEASURING, "Random seed, of training too.")] = 0


@dataclass(frozen=True)
class ReferenceOptions(OptionGroup):
    """Options of the presentation: fields of `segcal.tables.Presentation`."""

    reference: Annotated[str | None, option(MEASURING, "Method that the others are tested against.")] = None
    test: Annotated[str | None, option(MEASURING, "Test: wilcoxon (paired) or paper (Mann-Whitney).")] = None
    average: Annotated[str | None, option(MEASURING, "Averages over images or pixels; images by default.")] = None


@dataclass(frozen=True)
class OutputOptions(OptionGroup):
    """Options of the output."""

    out: Annotated[Path | None, option(OUTPUT, "Folder to save the results in.")] = None
    page: Annotated[Path | None, option(OUTPUT, "HTML file to show the results in.")] = None
    cases: Annotated[list[str] | None, option(OUTPUT, "Cases on the page; worst, typical and best by default.")] = None
    as_json: AsJson = False
