"""The options that several commands have, in the words of their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Argument(help="Folder with logits/ and labels/, or nnU-Net predictions.")]
LabelFolder = Annotated[Path | None, typer.Option("--labels", help="Folder of the true labels, if not DATA/labels.")]
Split = Annotated[str | None, typer.Option(help="Only the cases that splits.json lists under this name.")]
Classes = Annotated[int | None, typer.Option("--num-classes", help="Number of classes, if segcal.toml does not say.")]
Ignore = Annotated[list[int] | None, typer.Option("--ignore-index", help="Label(s) left out everywhere.")]
Background = Annotated[int | None, typer.Option(help="Class outside the region All.")]
Scores = Annotated[str | None, typer.Option(help="What the files hold: logits or probabilities.")]
Reference = Annotated[str | None, typer.Option(help="Method that the others are tested against.")]
SignificanceTest = Annotated[
    str | None, typer.Option("--test", help="mann-whitney (the paper's, default) or wilcoxon (paired).")
]
AverageOver = Annotated[
    str | None, typer.Option("--average", help="Mean over images (the paper's, default) or all pixels together.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

ValidationSplit = Annotated[
    str | None, typer.Option(help="Split that the best weights are chosen on; 'validation' where there is one.")
]
LogitsOnly = Annotated[bool, typer.Option("--logits-only", help="Do not look at the images.")]
Epochs = Annotated[int | None, typer.Option(help="Learned methods: passes over the data.")]
LearningRate = Annotated[float | None, typer.Option(help="Learned methods: of Adam.")]
BatchSize = Annotated[int | None, typer.Option(help="Learned methods: images in a step.")]
Patience = Annotated[int | None, typer.Option(help="Learned methods: stop after so many epochs without gain.")]
Cosine = Annotated[bool | None, typer.Option("--cosine", help="Learned methods: let the rate fall to 0.")]
Crop = Annotated[int | None, typer.Option(help="Learned methods: side of random crops.")]
Flips = Annotated[bool | None, typer.Option("--flips", help="Learned methods: random flips.")]
Precision = Annotated[str | None, typer.Option(help="Learned methods: float32 or bfloat16.")]
Device = Annotated[str | None, typer.Option(help="Learned methods: auto, cpu, cuda.")]

Page = Annotated[Path | None, typer.Option(help="HTML file to show the results in.")]
ShownCases = Annotated[
    list[str] | None, typer.Option(help="Cases to show on the page; else the worst, a typical one and the best.")
]
Bins = Annotated[int, typer.Option(help="Number of bins.")]
Form = Annotated[str, typer.Option(help="Of SCE and ACE: tables, equations or marginal.")]
PatchSize = Annotated[int, typer.Option(help="Side of the Local patches.")]
PatchSizes = Annotated[list[int] | None, typer.Option(help="Further sides, to see what they change.")]
Patches = Annotated[int, typer.Option(help="Local patches in each image.")]
Interval = Annotated[str, typer.Option(help="Of the bootstrap: percentile or bca.")]
Floor = Annotated[
    bool, typer.Option("--floor", help="Show what each method would score if it were perfectly calibrated.")
]
