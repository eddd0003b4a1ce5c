"""Local temperature scaling (Sec. 3.4): the logits of each pixel divided by the temperature that a tree finds there.

Image-based temperature scaling (Sec. 3.3) has one temperature per image, the mean of what the tree finds in it.

By default the tree reads standardised log-probabilities and multiplies the temperature of temperature scaling (TS), so
that neither a shift nor a scale of the logits matters and training starts at TS.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Unpack, get_args

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from segcal.calibrators.report import Learned
from segcal.calibrators.shared.local_training import CaseSource, Objective, bounded_crop, standardisation_of
from segcal.calibrators.shared.survey import summed_likelihood, summed_nll
from segcal.calibrators.shared.tree import CONTEXT, Condition, Init, Positivity, TemperatureTree
from segcal.calibrators.temperature import FitLimits, TemperatureCalibrator, TemperatureScaling
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.division import Standardisation, kernels_check_finite, scaled_within
from segcal.functional.pixels import image_sums
from segcal.training.loop import train
from segcal.training.processes import choose_device
from segcal.training.settings import Training, override
from segcal.types import MOST_CLASSES, Image, InputError, Logits, Temperature, check_choice, check_whole

Preset = Literal["default", "paper"]
Inputs = Literal["log_softmax", "logits"]

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


class LocalTemperatureScaling(TemperatureCalibrator):
    """Divide the logits of each pixel by a temperature that a small tree of convolutions computes around it.

    The temperature is `T_TS * tree(x)` with T_TS the temperature of temperature scaling and
    `x = (log_softmax(z / T_TS) - mean) / deviation` for logits z; mean and deviation are those of the fitted pixels.

    Args:
        num_classes: L.
        spatial_dims: 2 or 3.
        image_channels: C; 0 to read the logits only.
        positivity: "relu" as in the paper, "softplus" or "exp".
        root_offset: 0 as in the paper's equation, 1 as in the released code.
        init: "normal", or "zeros", with which sibling leaves remain equal during training.
        condition: "class" or "confidence" multiplies the temperature by a learned factor for each predicted class, or
            for each confidence bin, as the paper suggests for future work.
        inputs: "log_softmax" for standardised log-probabilities, which no shift or scale of the logits changes, or
            "logits" as printed in the paper. Default: "log_softmax", and "logits" with `preset="paper"`.
        sharpen: Allow temperatures below min(1, T_TS), which increase confidence beyond that of both the network and
            TS. Default: False, and True with `preset="paper"`.
        preset: "default" starts at T_TS and trains with Adam at 1e-4 for 200 epochs, or until the loss has settled
            (`patience`, 20 epochs and at least 160 steps); "paper" starts at 1 and trains for 100 epochs, at 1e-5 (2D)
            or 1e-4 (3D), a tenth of it after 50.
        limits: `ignore_index`, `background` and `bounds`, as of every `TemperatureCalibrator`.
    """

    method = "lts"
    spatial_dims: int
    is_local: ClassVar[bool] = True
    """True if pixels of an image have different temperatures."""
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
        spatial_dims: int = 2,
        image_channels: int = 0,
        positivity: Positivity = "relu",
        root_offset: float = 0.0,
        init: Init = "normal",
        condition: Condition | None = None,
        inputs: Inputs | None = None,
        sharpen: bool | None = None,
        preset: Preset = "default",
        **limits: Unpack[FitLimits],
    ) -> None:
        super().__init__(num_classes, **limits)
        check_choice("spatial_dims", spatial_dims, (2, 3))
        check_whole("image_channels", image_channels, 0, MOST_CLASSES)
        check_choice("positivity", positivity, get_args(Positivity))
        check_choice("init", init, get_args(Init))
        check_choice("condition", condition, (None, *get_args(Condition)))
        check_choice("inputs", inputs, (None, *get_args(Inputs)))
        check_choice("preset", preset, get_args(Preset))
        if not math.isfinite(root_offset):
            raise InputError(f"root_offset must be finite, got {root_offset}")
        if condition is not None and not self.is_local:
            raise InputError(f"condition is for 'lts': '{self.method}' has one temperature for the whole image")
        self.spatial_dims, self.image_channels = spatial_dims, image_channels
        self.positivity, self.root_offset, self.init, self.condition = positivity, root_offset, init, condition
        self.tree = TemperatureTree(
            num_classes,
            spatial_dims,
            image_channels,
            positivity=positivity,
            root_offset=root_offset,
            init=init,
            condition=condition,
        )
        self.preset = preset
        self.inputs: Inputs = inputs or ("logits" if preset == "paper" else "log_softmax")
        self.sharpen = preset == "paper" if sharpen is None else bool(sharpen)
        for name, value in {"base_temperature": 1.0, "floor": 0.0, "input_scale": 1.0}.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))
        self.register_buffer("input_mean", torch.zeros(num_classes))
        self.register_buffer("input_deviation", torch.ones(num_classes))
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
        held_out = None if validation is None else CaseSource(validation, self.image_channels)
        history = train(
            Objective(self),
            CaseSource(stream, self.image_channels),
            settings,
            validation=held_out,
            record=True,
            about={} if settings.checkpoint is None else self._run(stream, validation),
        )
        self.requires_grad_(False).fitted.fill_(True)
        judged = validation or stream
        ts = _mean(summed_nll(start.to(stream.device), judged))
        nll, share = self._choose_share(judged, ts, validated=validation is not None)
        raw, falling = summed_likelihood(judged, 1.0), history.is_falling
        low, high, dead = self._range(stream)
        after = nll if validation is None else _mean(summed_nll(self, stream))
        scores = {"validation_nll": nll, "validation_nll_ts": ts, "validation_nll_before": raw.nll / raw.pixels}
        details = {
            "best_epoch": history.best_epoch if share else 0,
            **(dict.fromkeys(scores) if validation is None else scores),
            "ts_temperature": start._bounded(),
            "start": None if self.preset == "paper" else "ts",
            "share": share,
            **{f"temperature_{name}": self._bounded(heat) for name, heat in (("low", low), ("high", high))},
            "dead_share": dead,
            "crop": settings.crop,
            "parameters": sum(parameter.numel() for parameter in self.parameters()),
        }
        self.to(home)
        return Learned(
            pixels=before.pixels,
            nll_before=before.nll_before,
            nll_after=after,
            steps=len(history.epochs),
            converged=math.isfinite(nll) and not falling,
            warnings=(
                *history.warnings,
                *(f"temperature scaling: {warning}" for warning in before.warnings),
                *_doubts(scores, details, falling=falling, validated=validation is not None),
                *clipping(low, high, self.bounds, float(self.floor)),
            ),
            details=details,
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
        if self.preset != "paper":
            self.base_temperature.fill_(temperature)
        if not self.sharpen:
            self.floor.fill_(min(1.0, temperature))
        if self.inputs == "log_softmax":
            found = standardisation_of(stream, scale)
            for value, name in zip(found, ("input_scale", "input_mean", "input_deviation"), strict=True):
                getattr(self, name).copy_(value)

    def _choose_share(self, stream: CaseStream, ts: float, *, validated: bool) -> tuple[float, float]:
        """Go from TS to the tree as far as lowers the NLL of the cases, not at all if TS has the least; return both."""
        learned, losses = {name: value.clone() for name, value in self.tree.state_dict().items()}, {0.0: ts}
        # without validation cases there is no choice
        shares = _SHARES if validated else (UNCHECKED_SHARE,)
        if self.preset == "paper":
            shares, losses = (1.0,), {}
        for share in shares:
            self._shrink(learned, share)
            losses[share] = _mean(summed_nll(self, stream))
        share = min(losses, key=lambda share: (math.isnan(losses[share]), losses[share]))
        self._shrink(learned, share)
        return losses[share], share

    def _shrink(self, learned: Mapping[str, Tensor], share: float) -> None:
        """Set the tree to a share of the way from TS to what it has learned."""
        self.tree.load_state_dict(learned)
        self.tree.shrink(share)

    def _range(self, stream: CaseStream) -> tuple[float, float, float]:
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
        return base * low, base * high, dead / seen if self.positivity == "relu" else 0.0

    def _bounded(self, temperature: float) -> float:
        low, high = self.bounds
        return max(min(max(temperature, low), high), float(self.floor))

    def _problem(self) -> str | None:
        positive = {"base_temperature": self.base_temperature, "input_deviation": self.input_deviation}
        wrong = [name for name, value in positive.items() if not bool((value > 0).all())]
        if wrong:
            return f"'{wrong[0]}' must be above 0"
        largest = torch.finfo(torch.float32).max
        return None if 0 < float(self.input_scale) <= largest else f"'input_scale' must be above 0, at most {largest:g}"


def _mean(sums: tuple[float, int]) -> float:
    nll, pixels = sums
    return nll / pixels if pixels else 0.0


def _preset(name: Preset, spatial_dims: int) -> Training:
    if name == "default":
        return Training(200, 1e-4, batch_size=4, patience=_PATIENCE, patience_steps=_PATIENCE_STEPS)
    rate = 1e-5 if spatial_dims == 2 else 1e-4
    return Training(epochs=100, learning_rate=rate, batch_size=4, milestones=(50,))


def _doubts(
    scores: Mapping[str, float], details: Mapping[str, Any], *, falling: bool, validated: bool
) -> Iterator[str]:
    """Yield warnings about a training by its NLL, on the images that judge it, beside that of TS and of none."""
    nll, ts, uncalibrated = scores.values()
    where = f"on the {'validation' if validated else 'fitted'} images"
    if not details["share"]:
        temperature = details["ts_temperature"]
        yield f"kept the temperature of TS ({temperature:.4g}): training found nothing better {where}"
    elif nll > ts:
        yield f"worse than TS {where}: NLL {nll:.6g}, with TS {ts:.6g}"
    if nll > uncalibrated:
        yield f"worse than uncalibrated {where}: NLL {nll:.6g}, uncalibrated {uncalibrated:.6g}"
    if falling:
        yield (
            f"the {'validation' if validated else 'training'} NLL was still falling when the epochs ended; "
            "train for more epochs, or with a larger learning rate"
        )
    if details["dead_share"] > 0.01:
        yield (
            f"the ReLU at the root is 0 at {details['dead_share']:.0%} of the pixels, which therefore have no "
            "gradient; try positivity='softplus' or a smaller learning rate"
        )


def clipping(found_low: float, found_high: float, bounds: tuple[float, float], floor: float) -> Iterator[str]:
    """Yield a warning if temperatures were found outside the bounds; not where only the floor applies."""
    low, high = bounds
    if found_low < low or found_high > high:
        yield (
            f"temperatures from {found_low:.3g} to {found_high:.3g} were found, "
            f"and are clipped to {max(low, floor):.3g} and {high:.3g}"
        )


class ImageTemperatureScaling(LocalTemperatureScaling):
    """Divide the logits of each image by the mean of its LTS temperatures."""

    method = "ibts"
    is_local = False

    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        factor = self._factor(logits, image)
        mean = image_sums(factor) / math.prod(factor.shape[1:])
        return self._applied(mean.to(factor.dtype).view(-1, *[1] * (factor.ndim - 1))).expand_as(factor)

    def _case_temperature(self, case: StreamedCase) -> Temperature:
        return self._applied(self._mean_factor(case).view(1, 1, *(1 for _ in case.shape[1:])))

    def _mean_factor(self, case: StreamedCase) -> Float[Tensor, ""]:
        """Return what the base temperature is multiplied by in the whole image."""
        total, pixels = 0.0, 0
        for slab in case.slabs(CONTEXT):
            self._check_space(slab.logits, slab.image)
            with torch.no_grad():
                inner = self._factor(slab.logits, slab.image)[:, :, slab.inner]
            total, pixels = total + float(image_sums(inner)), pixels + inner.numel()
        return inner.new_tensor(total / pixels)

    def _range(self, stream: CaseStream) -> tuple[float, float, float]:
        """Return the smallest and largest temperature of an image; the range of its pixels is never applied."""
        found = [float(self.base_temperature) * float(self._mean_factor(case)) for case in stream]
        return min(found), max(found), super()._range(stream)[2]
