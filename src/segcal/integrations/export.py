"""Files that run without segcal (ONNX, `torch.export`): a calibrator, or a network with its calibrator.

A file is kept only if it gives the probabilities that PyTorch gives.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from segcal.calibrators import Calibrator, PooledPasses
from segcal.files import signed_file
from segcal.integrations import needs_extra
from segcal.integrations.calibrate import CalibratedModel
from segcal.text import warn_caller
from segcal.types import InputError

TOLERANCE = 1e-4
"""Largest difference of a probability between PyTorch and an exported file."""

Run: TypeAlias = Callable[[tuple[Tensor, ...]], Tensor]
"""Function that runs an exported file on its inputs."""


def export_onnx(
    calibrator: Calibrator,
    path: str | Path,
    *,
    network: nn.Module | None = None,
    image_channels: int | None = None,
    size: Sequence[int] | None = None,
) -> float:
    """Write an ONNX file; return the largest difference to PyTorch.

    The calibrator alone maps `logits` (and `image`, and `passes` `[B, K, L, *S]`) to `probabilities`; with a network,
    `image` to `probabilities`.
    Batch and spatial size are dynamic. The spatial size of a network that runs at one size only is fixed in the file,
    with a warning.

    Args:
        calibrator: A fitted calibrator.
        path: The file to write.
        network: Network to put before the calibrator.
        image_channels: Channels of the network's input, if the calibrator does not use the image.
        size: Spatial size to trace and check with; by default 64 along each axis.
    """
    with needs_extra("onnx"):
        import onnx  # noqa: F401, PLC0415
        import onnxruntime  # noqa: PLC0415
        import onnxscript  # noqa: F401, PLC0415

    def make(model: _Exportable, file: Path, dynamic: bool) -> Run:
        names = list(model.inputs)
        torch.onnx.export(
            model,
            model.examples(2, model.size),
            file,
            dynamo=True,
            dynamic_shapes=model.shapes(dynamic, str),
            input_names=names,
            output_names=["probabilities"],
            external_data=False,
            verbose=False,
        )
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

        def run(inputs: tuple[Tensor, ...]) -> Tensor:
            named = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
            return torch.from_numpy(session.run(None, named)[0])

        return run

    return _write(_Exportable(calibrator, network, image_channels, size), path, make, "ONNX file")


def export_torch(
    calibrator: Calibrator,
    path: str | Path,
    *,
    network: nn.Module | None = None,
    image_channels: int | None = None,
    size: Sequence[int] | None = None,
) -> float:
    """Write a file that `torch.export.load(path).module()` runs; return the largest difference to PyTorch.

    Inputs and arguments are those of `export_onnx`.
    """

    def make(model: _Exportable, file: Path, dynamic: bool) -> Run:
        shapes = model.shapes(dynamic, lambda _: torch.export.Dim.AUTO)
        torch.export.save(torch.export.export(model, model.examples(2, model.size), dynamic_shapes=shapes), file)
        loaded = torch.export.load(file).module()
        return lambda inputs: loaded(*inputs)

    return _write(_Exportable(calibrator, network, image_channels, size), path, make, "exported program")


class _Exportable(nn.Module):
    """A copy of a calibrator, perhaps behind a network, on the CPU: from its inputs to probabilities.

    Attributes:
        inputs: Axes of each input between batch and space: `logits` and perhaps `image` and `passes`, or `image` alone
            with a network.
        size: Spatial size to trace with.
    """

    def __init__(
        self, calibrator: Calibrator, network: nn.Module | None, image_channels: int | None, size: Sequence[int] | None
    ) -> None:
        super().__init__()
        if not calibrator.fitted:
            raise InputError(f"this {type(calibrator).__name__} has not been fitted; call fit, or load a fitted one")
        calibrator = calibrator.applied
        used, dims = int(getattr(calibrator, "image_channels", 0)), getattr(calibrator, "spatial_dims", None)
        if size is not None and dims is not None and len(size) != dims:
            raise InputError(f"size must have {dims} numbers, as the calibrator has {dims} axes, got {tuple(size)}")
        self.size, self.alone = tuple(size or (64,) * (dims or 2)), network is None
        self.inputs = dict[str, tuple[int, ...]]()
        model: nn.Module = calibrator
        if network is None:
            self.inputs["logits"] = (calibrator.num_classes,)
            if used:
                self.inputs["image"] = (used,)
            if isinstance(calibrator, PooledPasses) and calibrator.uses_passes:
                self.inputs["passes"] = (calibrator.weights.numel() - 1, calibrator.num_classes)
        else:
            if not (image_channels or used):
                raise InputError("to export a network, the channels of its input must be known; give image_channels")
            if calibrator.uses_passes:
                raise InputError("a calibrator that pools passes is exported without its network: leave network out")
            self.inputs["image"] = (image_channels or used,)
            model = CalibratedModel(network, calibrator)
        self.model = deepcopy(model).cpu().eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        model: Any = self.model
        found: Tensor = (model.predict_proba if self.alone else model)(**dict(zip(self.inputs, inputs, strict=True)))
        return found

    def examples(self, batch: int, size: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return noise on blocks of eight pixels a side, so that there are regions with an inside and a border."""
        generator = torch.Generator().manual_seed(0)

        def example(axes: tuple[int, ...]) -> Tensor:
            channels = prod(axes)
            blocks = 3 * torch.randn(batch, channels, *(-(-side // 8) for side in size), generator=generator)
            whole = torch.nn.functional.interpolate(blocks, size, mode="nearest")
            return (whole + torch.randn(batch, channels, *size, generator=generator)).reshape(batch, *axes, *size)

        return tuple(map(example, self.inputs.values()))

    def shapes(self, dynamic: bool, dimension: Callable[[str], Any]) -> Any:
        """Return the axes that may have any length, the same in every input: the batch and, if `dynamic`, space."""
        names = [f"size_{k}" for k in range(len(self.size))] if dynamic else []
        each = tuple(
            {0: dimension("batch"), **{1 + len(axes) + k: dimension(name) for k, name in enumerate(names)}}
            for axes in self.inputs.values()
        )
        return (each,)  # `forward` takes all inputs as one tuple

    @property
    def other_size(self) -> tuple[int, ...]:
        """A size that is not traced: a file with frozen sizes must not pass.

        Networks often need lengths that a power of two divides, so theirs grow by the largest one that divides them.
        """
        if self.alone:
            return tuple(length + 8 * (k + 1) for k, length in enumerate(self.size))
        return tuple(length + (length & -length) for length in self.size)

    @torch.no_grad()
    def failure(self, batch: int, size: tuple[int, ...]) -> Exception | None:
        """Return the error of the module at a size, if there is one; the errors of tracers are pages long."""
        try:
            self(*self.examples(batch, size))
        except InputError:
            raise
        except Exception as error:  # whatever a network of someone else raises
            return error
        return None


def _write(model: _Exportable, path: str | Path, make: Callable[[_Exportable, Path, bool], Run], kind: str) -> float:
    """Write a file with `make`, which returns a function that runs it; return the largest difference to PyTorch."""
    if error := model.failure(2, model.size):
        shape = tuple(model.examples(2, model.size)[0].shape)
        raise InputError(
            f"the network must run on a float32 image of shape {shape}, got '{_first_line(error)}'; "
            "set image_channels and size as it needs them, and export it in float32"
        ) from error
    with signed_file(path) as file, torch.no_grad():
        for dynamic in (True, False) if model.failure(1, model.other_size) is None else (False,):
            try:
                with _without_remarks():
                    run = make(model, file, dynamic)
                break
            except Exception as error:  # tracers raise errors of every kind
                if not dynamic:
                    raise InputError(f"the network cannot be exported ({_first_line(error)})") from error
        inputs = [model.examples(1, model.other_size if dynamic else model.size), model.examples(2, model.size)]
        worst = max(float((model(*given) - run(given)).abs().max()) for given in inputs)
        if not worst <= TOLERANCE:
            raise InputError(
                f"the {kind} differs from PyTorch by {worst:.2g}, more than {TOLERANCE}; it was not kept: "
                "the network may hold an operation that is computed differently there"
            )
    if not dynamic:
        fixed = f"the {kind} accepts images of size {model.size} only, because the network cannot be traced at others"
        warn_caller(fixed)
    return worst


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Suppress what the exporters say about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
