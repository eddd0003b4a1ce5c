"""ONNX files of a calibrator, or of a network with its calibrator, kept only if they agree with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from segcal.calibrators import Calibrator
from segcal.integrations.exporting import Run, exportable
from segcal.integrations.extras import needs_extra


def export_onnx(
    calibrator: Calibrator,
    path: str | Path,
    *,
    network: nn.Module | None = None,
    image_channels: int | None = None,
    size: Sequence[int] | None = None,
) -> float:
    """Write an ONNX file with dynamic batch and spatial size; return the largest difference to PyTorch that was seen.

    The calibrator alone maps `logits` (and `image`) to `probabilities`; with a network, `image` to `probabilities`.

    Args:
        calibrator: A fitted calibrator.
        path: The file to write.
        network: Network to put before the calibrator.
        image_channels: Channels of the network's input, if the calibrator does not use the image.
        size: Spatial size to trace and check with; other sizes work too.
    """
    onnxruntime = _import_onnx()
    made = exportable(calibrator, network, image_channels, size)

    def make(file: Path) -> Run:
        torch.onnx.export(
            made.module,
            made.examples(2, made.size),
            file,
            dynamo=True,
            dynamic_shapes=made.dynamic_shapes(),
            input_names=made.names,
            output_names=["probabilities"],
            external_data=False,
            verbose=False,
        )
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

        def run(inputs: tuple[Tensor, ...]) -> Tensor:
            named = {name: value.numpy() for name, value in zip(made.names, inputs, strict=True)}
            return torch.from_numpy(session.run(None, named)[0])

        return run

    return made.write(path, make, "ONNX file")


def _import_onnx() -> Any:
    with needs_extra("onnx"):
        import onnx  # noqa: F401, PLC0415
        import onnxruntime  # noqa: PLC0415
        import onnxscript  # noqa: F401, PLC0415
    return onnxruntime
