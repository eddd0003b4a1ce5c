"""`segcal export`: a calibrator, perhaps behind its network, as ONNX or as a file of torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import Answer
from segcal.cli.options import OUTPUT, SavedCalibrator, option


def export(
    calibrator: SavedCalibrator,
    out: Annotated[Path, option(OUTPUT, "File to write: .onnx, or .pt2 for torch.export.")],
    network: Annotated[
        str | None, typer.Option(help="Put this network first: MODULE:FUNCTION that returns an nn.Module.")
    ] = None,
    image_channels: Annotated[int | None, typer.Option(help="Channels of the network's input.")] = None,
    size: Annotated[list[int] | None, typer.Option(help="Spatial size to trace and check with.")] = None,
) -> Answer:
    """Export a calibrator, or a network with its calibrator, as ONNX or torch.export.

    The file is kept only if running it agrees with PyTorch, at a size other than the one it was made with.

    Example: segcal export lts/ --out lts.onnx
    """
    from segcal.calibrators import load
    from segcal.files import check_output_file
    from segcal.integrations.export import export_onnx, export_torch
    from segcal.integrations.predict import import_network

    check_output_file(out, (".onnx", ".pt2"), calibrator)
    write = export_torch if out.suffix.lower() == ".pt2" else export_onnx
    worst = write(
        load(calibrator),
        out,
        network=None if network is None else import_network(network),
        image_channels=image_channels,
        size=size or None,
    )
    done = f"written to {out}; differs from PyTorch by at most {worst:.1e}"
    return Answer({"out": str(out), "difference": worst}, done)
