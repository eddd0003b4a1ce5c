"""Files of `torch.export` (.pt2): network and calibrator in one, for PyTorch without segcal or AOTInductor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from segcal.calibrators import Calibrator
from segcal.integrations.exporting import Run, exportable


def export_torch(
    calibrator: Calibrator,
    path: str | Path,
    *,
    network: nn.Module | None = None,
    image_channels: int | None = None,
    size: Sequence[int] | None = None,
) -> float:
    """Write a file that `torch.export.load(path).module()` runs; return the largest difference to PyTorch.

    Inputs and arguments are those of `segcal.integrations.onnx.export_onnx`; batch and spatial size are dynamic.
    """
    made = exportable(calibrator, network, image_channels, size)

    def make(file: Path) -> Run:
        shapes = _dimensions(made.dynamic_shapes())
        torch.export.save(torch.export.export(made.module, made.examples(2, made.size), dynamic_shapes=shapes), file)
        loaded = torch.export.load(file).module()
        return lambda inputs: loaded(*inputs)

    return made.write(path, make, "exported program")


def _dimensions(shapes: Any) -> Any:
    """Return the names of dynamic axes as dimensions that the tracer may relate to one another."""
    if isinstance(shapes, tuple):
        return tuple(_dimensions(one) for one in shapes)
    return dict.fromkeys(shapes, torch.export.Dim.AUTO)
