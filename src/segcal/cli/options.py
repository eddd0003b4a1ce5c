"""The options that several commands share, in the words of their help. Imports nothing heavy: help must be quick."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.groups import OptionGroup

DATA, MEASURING, OUTPUT = "Data", "Measuring", "Output"
"""Titles of the panels in the help. Those of the calibrators are in `segcal.cli.method_options`."""

Data = Annotated[
    Path, typer.Argument(help="Folder with logits/ and labels/, or predictions of nnU-Net or TotalSegmentator.")
]
SavedCalibrator = Annotated[Path, typer.Argument(help="Folder of a saved calibrator.")]
ResultsFolder = Annotated[Path, typer.Argument(help="Folder that 'segcal evaluate' or 'segcal compare' wrote.")]

Split = Annotated[
    str | None, typer.Option(help="Only the cases that splits.json lists under this name.", rich_help_panel=DATA)
]
Scores = Annotated[str | None, typer.Option(help="What the files hold: logits or probabilities.", rich_help_panel=DATA)]
LogitsOnly = Annotated[bool, typer.Option("--logits-only", help="Ignore the images.", rich_help_panel=DATA)]
ValidationSplit = Annotated[
    str | None,
    typer.Option(
        help="Split on which the best weights are chosen; 'validation' if there is one.", rich_help_panel=DATA
    ),
]
Device = Annotated[str, typer.Option(help="Device that computes: auto (a GPU if there is one), cpu, cuda, cuda:1, ...")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text and tables.", rich_help_panel=OUTPUT)]


@dataclass(frozen=True)
class FolderOptions(OptionGroup):
    """How the data folder is read. What is given here overrides `segcal.toml`."""

    labels: Annotated[
        Path | None, typer.Option(help="Folder of the true labels, if not DATA/labels.", rich_help_panel=DATA)
    ] = None
    num_classes: Annotated[
        int | None, typer.Option(help="Number of classes, if segcal.toml does not name them.", rich_help_panel=DATA)
    ] = None
    activation: Annotated[
        str | None,
        typer.Option(
            help="softmax for exclusive classes, sigmoid for one channel or several that may overlap.",
            rich_help_panel=DATA,
        ),
    ] = None
    ignore_index: Annotated[
        list[int] | None, typer.Option(help="Label(s) ignored everywhere.", rich_help_panel=DATA)
    ] = None
    background: Annotated[
        int | None, typer.Option(help="Class that the region All leaves out.", rich_help_panel=DATA)
    ] = None
    scores: Scores = None


@dataclass(frozen=True)
class MeasureOptions(OptionGroup):
    """How calibration is measured."""

    bins: Annotated[int, typer.Option(help="Number of confidence bins.", rich_help_panel=MEASURING)] = 10
    form: Annotated[
        str, typer.Option(help="Form of SCE and ACE: tables, equations or marginal.", rich_help_panel=MEASURING)
    ] = "tables"
    patch_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the Local patches; the paper's 72, or less for small images.", rich_help_panel=MEASURING
        ),
    ] = None
    patch_sizes: Annotated[
        list[int] | None, typer.Option(help="Further sides, to show their influence.", rich_help_panel=MEASURING)
    ] = None
    patches: Annotated[int, typer.Option(help="Local patches per image.", rich_help_panel=MEASURING)] = 10
    interval: Annotated[
        str, typer.Option(help="Bootstrap intervals: percentile or bca.", rich_help_panel=MEASURING)
    ] = "percentile"
    floor: Annotated[
        bool,
        typer.Option(
            "--floor",
            help="Also measure what each method would score if it were perfectly calibrated.",
            rich_help_panel=MEASURING,
        ),
    ] = False
    surfaces: Annotated[
        bool,
        typer.Option(
            "--surfaces",
            help="Also measure the segmentation: Dice, surface Dice and surface distances of every structure.",
            rich_help_panel=MEASURING,
        ),
    ] = False
    surface_tolerance: Annotated[
        float,
        typer.Option(
            help="Distance within which surfaces count as equal, in mm (in pixels without a spacing).",
            rich_help_panel=MEASURING,
        ),
    ] = 1.0
    limits: Annotated[
        bool,
        typer.Option(
            "--limits",
            help="Also measure what temperatures chosen with the labels would reach.",
            rich_help_panel=MEASURING,
        ),
    ] = False
    seed: Annotated[
        int,
        typer.Option(
            help="Random seed of patches, bootstrap and floor, and of training in 'compare'.", rich_help_panel=MEASURING
        ),
    ] = 0


@dataclass(frozen=True)
class ReferenceOptions(OptionGroup):
    """Which method the others are tested against, how, and what the numbers are averages over."""

    reference: Annotated[
        str | None, typer.Option(help="Method that the others are tested against.", rich_help_panel=MEASURING)
    ] = None
    test: Annotated[
        str | None,
        typer.Option(
            help="Significance test; the paper's Mann-Whitney U by default, 'wilcoxon' is paired.",
            rich_help_panel=MEASURING,
        ),
    ] = None
    average: Annotated[
        str | None,
        typer.Option(
            help="Means over images (the paper's, default) or all pixels together: images or pixels.",
            rich_help_panel=MEASURING,
        ),
    ] = None


@dataclass(frozen=True)
class PageOptions(OptionGroup):
    """Where results are saved and shown."""

    out: Annotated[Path | None, typer.Option(help="Folder to save the results in.", rich_help_panel=OUTPUT)] = None
    page: Annotated[Path | None, typer.Option(help="HTML file to show the results in.", rich_help_panel=OUTPUT)] = None
    cases: Annotated[
        list[str] | None,
        typer.Option(
            help="Cases to show on the page; by default the worst, a typical one and the best.", rich_help_panel=OUTPUT
        ),
    ] = None
