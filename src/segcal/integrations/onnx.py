"""ONNX files of a calibrator, or of a network with its calibrator, kept only if they agree with PyTorch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from segcal.calibrators import Calibrator
from segcal.files import staged_file
from segcal.integrations.calibrated_model import CalibratedModel
from segcal.types import InputError

TOLERANCE = 1e-4
"""Largest difference of a probability between PyTorch and onnxruntime."""


class _Probabilities(nn.Module):
    """A calibrator as a module from logits, and the image where it looks at one, to probabilities."""

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator = calibrator

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.calibrator.predict_proba(*inputs)


def export_onnx(
    calibrator: Calibrator,
    path: str | Path,
    *,
    network: nn.Module | None = None,
    image_channels: int | None = None,
    size: Sequence[int] | None = None,
) -> float:
    """Write an ONNX file with dynamic batch and spatial size; the largest difference to PyTorch that was seen.

    The calibrator alone maps `logits` (and `image`) to `probabilities`; with a network, `image` to `probabilities`.

    Args:
        calibrator: A fitted one.
        path: Of the file.
        network: Put before the calibrator.
        image_channels: Of the network's input, where the calibrator does not say.
        size: Spatial size to trace and check with; other sizes work too.
    """
    onnxruntime = _import_onnx()
    if not calibrator.fitted:
        raise InputError(f"this {type(calibrator).__name__} has not been fitted; call fit or load one that was")
    calibrator = calibrator.applied
    looks = int(getattr(calibrator, "image_channels", 0))
    sizes = _sizes(calibrator, size)
    if network is None:
        module: nn.Module = _Probabilities(calibrator)
        shapes = [("logits", calibrator.num_classes), *([("image", looks)] if looks else [])]
    else:
        channels = image_channels or looks
        if not channels:
            raise InputError("to export a network, the channels of its input must be known; give image_channels")
        module, shapes = CalibratedModel(network, calibrator), [("image", channels)]
    module = deepcopy(module).cpu().eval()  # whose module it is goes on with it where and as it was
    names = [name for name, _ in shapes]
    with staged_file(path) as file:
        _write(module, _examples(shapes, 2, sizes), names, file)
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        # a size that was not traced: a graph with frozen sizes must not pass
        others = [(1, tuple(length + 8 * (k + 1) for k, length in enumerate(sizes))), (2, sizes)]
        worst = max(_difference(module, session, names, _examples(shapes, *other)) for other in others)
        if not worst <= TOLERANCE:
            raise InputError(
                f"the ONNX file differs from PyTorch by {worst:.2g}, more than {TOLERANCE}; it was not kept: "
                "the network may hold an operation that onnxruntime computes otherwise"
            )
    return worst


def _sizes(calibrator: Calibrator, size: Sequence[int] | None) -> tuple[int, ...]:
    dims = getattr(calibrator, "spatial_dims", None)
    if size is None:
        return (64,) * (dims or 2)
    if dims is not None and len(size) != dims:
        raise InputError(f"size must have {dims} numbers, as the calibrator has {dims} axes, got {tuple(size)}")
    return tuple(size)


def _write(module: nn.Module, examples: tuple[Tensor, ...], names: list[str], file: Path) -> None:
    dynamic = {0: "batch", **{k: f"size_{k - 2}" for k in range(2, examples[0].ndim)}}
    each = tuple(dynamic for _ in examples)
    shapes: Any = (each,) if isinstance(module, _Probabilities) else each
    with _quiet():
        torch.onnx.export(
            module,
            examples,
            file,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=names,
            output_names=["probabilities"],
            external_data=False,
            verbose=False,
        )


def _examples(shapes: Sequence[tuple[str, int]], batch: int, size: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Noise on blocks of eight pixels a side, so that there are regions with an inside and a border."""
    generator = torch.Generator().manual_seed(0)

    def example(channels: int) -> Tensor:
        blocks = 3 * torch.randn(batch, channels, *(-(-side // 8) for side in size), generator=generator)
        whole = torch.nn.functional.interpolate(blocks, size, mode="nearest")
        return whole + torch.randn(batch, channels, *size, generator=generator)

    return tuple(example(channels) for _, channels in shapes)


def _difference(module: nn.Module, session: Any, names: list[str], inputs: tuple[Tensor, ...]) -> float:
    with torch.no_grad():
        expected = module(*inputs)
    found = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})[0]
    return float((expected - torch.from_numpy(found)).abs().max())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _import_onnx() -> Any:
    try:
        import onnx  # noqa: F401, PLC0415
        import onnxruntime  # noqa: PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise InputError(f"export needs {error.name}; pip install segcal[onnx]") from error
    return onnxruntime
