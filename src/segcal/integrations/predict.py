"""The cases that a network makes of the batches of a loader."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn

from segcal.cases import rater_cases
from segcal.integrations.loaders import Batch, read_batch
from segcal.integrations.outputs import Remark, check_scale, read_output, resized
from segcal.integrations.passes import PassRunner, Wanted
from segcal.types import Activation, Case, InputError, Logits, Passes, public


@public
def predict_cases(
    network: nn.Module,
    batches: Iterable[Any],
    *,
    activation: Activation | None = None,
    raters: int | None = None,
    passes: Wanted = None,
    prefix: str = "",
    device: str | torch.device | None = None,
    remark: Remark | None = None,
) -> Iterator[Case]:
    """Yield the cases that a network makes of a loader, for `fit` and `evaluate`, in the memory of one batch.

    The network runs in evaluation mode without gradients; when the cases have been read, or the iterator is closed, it
    is in the mode that it was in before. Labels must have the size of the logits or an integer multiple of it, to which
    the logits are then interpolated.

    Args:
        network: Any segmentation network; see `segcal.integrations.outputs` for what it may return.
        batches: A loader; see `segcal.integrations.loaders` for what it may yield.
        activation: "sigmoid" for a network of channels that may overlap, whose labels are masks `[B, C, *S]`; not
            needed for a single channel.
        raters: Number of raters if the labels are the shares of raters that chose each class, `[B, L, *S]`; each image
            becomes as many cases (see `segcal.rater_cases`).
        passes: Further passes over each image, whose logits the cases carry; see `segcal.calibrate`.
        prefix: Start of the names of cases whose batch has no names; they are numbered.
        device: Where to move the images; by default where the network is.
        remark: Called once with a sentence if the network returns several tensors, of which the first is used.
    """
    if not isinstance(network, nn.Module):
        raise InputError(
            f"the network must be a torch.nn.Module, got {type(network).__name__}; put a function into the `forward` "
            "of a module, or give the logits that it returned as segcal.Case to the fit of segcal.create(...)"
        )
    there = device_of(network) if device is None else torch.device(device)
    maker, runner = CaseMaker(activation, raters, prefix), PassRunner(passes).to(there)
    with evaluating(network), evaluating(runner):
        for given in batches:
            batch = read_batch(given, activation, soft=raters is not None)
            with torch.no_grad():  # never around a yield: the mode would leak to the caller
                image = batch.image.to(there)
                logits, further = read_output(network(image), remark), runner(network, image, batch.size)
            remark = None  # once is enough
            yield from maker.cases(batch, logits, further)


class CaseMaker:
    """Turns batches and their logits into cases with unique names; the arguments are those of `predict_cases`."""

    def __init__(self, activation: Activation | None = None, raters: int | None = None, prefix: str = "") -> None:
        self.activation, self.raters, self.prefix = activation, raters, prefix
        self._number, self._seen = 0, dict[str, int]()

    def cases(self, batch: Batch, logits: Logits, passes: Passes | None = None) -> Iterator[Case]:
        """Yield the cases of a batch, with its logits and passes at the size of its labels, on the CPU."""
        image, labels, names = batch
        if len(logits) != len(image):
            raise InputError(
                f"the network must return logits of {len(image)} images, got shape {tuple(logits.shape)}; "
                "check its output"
            )
        check_scale(logits, batch.size)
        logits = resized(logits.detach(), batch.size).cpu()
        # at a size other than that of the labels, the image cannot help a method that looks at it
        images = image.cpu() if tuple(image.shape[2:]) == batch.size else [None] * len(image)
        own = names or tuple(f"{self.prefix}{self._number + k:06d}" for k in range(len(image)))
        self._number += len(image)
        further = [None] * len(image) if passes is None else passes.detach().cpu()
        for name, scores, truth, picture, others in zip(own, logits, labels.cpu(), images, further, strict=True):
            times = self._seen[name] = self._seen.get(name, 0) + 1
            # several crops of one image come with its name, and belong together
            group = name if times > 1 or own.count(name) > 1 else None
            case = Case(name if times == 1 else f"{name}-{times}", scores, truth, picture, group=group, passes=others)
            yield from [case] if self.raters is None else rater_cases(case, self.raters, activation=self.activation)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and every module of it back into its own mode at the end."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def device_of(network: nn.Module) -> torch.device:
    """Return the device of a network: that of its first parameter or buffer, or the CPU if it has none."""
    first = next(chain(network.parameters(), network.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def import_network(text: str) -> nn.Module:
    """Return the network that MODULE:FUNCTION returns; modules of the working folder are found too."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        network = resolve_name(text)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"a network is named as MODULE:FUNCTION that returns it, got '{text}' ({error})") from error
    finally:
        sys.path.pop(0)
    if not isinstance(network, nn.Module):
        raise InputError(f"'{text}' must return an nn.Module, got {type(network).__name__}")
    return network
