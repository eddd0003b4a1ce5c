"""What every exported file is made of and checked with: one module from logits or images to probabilities."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from segcal.calibrators import Calibrator
from segcal.files import staged_file
from segcal.integrations.calibrated_model import CalibratedModel
from segcal.types import InputError

TOLERANCE = 1e-4
"""Largest difference of a probability between PyTorch and an exported file."""

Run: TypeAlias = Callable[[tuple[Tensor, ...]], Tensor]
"""Runs an exported file on its inputs."""


class _Probabilities(nn.Module):
    """A calibrator as a module from logits, and the image if it uses one, to probabilities."""

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator = calibrator

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.calibrator.predict_proba(*inputs)


@dataclass(frozen=True)
class Exportable:
    """A module on the CPU in evaluation mode, with its inputs.

    Attributes:
        module: From the inputs to probabilities.
        inputs: Name and channels of each input: `logits` and perhaps `image`, or `image` alone with a network.
        size: Spatial size to trace with.
    """

    module: nn.Module
    inputs: tuple[tuple[str, int], ...]
    size: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """Names of the inputs."""
        return [name for name, _ in self.inputs]

    def examples(self, batch: int, size: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Noise on blocks of eight pixels a side, so that there are regions with an inside and a border."""
        generator = torch.Generator().manual_seed(0)

        def example(channels: int) -> Tensor:
            blocks = 3 * torch.randn(batch, channels, *(-(-side // 8) for side in size), generator=generator)
            whole = torch.nn.functional.interpolate(blocks, size, mode="nearest")
            return whole + torch.randn(batch, channels, *size, generator=generator)

        return tuple(example(channels) for _, channels in self.inputs)

    def dynamic_shapes(self) -> Any:
        """Return which axes may have any length: batch and space, the same in every input."""
        axes = {0: "batch", **{k + 2: f"size_{k}" for k in range(len(self.size))}}
        each = tuple(axes for _ in self.inputs)
        return (each,) if isinstance(self.module, _Probabilities) else each

    @property
    def other_size(self) -> tuple[int, ...]:
        """A size that is not traced: a file with frozen sizes must not pass.

        Networks often need lengths that a power of two divides, so theirs grow by the largest one that divides them.
        """
        if isinstance(self.module, _Probabilities):
            return tuple(length + 8 * (k + 1) for k, length in enumerate(self.size))
        return tuple(length + (length & -length) for length in self.size)

    def write(self, path: str | Path, make: Callable[[Path], Run], what: str) -> float:
        """Write a file with `make`, which returns a function that runs it; return the largest difference to PyTorch.

        The file is kept only if the difference is small.
        """
        with staged_file(path) as file, torch.no_grad():
            self._try()
            with without_remarks():
                run = make(file)
            return self.check(run, what)

    def check(self, run: Run, what: str) -> float:
        """Return the largest difference to PyTorch, also at a size that was not traced; raise if it is too large."""
        worst = max(self._difference(run, self.examples(*other)) for other in ((1, self.other_size), (2, self.size)))
        if not worst <= TOLERANCE:
            raise InputError(
                f"the {what} differs from PyTorch by {worst:.2g}, more than {TOLERANCE}; it was not kept: "
                "the network may hold an operation that is computed differently there"
            )
        return worst

    def _try(self) -> None:
        """Run the module before it is traced: the errors of a tracer are pages long and do not name the cause."""
        if isinstance(self.module, _Probabilities):
            return  # without a network, the inputs are those of the calibrator
        examples = self.examples(2, self.size)
        try:
            self.module(*examples)
        except InputError:
            raise
        except (RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"the network must run on a float32 image of shape {tuple(examples[0].shape)}, got '{reason}'; "
                "set image_channels and size as it needs them, and export it in float32"
            ) from error

    def _difference(self, run: Run, inputs: tuple[Tensor, ...]) -> float:
        return float((self.module(*inputs) - run(inputs)).abs().max())


def exportable(
    calibrator: Calibrator, network: nn.Module | None, image_channels: int | None, size: Sequence[int] | None
) -> Exportable:
    """Return a copy of the calibrator, behind its network if there is one, ready to export."""
    if not calibrator.fitted:
        raise InputError(f"this {type(calibrator).__name__} has not been fitted; call fit, or load a fitted one")
    calibrator = calibrator.applied
    used = int(getattr(calibrator, "image_channels", 0))
    if network is None:
        module: nn.Module = _Probabilities(calibrator)
        inputs = [("logits", calibrator.num_classes), *([("image", used)] if used else [])]
    else:
        channels = image_channels or used
        if not channels:
            raise InputError("to export a network, the channels of its input must be known; give image_channels")
        module, inputs = CalibratedModel(network, calibrator), [("image", channels)]
    return Exportable(deepcopy(module).cpu().eval(), tuple(inputs), _size(calibrator, size))


@contextmanager
def without_remarks() -> Iterator[None]:
    """Suppress what the exporters say about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _size(calibrator: Calibrator, size: Sequence[int] | None) -> tuple[int, ...]:
    dims = getattr(calibrator, "spatial_dims", None)
    if size is None:
        return (64,) * (dims or 2)
    if dims is not None and len(size) != dims:
        raise InputError(f"size must have {dims} numbers, as the calibrator has {dims} axes, got {tuple(size)}")
    return tuple(size)
