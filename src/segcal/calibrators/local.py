"""Local and image-based temperature scaling (Sec. 3.3, 3.4).

LTS divides the logits of each pixel by the temperature that the tree finds there, IBTS those of each image by the mean
of its temperatures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.calibrators.base import FitReport, TemperatureCalibrator
from segcal.calibrators.shared.streaming import pixels_of, summed_nll
from segcal.calibrators.shared.tree import Condition, Init, Positivity, TemperatureTree
from segcal.cases import Slab, reread, slabs_of
from segcal.functional.checks import IGNORED
from segcal.functional.division import clamped
from segcal.functional.probability import at_least_float32
from segcal.functional.temperature import likelihood
from segcal.training.batches import Sample
from segcal.training.loop import History, Settings, Watch, choose_device, override, train
from segcal.types import Case, IgnoreIndex, Image, InputError, Logits, Temperature

Preset = Literal["default", "paper"]

_CONTEXT = 8  # the reach, rounded up so that slabs are cut where the compiled tree's tiles are, and give the same bits


class LocalTemperatureScaling(TemperatureCalibrator):
    """Divide the logits of each pixel by a temperature that a small tree of convolutions reads from around it.

    Args:
        num_classes: L.
        spatial_dims: 2 or 3.
        image_channels: C; 0 to look at the logits only.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit but for its pixels near a boundary; None fits on every labelled pixel.
        bounds: Smallest and largest temperature that is applied.
        positivity: "relu" as in the paper, "softplus" or "exp".
        root_offset: 0 as in the paper's equation, 1 as in the released code.
        init: "normal", or "zeros", which keeps sibling leaves equal for ever.
        preset: "default" trains with Adam at 1e-4 for 200 epochs; "paper" for 100, at 1e-5 (2D) or 1e-4 (3D) and a
            tenth of it after 50.
        condition: "class" or "confidence" lets each predicted class, or each bin of the confidence, have a factor of
            its own on the temperature, as the paper suggests for future work.
    """

    method = "lts"
    context: int | None = _CONTEXT

    def __init__(
        self,
        num_classes: int,
        *,
        spatial_dims: int = 2,
        image_channels: int = 0,
        ignore_index: IgnoreIndex = None,
        background: int | None = None,
        bounds: tuple[float, float] = (0.05, 100.0),
        positivity: Positivity = "relu",
        root_offset: float = 0.0,
        init: Init = "normal",
        preset: Preset = "default",
        condition: Condition | None = None,
    ) -> None:
        super().__init__(num_classes, ignore_index=ignore_index, background=background, bounds=bounds)
        _check_choice("spatial_dims", spatial_dims, (2, 3))
        _check_choice("positivity", positivity, ("relu", "softplus", "exp"))
        _check_choice("init", init, ("normal", "zeros"))
        _check_choice("preset", preset, ("default", "paper"))
        _check_choice("condition", condition, (None, "class", "confidence"))
        if condition is not None and self.context is None:
            raise InputError(f"condition is for 'lts': '{self.method}' has one temperature for the whole image")
        self.spatial_dims, self.image_channels = spatial_dims, image_channels
        self.positivity, self.root_offset, self.init, self.preset = positivity, root_offset, init, preset
        self.condition = condition
        self.tree = TemperatureTree(
            num_classes,
            spatial_dims,
            image_channels,
            positivity=positivity,
            root_offset=root_offset,
            init=init,
            condition=condition,
        )
        self.requires_grad_(False)  # what is applied asks for no gradient; fit, or whoever trains on, turns it on

    def fit(
        self,
        cases: Iterable[Case],
        *,
        validation: Iterable[Case] | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        device: str = "auto",
        patience: int | None = None,
        cosine: bool = False,
        crop: int | None = None,
        flips: bool = False,
        precision: Literal["float32", "bfloat16"] = "float32",
        checkpoint: str | None = None,
        cache_bytes: int = 2 << 30,
        watch: Watch | None = None,
    ) -> Self:
        """Train the tree to least NLL; see `segcal.training.loop.Settings` for the arguments.

        Without `validation` the weights of the last epoch are kept.
        """
        started = perf_counter()
        kept = _CaseSource(reread(cases), self)
        checked = None if validation is None else _CaseSource(reread(validation), self)
        settings = self.settings(
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            seed=seed,
            device=device,
            patience=patience,
            cosine=cosine,
            crop=crop,
            flips=flips,
            precision=precision,
            checkpoint=checkpoint,
            cache_bytes=cache_bytes,
        )
        home = self.fitted.device
        # goes through all cases, so that bad ones are found before hours pass, and before what was learned is forgotten
        before, names = _look_through(self, kept.cases)
        self.requires_grad_(True)
        self.tree.reset(torch.Generator().manual_seed(seed))
        history = train(_Objective(self), kept, settings, validation=checked, watch=watch)
        self.to(choose_device(settings.device)).fitted.fill_(True)
        found = _Outcome.of(self, kept.cases)
        self.to(home)
        return self._finish(self._report(before, names, found, history, perf_counter() - started))

    def settings(self, **changes: Any) -> Settings:
        """How it is trained: by its preset, but for what is not None."""
        return override(_preset(self.preset, self.spatial_dims), **changes, spatial_dims=self.spatial_dims)

    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """The temperature of each pixel, within the bounds."""
        self._check(logits)
        return clamped(self._pool(self.tree(logits, self._image(logits, image))), *self.bounds)

    def _pool(self, temperature: Temperature) -> Temperature:
        return temperature

    def _image(self, logits: Logits, image: Image | None) -> Image | None:
        if not self.image_channels:
            return None
        expected = (logits.shape[0], self.image_channels, *logits.shape[2:])
        if image is None or tuple(image.shape) != expected:
            got = "none" if image is None else f"shape {tuple(image.shape)}"
            raise InputError(
                f"this {type(self).__name__} needs an image of shape {expected}, got {got}; "
                "give it, or build one with image_channels=0"
            )
        return image

    def _report(
        self, before: float, names: Sequence[str], found: _Outcome, history: History, seconds: float
    ) -> FitReport:
        warnings = list(history.warnings)
        if found.dead > 0.01:
            warnings.append(
                f"the ReLU at the root is 0 at {found.dead:.0%} of pixels, where it cannot learn; "
                "try positivity='softplus' or a smaller learning rate"
            )
        low, high = self.bounds
        if found.low < low or found.high > high:
            warnings.append(
                f"temperatures from {found.low:.3g} to {found.high:.3g} were found, "
                f"and are cut off at {low:.3g} and {high:.3g}"
            )
        validated = history.best_loss if np.isfinite(history.best_loss) else None
        return FitReport(
            cases=len(names),
            pixels=found.pixels,
            nll_before=before,
            nll_after=found.nll,
            steps=len(history.epochs),
            seconds=seconds,
            converged=bool(np.isfinite(found.nll)),
            warnings=tuple(warnings),
            names=tuple(names),
            details={
                "best_epoch": history.best_epoch,
                "validation_nll": validated,
                "temperature_low": found.low,
                "temperature_high": found.high,
                "dead_share": found.dead,
                "parameters": sum(parameter.numel() for parameter in self.parameters()),
            },
        )


class ImageTemperatureScaling(LocalTemperatureScaling):
    """Divide the logits of each image by the mean of the temperatures that the tree finds in it."""

    method = "ibts"
    context = None

    def _pool(self, temperature: Temperature) -> Temperature:
        mean = temperature.mean(dim=tuple(range(1, temperature.ndim)), keepdim=True)
        return mean.expand_as(temperature)

    def temperature_case(self, case: Case) -> Iterator[tuple[Slab, Temperature]]:
        """Two passes: the mean temperature over all slabs, then that mean for each slab."""
        total, pixels = 0.0, 0
        for slab in slabs_of(case, self.num_classes, context=_CONTEXT, device=self.fitted.device):
            self._check(slab.logits)
            with torch.no_grad():
                inner = self.tree(slab.logits, self._image(slab.logits, slab.image))[:, :, slab.inner]
            total, pixels = total + float(inner.double().sum()), pixels + inner.numel()
        low, high = self.bounds
        mean = min(max(total / pixels, low), high)
        for slab in slabs_of(case, self.num_classes, device=self.fitted.device):
            yield slab, at_least_float32(slab.logits[:, :1]).new_full((1,), mean).expand(1, 1, *slab.logits.shape[2:])


class _Objective(nn.Module):
    """Summed NLL of the scaled logits over the pixels that are not left out, and how many there are."""

    def __init__(self, calibrator: LocalTemperatureScaling) -> None:
        super().__init__()
        self.tree, self._calibrator = calibrator.tree, [calibrator]  # in a list, so that it is no submodule

    def forward(self, logits: Tensor, labels: Tensor, image: Tensor | None = None) -> tuple[Tensor, Tensor]:
        (calibrator,) = self._calibrator
        temperature = calibrator._pool(self.tree(logits, image)).clamp(*calibrator.bounds)
        nll = F.cross_entropy(logits.float() / temperature.float(), labels, ignore_index=IGNORED, reduction="sum")
        return nll, (labels >= 0).sum()


class _CaseSource:
    """Cases as training samples: logits, labels with -1 at pixels left out, and the image if the calibrator looks."""

    def __init__(self, cases: Any, calibrator: LocalTemperatureScaling) -> None:
        self.cases: Sequence[Case] = cases if isinstance(cases, Sequence) else list(cases)
        self.calibrator = calibrator

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> Sample:
        case = self.cases[index]
        labels = self.calibrator.fit_labels(case)[0].cpu()
        if not self.calibrator.image_channels:
            return case.logits, labels
        if case.image is None or case.image.shape[0] != self.calibrator.image_channels:
            got = "none" if case.image is None else f"{case.image.shape[0]} channels"
            raise InputError(
                f"images need {self.calibrator.image_channels} channels, got {got} of case '{case.name}'; "
                "set image_channels, or 0 to look at the logits only"
            )
        return case.logits, labels, case.image


@dataclass(frozen=True)
class _Outcome:
    """What the fitted calibrator does on the cases it was fitted on."""

    pixels: int
    nll: float
    low: float
    high: float
    dead: float

    @classmethod
    def of(cls, calibrator: LocalTemperatureScaling, cases: Iterable[Case]) -> _Outcome:
        low, high, seen, dead = float("inf"), 0.0, 0, 0
        home, tree = calibrator.fitted.device, calibrator.tree
        for case in cases:
            for slab in slabs_of(case, calibrator.num_classes, context=_CONTEXT, device=home):
                with torch.no_grad():
                    root = tree.root(slab.logits, calibrator._image(slab.logits, slab.image))[:, :, slab.inner]
                    heat = tree.conditioned(tree.positive(root), slab.logits[:, :, slab.inner])
                low, high = min(low, float(heat.min())), max(high, float(heat.max()))
                seen, dead = seen + root.numel(), dead + int((root <= 0).sum())
        nll, pixels = summed_nll(calibrator, cases)
        stuck = dead / seen if calibrator.positivity == "relu" else 0.0
        return cls(pixels, nll / pixels, low, high, stuck)


def _look_through(calibrator: LocalTemperatureScaling, cases: Collection[Case]) -> tuple[float, list[str]]:
    """Mean NLL of the raw logits over the pixels to be fitted on, and the names; every case is checked on the way."""
    nll, pixels, names = 0.0, 0, dict[str, None]()
    for name, logits, labels in pixels_of(calibrator, cases):
        names[name] = None
        part = likelihood(logits, labels, 1.0)
        nll, pixels = nll + part.nll, pixels + int(part.pixels)
    if pixels == 0:
        raise InputError("no labelled pixel to fit on; check ignore_index, background and the labels")
    return nll / pixels, list(names)


def _preset(name: Preset, spatial_dims: int) -> Settings:
    if name == "default":
        return Settings(epochs=200, learning_rate=1e-4, batch_size=4)
    rate = 1e-5 if spatial_dims == 2 else 1e-4
    return Settings(epochs=100, learning_rate=rate, batch_size=4, milestones=(50,))


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(str, choices))}, got {value}")
