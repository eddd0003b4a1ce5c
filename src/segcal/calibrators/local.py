"""Local temperature scaling (Sec. 3.4): the logits of each pixel divided by the temperature that a tree finds there.

By default the tree reads standardised log-probabilities and multiplies the temperature of temperature scaling (TS), so
that neither a shift nor a scale of the logits matters and training starts at TS.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Literal, Unpack, get_args

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from segcal.calibrators.report import Learned
from segcal.calibrators.shared.local_training import (
    CaseSource,
    CaseValidation,
    Objective,
    TreeCalibrator,
    TreeSettings,
    bounded_crop,
    standardisation_of,
)
from segcal.calibrators.shared.survey import summed_likelihood, summed_nll
from segcal.calibrators.shared.training_report import TemperatureRange, TrainingOutcome
from segcal.calibrators.shared.tree import CONTEXT
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import CaseStream
from segcal.functional.division import kernels_check_finite, scaled_within
from segcal.functional.standardise import Standardisation
from segcal.training.loop import train
from segcal.training.processes import choose_device
from segcal.training.progress import History
from segcal.training.settings import Training, override
from segcal.types import Image, Logits, Temperature, check_choice

Preset = Literal["default", "paper"]
Inputs = Literal["log_softmax", "logits"]

SHARPEN = False
"""Default of `sharpen` outside `preset="paper"`."""
UNCHECKED_SHARE = 0.25
"""Share of the distance between TS and the tree that is kept where no validation images say how much of it to trust."""
SETTINGS = (
    "epochs",
    "learning_rate",
    "batch_size",
    "seed",
    "device",
    "patience",
    "cosine",
    "crop",
    "flips",
    "precision",
    "checkpoint",
    "cache_bytes",
    "watch",
)
"""Settings of training that `fit` takes as keywords; `settings` takes all of them."""
_PATIENCE, _PATIENCE_STEPS = 20, 160
_SHARES = (1.0, 0.75, 0.5, 0.25)


class LocalTemperatureScaling(TreeCalibrator):
    """Divide the logits of each pixel by a temperature that a small tree of convolutions computes around it.

    The temperature is `T_TS * tree(x)` with T_TS the temperature of temperature scaling and
    `x = (log_softmax(z / T_TS) - mean) / deviation` for logits z; mean and deviation are those of the fitted pixels.

    Args:
        num_classes: L.
        inputs: "log_softmax" for standardised log-probabilities, which no shift or scale of the logits changes, or
            "logits" as printed in the paper. Default: "log_softmax", and "logits" with `preset="paper"`.
        sharpen: Allow temperatures below min(1, T_TS), which increase confidence beyond that of both the network and
            TS. Default: False, and True with `preset="paper"`.
        preset: "default" starts at T_TS and trains with Adam at 1e-4 for 200 epochs, or until the loss has settled
            (`patience`, 20 epochs and at least 160 steps); "paper" starts at 1 and trains for 100 epochs, at 1e-5 (2D)
            or 1e-4 (3D), a tenth of it after 50.
        tree: Settings of the tree, as of `TreeCalibrator`: `spatial_dims`, `image_channels`, `positivity`,
            `root_offset`, `init`, `condition`, `ignore_index`, `background` and `bounds`.
    """

    method = "lts"
    context = CONTEXT
    fit_settings = frozenset(SETTINGS)

    base_temperature: Float64[Tensor, ""]
    """Multiplies the tree: T_TS, or 1 with `preset="paper"`."""
    floor: Float64[Tensor, ""]
    """Smallest temperature that is applied, where it is above the lower bound; 0 if `sharpen` is set."""
    input_scale: Float64[Tensor, ""]
    """Inverse temperature at which log-probabilities are read."""
    input_mean: Float[Tensor, " L"]
    input_deviation: Float[Tensor, " L"]

    def __init__(
        self,
        num_classes: int,
        *,
        inputs: Inputs | None = None,
        sharpen: bool | None = None,
        preset: Preset = "default",
        **tree: Unpack[TreeSettings],
    ) -> None:
        super().__init__(num_classes, **tree)
        check_choice("inputs", inputs, (None, *get_args(Inputs)))
        check_choice("preset", preset, get_args(Preset))
        self.preset = preset
        self.inputs: Inputs = inputs or ("logits" if preset == "paper" else "log_softmax")
        self.sharpen = (SHARPEN or preset == "paper") if sharpen is None else bool(sharpen)
        for name, value in _neutral(num_classes).items():
            self.register_buffer(name, value)
        self.requires_grad_(False)  # applying needs no gradient; fit turns it on

    def _settings(self, given: Training | None, changes: Mapping[str, Any]) -> Training:
        """Return the settings of training: those of the preset, or the given ones, with changes that are not None."""
        return override(given or _preset(self.preset, self.spatial_dims), **changes, spatial_dims=self.spatial_dims)

    def _stream_options(self, settings: Training) -> dict[str, Any]:
        place = choose_device(settings.device)
        return {"device": place, "memory": settings.cache_bytes if place.type == "cpu" else None}

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Training) -> Learned:
        """Train the tree to least NLL; see `segcal.training.settings.Training`.

        The weights of the epoch of least NLL on the validation cases are kept; without `validation`, those of the last
        epoch. Then the tree is shrunk towards TS, fitted on the same cases (not with `preset="paper"`): to the share of
        the way, 1, 3/4, 1/2, 1/4 or 0, with the least NLL on the validation cases. Without them a quarter of the way is
        kept, since nothing shows how much of what was learned holds for other images, or none of it if the NLL of TS
        is lower on the fitted cases.

        Cases of more than 8 million scores are trained on in random crops of up to 4 million scores unless `crop` is
        given or `preset="paper"` is set, and measured in slabs, so that memory does not grow with their size.
        """
        home = self.fitted.device
        # reads every case, so that bad ones are found before hours of training and before the old weights are lost
        start = TemperatureScaling(self.num_classes, bounds=self.bounds)
        before = start._learn(stream)
        start.fitted.fill_(True)
        if settings.crop is None and self.preset != "paper":
            settings = override(settings, crop=bounded_crop(max((case.shape for case in stream), key=math.prod)))
        self.to(stream.device).requires_grad_(True)
        self._start_from(start, stream)
        self.tree.reset(torch.Generator().manual_seed(settings.seed))
        samples, held_out = CaseSource(stream, self.image_channels), None
        if validation is not None:
            held_out = CaseValidation(validation, self.image_channels)
        about = {} if settings.checkpoint is None else self._run(stream, validation)
        history = train(Objective(self), samples, settings, validation=held_out, record=True, about=about)
        self.requires_grad_(False).fitted.fill_(True)
        outcome = self._judge(start.to(stream.device), validation or stream, history, validation is not None)
        seen = self._range(stream)
        after = outcome.nll if validation is None else _mean(summed_nll(self, stream))
        self.to(home)
        return Learned(
            pixels=before.pixels,
            nll_before=before.nll_before,
            nll_after=after,
            steps=len(history.epochs),
            converged=math.isfinite(outcome.nll) and not outcome.falling,
            warnings=(
                *history.warnings,
                *(f"temperature scaling: {warning}" for warning in before.warnings),
                *outcome.warnings(),
                *seen.warnings(),
            ),
            details={
                "best_epoch": history.best_epoch if outcome.share else 0,
                **outcome.details(),
                **seen.details(),
                "crop": settings.crop,
                "parameters": sum(parameter.numel() for parameter in self.parameters()),
            },
        )

    def _run(self, stream: CaseStream, validation: CaseStream | None) -> dict[str, Any]:
        """Return what is trained on which cases, by which checkpoints of another run are recognised."""
        parts = [[part[k].fingerprint for k in range(len(part))] for part in (stream, validation or ())]
        cases = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return {"method": self.method, **self.config(), "cases": cases}

    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        return self._applied(self._factor(logits, image))

    def _refuses(self, logits: Logits, image: Image | None) -> bool:
        images = () if not self.image_channels or image is None else (image,)
        return kernels_check_finite(logits, self.tree.of_logits.weight, *images)

    def _summary(self) -> dict[str, object]:
        details = self.fit_report_.details if hasattr(self, "fit_report_") else {}
        return {name: details[name] for name in ("temperature_low", "temperature_high") if name in details}

    @property
    def learned(self) -> int:
        """Number of learned values: the weights of the tree, and T_TS."""
        return sum(parameter.numel() for parameter in self.parameters()) + (self.preset != "paper")

    @property
    def _standardisation(self) -> Standardisation | None:
        """Standardisation of log-probabilities; None for a tree that reads the logits."""
        return None if self.inputs == "logits" else (self.input_scale, self.input_mean, self.input_deviation)

    def _factor(self, logits: Logits, image: Image | None) -> Temperature:
        """Return what the base temperature is multiplied by at each pixel."""
        found: Temperature = self.tree(logits, image, standardisation=self._standardisation)
        return found

    def _applied(self, factor: Temperature) -> Temperature:
        return scaled_within(factor, self.base_temperature, self.floor, self.bounds)

    def _start_from(self, start: TemperatureScaling, stream: CaseStream) -> None:
        """Set base temperature, floor and standardisation from temperature scaling."""
        temperature, exact = start._bounded(), start.inverse_temperature
        # an optimum of 0 or infinity says nothing about the scale of the logits
        scale = torch.where((exact > 0) & exact.isfinite(), exact, 1.0)
        for name, value in _neutral(self.num_classes).items():
            getattr(self, name).copy_(value)
        if self.preset != "paper":
            self.base_temperature.fill_(temperature)
        if not self.sharpen:
            self.floor.fill_(min(1.0, temperature))
        if self.inputs == "log_softmax":
            found = standardisation_of(stream, scale)
            for value, name in zip(found, ("input_scale", "input_mean", "input_deviation"), strict=True):
                getattr(self, name).copy_(value)

    def _judge(
        self, start: TemperatureScaling, stream: CaseStream, history: History, validated: bool
    ) -> TrainingOutcome:
        """Choose how far to go from TS to the tree, by the NLL of the given cases; not at all if TS is better."""
        reference = _mean(summed_nll(start, stream))
        # without validation cases there is no choice
        shares = (1.0,) if self.preset == "paper" else _SHARES if validated else (UNCHECKED_SHARE,)
        learned, losses = {name: value.clone() for name, value in self.tree.state_dict().items()}, dict[float, float]()
        for share in shares:
            self._shrink(learned, share)
            losses[share] = _mean(summed_nll(self, stream))
        share = min(losses, key=lambda share: (math.isnan(losses[share]), losses[share]))
        self._shrink(learned, share)
        found = losses[share]
        keeps_start = self.preset != "paper" and not found < reference  # nor is NaN better
        if keeps_start:
            self.tree.make_constant()
        raw = summed_likelihood(stream, 1.0)
        return TrainingOutcome(
            validated=validated,
            nll=reference if keeps_start else found,
            ts=reference,
            uncalibrated=raw.nll / raw.pixels,
            share=0.0 if keeps_start else share,
            falling=history.late_decrease() > 0,
            temperature=start._bounded(),
        )

    def _shrink(self, learned: Mapping[str, Tensor], share: float) -> None:
        """Set the tree to a share of the way from TS to what it has learned."""
        self.tree.load_state_dict(learned)
        self.tree.shrink(share)

    def _range(self, stream: CaseStream) -> TemperatureRange:
        """Return the smallest and largest temperature before the bounds, and the share of pixels with a dead ReLU."""
        low, high, seen, dead = math.inf, 0.0, 0, 0
        for slab in stream.slabs(CONTEXT):
            with torch.no_grad():
                root = self.tree.root(slab.logits, slab.image, standardisation=self._standardisation)
                root = root[:, :, slab.inner]
                factor = self.tree.conditioned(self.tree.positive(root), slab.logits[:, :, slab.inner])
            low, high = min(low, float(factor.min())), max(high, float(factor.max()))
            seen, dead = seen + root.numel(), dead + int((root <= 0).sum())
        base = float(self.base_temperature)
        share = dead / seen if self.positivity == "relu" else 0.0
        return TemperatureRange(base * low, base * high, share, self.bounds, float(self.floor))

    def _problem(self) -> str | None:
        positive = {"base_temperature": self.base_temperature, "input_deviation": self.input_deviation}
        wrong = [name for name, value in positive.items() if not bool((value > 0).all())]
        return f"'{wrong[0]}' must be above 0" if wrong else None


def _neutral(num_classes: int) -> dict[str, Tensor]:
    """Return the buffers of a tree that reads raw logits and starts at 1."""
    one = torch.tensor(1.0, dtype=torch.float64)
    return {
        "base_temperature": one,
        "floor": torch.zeros_like(one),
        "input_scale": one.clone(),
        "input_mean": torch.zeros(num_classes),
        "input_deviation": torch.ones(num_classes),
    }


def _mean(sums: tuple[float, int]) -> float:
    nll, pixels = sums
    return nll / pixels if pixels else 0.0


def _preset(name: Preset, spatial_dims: int) -> Training:
    if name == "default":
        return Training(200, 1e-4, batch_size=4, patience=_PATIENCE, patience_steps=_PATIENCE_STEPS)
    rate = 1e-5 if spatial_dims == 2 else 1e-4
    return Training(epochs=100, learning_rate=rate, batch_size=4, milestones=(50,))
