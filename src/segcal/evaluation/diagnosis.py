"""Over-, under- or balanced confidence (appendix "Overconfidence and Underconfidence"): data set, image, pixel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators import TemperatureScaling
from segcal.cases import CaseStream, StreamedCase
from segcal.evaluation.methods import ExclusiveHead, heads_of
from segcal.evaluation.protocol import Protocol, background_note, majority_class
from segcal.functional.temperature import (
    Likelihood,
    State,
    confidence_excess,
    confidence_state,
    likelihood,
    nll_and_entropy,
    optimal_inverse_temperature,
)
from segcal.kernels.constants import LARGEST_TEMPERATURE, LEAST_TEMPERATURE
from segcal.types import Array, Case, IgnoreIndex, Slab

_OVER, _UNDER, _EVEN, _IGNORED = (213, 94, 0), (0, 114, 178), (250, 250, 248), (128, 128, 128)
_VARIES = 0.1  # standard deviation of log temperatures from which they are said to vary
_NEGLIGIBLE = 0.01  # logarithm of a temperature up to which it is not worth applying: it reads as 1
_PARTS = 3
_FULL = 2.0  # nats, at which the colour of a picture is full
_NEXT = "'segcal compare' decides which method to use."


@dataclass(frozen=True)
class ConfidenceSummary:
    """The state of confidence of some pixels: mean NLL and entropy in nats, and the temperature of least NLL.

    The shares say how many pixels are over- and underconfident by themselves. `spread` is the standard deviation of the
    logarithm of the best temperature over the parts of an image (a third of each axis), less what chance alone would
    make of it; None where there are too few pixels to tell. Of a data set it is the mean over images, and None where
    fewer than half of them can be judged: those are the images with the most mistakes, which do not stand for the rest.
    `class_pixels` counts the pixels of each class.
    """

    name: str
    state: State
    nll: float
    entropy: float
    temperature: float
    overconfident_share: float
    underconfident_share: float
    pixels: int
    spread: float | None = None
    class_pixels: tuple[int, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """The state of confidence of a data set and of each of its images.

    Attributes:
        dataset: All images together.
        images: Each image.
        doubt: A class that is probably the background, with the best temperature without it; "" for none.
    """

    dataset: ConfidenceSummary
    images: tuple[ConfidenceSummary, ...]
    doubt: str = ""

    def advice(self) -> str:
        """Return which methods are worth comparing, and in how many images the variation within them was judged.

        Methods are recommended by what they do on other images (`segcal.evaluation.recommendation`), which only
        `segcal compare` can measure. One temperature per pixel is suggested only if `dataset.spread` is known.
        """
        best = self.dataset.temperature
        if np.isinf(best):
            return (
                "The scores are no better than chance, so no temperature helps; "
                "check that labels and classes are in the order of the scores."
            )
        if best == 0:
            return (
                "Every pixel is predicted right, so these images cannot tell how much confidence is too much; "
                "diagnose images with mistakes too."
            )
        if self.dataset.state == "balanced":
            start = "NLL and entropy are equal, so one temperature for all images would change nothing"
        elif abs(np.log(best)) < _NEGLIGIBLE:
            start = (
                f"The scores are only just {self.dataset.state}; the best temperature for all images is {best:.4g}, "
                "which changes almost nothing"
            )
        else:
            start = f"The scores are {self.dataset.state}; the best temperature for all images is {best:.3g} (ts)"
        between, within = self._spread_between_images(), self.dataset.spread
        apart = f"from image to image by {_percent(between)}" if between is not None and between > _VARIES else ""
        if within is not None and within > _VARIES:
            where = f"{apart} and within images" if apart else "within images"
            rate = f"{_percent(within)} ({self._judged()})"
            return f"{start}, but it varies {where} by {rate}: one temperature per pixel (cts or lts) may help. {_NEXT}"
        if apart:
            start = f"{start}, but it varies {apart}: one temperature per image (ibts) may help"
        elif between is not None:
            start = f"{start}, and it hardly varies between images"
        if within is None:
            return f"{start}; whether it varies within images is unknown ({self._judged()}). {_NEXT}"
        return f"{start}; within images it varies by only {_percent(within)} ({self._judged()}). {_NEXT}"

    def _spread_between_images(self) -> float | None:
        """Return the standard deviation of the logarithm of the best temperatures; None of fewer than two images."""
        known = [image.temperature for image in self.images if 0 < image.temperature < np.inf]
        return float(np.std(np.log(known))) if len(known) > 1 else None

    def _judged(self) -> str:
        """Say in how many images it could be judged whether the temperature varies within them."""
        count, many = _judged_count(self.images)
        return f"judged in {count} of {many} image{'s' if many != 1 else ''}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON: a temperature that is 0 or infinite becomes None."""
        return {
            "dataset": _plain(self.dataset),
            "images": [_plain(image) for image in self.images],
            "advice": self.advice(),
            "doubt": self.doubt,
        }


def diagnose(
    cases: Iterable[Case],
    *,
    num_classes: int,
    ignore_index: IgnoreIndex = None,
    background: int | None = None,
    device: torch.device | None = None,
) -> Diagnosis:
    """Compare NLL and entropy in the region *All*, over all pixels, in each image and at each pixel.

    With `num_classes=1` the scores are those of a single sigmoid channel. For several channels, diagnose each of them:
    `segcal.cases.channels.ChannelCases(cases, k, channels)` with `num_classes=2`.
    """
    first, *_ = heads_of(Protocol(num_classes, ignore_index=ignore_index, background=background))
    kept, place = first.cases(cases), device or torch.device("cpu")
    images = tuple(diagnose_image(case, first.protocol, place) for case in kept)
    return diagnosis_of(images, kept, first, place)


def diagnosis_of(
    images: tuple[ConfidenceSummary, ...], cases: Collection[Case], head: ExclusiveHead, device: torch.device
) -> Diagnosis:
    """Return the diagnosis of a data set whose images have been diagnosed; `cases` are read for its temperature.

    An unnamed background is looked for among the classes of a softmax; channels have none.
    """
    names, background = head.protocol.names, head.protocol.background
    temperature = partial(_best_temperature, cases, head.protocol, device)
    best = temperature(background)  # refuses cases without labelled pixels by name
    weights = np.array([image.pixels for image in images], dtype=np.float64)

    def mean(field: str) -> float:
        values = np.array([getattr(image, field) for image in images])
        return float((values * weights)[weights > 0].sum() / weights.sum())

    nll, entropy = mean("nll"), mean("entropy")
    counts = np.array([image.class_pixels for image in images if image.class_pixels]).sum(axis=0)
    whole = ConfidenceSummary(
        "all images",
        confidence_state(nll, entropy),
        nll,
        entropy,
        best,
        mean("overconfident_share"),
        mean("underconfident_share"),
        int(weights.sum()),
        _mean_spread(images),
        tuple(counts.tolist()),
    )
    majority = None if head.channels or background is not None else majority_class(counts)
    if majority is None:
        return Diagnosis(whole, images)
    found = f"the best temperature is {best:.3g} over all pixels and {temperature(majority):.3g}"
    doubt = background_note(majority, names[majority], counts[majority] / counts.sum(), found)
    return Diagnosis(whole, images, doubt)


def _best_temperature(
    cases: Collection[Case], protocol: Protocol, device: torch.device, background: int | None
) -> float:
    """Return the temperature of least NLL of all cases; infinity where the scores are no better than chance."""
    scaling = TemperatureScaling(
        protocol.num_classes,
        ignore_index=protocol.ignore_index,
        background=background,
        bounds=(LEAST_TEMPERATURE, LARGEST_TEMPERATURE),
    )
    inverse = float(scaling.to(device).fit(cases).inverse_temperature)
    return 1 / inverse if inverse else np.inf


def excess_map(case: Case, protocol: Protocol, device: torch.device | None = None) -> Array:
    """NLL minus entropy at each pixel `[*S]`, in nats: above 0 where overconfident, NaN where ignored."""
    slabs = CaseStream([case], protocol.num_classes, ignore_index=protocol.ignore_index, device=device).slabs()
    return torch.cat([confidence_excess(slab.logits[0], _truth(slab)).float().cpu() for slab in slabs]).numpy()


def coloured(excess: Array) -> Array:
    """Return a picture `[H, W, 3]` of an excess map."""
    share = np.clip(np.abs(np.nan_to_num(excess)) / _FULL, 0, 1)[..., np.newaxis]
    full = np.where(excess[..., np.newaxis] > 0, _OVER, _UNDER)
    colour = np.where(np.isnan(excess)[..., np.newaxis], _IGNORED, _EVEN + share * (full - np.array(_EVEN)))
    return np.rint(colour).astype(np.uint8)


def diagnose_image(case: Case, protocol: Protocol, device: torch.device) -> ConfidenceSummary:
    """Compare NLL and entropy of one image in the region *All*."""
    classes, ignored = protocol.num_classes, protocol.ignore_index
    stream = CaseStream([case], classes, ignore_index=ignored, background=protocol.background, device=device)
    streamed = stream[0]
    over = under = 0
    counts = torch.zeros(classes, dtype=torch.int64)
    total = 0.0  # of entropy, which NLL minus slope would lose where the NLL is huge
    for slab in streamed.slabs():
        truth = _truth(slab)
        losses, entropies = nll_and_entropy(slab.logits[0], truth)
        counts += torch.bincount(truth[truth >= 0].cpu(), minlength=classes)
        excess = losses - entropies
        over, under = over + int((excess > 1e-6).sum()), under + int((excess < -1e-6).sum())
        total += float(np.nansum(entropies.cpu().numpy()))  # on one thread, in one order

    def at(alpha: float) -> Likelihood:
        parts = [likelihood(slab.logits[0], _truth(slab), alpha) for slab in streamed.slabs()]
        return Likelihood(*(sum(terms) for terms in zip(*parts, strict=True)))

    found = at(1.0)
    pixels = int(found.pixels)
    if pixels == 0:
        nan = float("nan")
        return ConfidenceSummary(case.name, "balanced", nan, nan, nan, nan, nan, 0)
    nll, entropy = found.nll / pixels, total / pixels
    inverse = optimal_inverse_temperature(at).inverse_temperature
    temperature = 1 / inverse if inverse else np.inf
    shares, spread = (over / pixels, under / pixels), _spread(streamed)
    return ConfidenceSummary(
        case.name,
        confidence_state(nll, entropy),
        nll,
        entropy,
        temperature,
        *shares,
        pixels,
        spread,
        tuple(counts.tolist()),
    )


def _truth(slab: Slab) -> Tensor:
    """Return the labels `[*S]` of a slab."""
    assert slab.labels is not None  # or the stream would have raised
    return slab.labels[0]


def _spread(case: StreamedCase) -> float | None:
    """Return the variation of the best temperature of parts of an image, beyond the noise of their few pixels.

    The variance of log(1/T) found by maximum likelihood is 1 / (a^2 NLL''(a)) at the optimum a = 1/T.
    """
    logs, noise = [], []
    for box in product(*(_thirds(length) for length in case.shape[1:])):
        part = case.crop(box)
        logits, labels = part.logits[0], _truth(part).contiguous()
        if not bool((labels >= 0).any()):
            continue
        at = cache(partial(likelihood, logits, labels))
        inverse = optimal_inverse_temperature(at).inverse_temperature
        if 0 < inverse < np.inf:
            logs.append(np.log(inverse))
            noise.append(1 / (inverse**2 * at(inverse).curvature))
    if len(logs) < 2 or np.mean(noise) > _VARIES**2:
        return None
    return float(np.sqrt(max(0.0, float(np.var(logs, ddof=1) - np.mean(noise)))))


def _thirds(length: int) -> list[slice]:
    ends = [round(k * length / _PARTS) for k in range(_PARTS + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if stop > start]


def _mean_spread(images: Sequence[ConfidenceSummary]) -> float | None:
    """Return the spread of the images that can be judged; None if they are fewer than half."""
    count, many = _judged_count(images)
    if 2 * count < many:
        return None
    known = [(image.spread**2, image.pixels) for image in images if image.spread is not None]
    pixels = sum(pixels for _, pixels in known)
    return float(np.sqrt(sum(variance * own for variance, own in known) / pixels))


def _judged_count(images: Sequence[ConfidenceSummary]) -> tuple[int, int]:
    """Return the number of images with a spread, and of those with pixels."""
    return sum(image.spread is not None for image in images), sum(image.pixels > 0 for image in images)


def _percent(spread: float) -> str:
    return f"{100 * np.expm1(spread):.0f} %"


def _plain(finding: ConfidenceSummary) -> dict[str, Any]:
    values = {**asdict(finding), "temperature": finding.temperature or None}
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in values.items()
    }
