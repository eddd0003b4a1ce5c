"""`segcal fuse`: multi-atlas label fusion of a folder of warped atlases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import Answer
from segcal.progress import progress_of
from segcal.text import counted


def fuse(
    atlases: Annotated[Path, typer.Argument(help="Folder with labels/ and probabilities/ or images/ (NIfTI).")],
    out: Annotated[Path, typer.Option(help="Folder to write the fused labels and maps in.")],
    method: Annotated[str, typer.Option(help="jlf, svwv, plurality or majority.")] = "jlf",
    target: Annotated[Path | None, typer.Option(help="Target image, to weight atlases without probabilities.")] = None,
    alpha: Annotated[float, typer.Option(help="jlf: added to the diagonal of the error matrix.")] = 0.1,
    beta: Annotated[float | None, typer.Option(help="jlf: exponent of the error matrix.")] = None,
    patch: Annotated[
        int | None, typer.Option(help="jlf: radius of the cube over which errors are summed, in voxels.")
    ] = None,
    nonnegative: Annotated[bool, typer.Option("--nonnegative", help="jlf: forbid negative weights.")] = False,
) -> Answer:
    """Fuse the labels of atlases that are warped to one target.

    Writes labels.nii.gz, probability.nii.gz (the winner's share of the weight) and agreement.nii.gz (the share of the
    atlases that propose it), in the geometry of the input.

    Example: segcal fuse ATLASES --method jlf --out fused/
    """
    from segcal.files import check_output_folder
    from segcal.fusion.folder import fuse_folder

    check_output_folder(out, "fusion", atlases, target)
    with progress_of("fusing") as progress:
        task = progress.task_ids[0]
        written = fuse_folder(
            atlases,
            out,
            method,  # type: ignore[arg-type]
            target=target,
            alpha=alpha,
            beta=beta,
            patch=patch,
            nonnegative=nonnegative,
            watch=lambda k, n: progress.update(task, completed=k, total=n),
        )
    weights = {"equal": "equal weights", "probabilities": "their probabilities", "images": "their images"}
    return Answer(
        {"out": str(out), **written},
        f"{counted(len(written['atlases']), 'atlas', 'atlases')} fused by {weights[written['weights']]}, "
        f"{counted(len(written['labels']), 'label')}, {counted(written['voxels'], 'voxel')}; written to {out}",
    )
