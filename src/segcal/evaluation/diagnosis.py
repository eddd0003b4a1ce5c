"""Over-, under- or balanced confidence (appendix "Overconfidence and Underconfidence"): data set, image, pixel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from segcal.calibrators import TemperatureScaling
from segcal.calibrators.channels import ChannelCases
from segcal.cases import labels_of, reread, slabs_of, to_tensor
from segcal.data.folders.folder import Folder, write_map
from segcal.evaluation.heads import heads_of_folder
from segcal.files import MARKER, staged_folder, write_json
from segcal.functional.checks import IGNORED
from segcal.functional.temperature import (
    Likelihood,
    State,
    confidence_excess,
    confidence_state,
    likelihood,
    optimal_inverse_temperature,
)
from segcal.regions import foreground
from segcal.types import Array, Case, IgnoreIndex
from segcal.version import __version__

_OVER, _UNDER, _EVEN, _IGNORED = (213, 94, 0), (0, 114, 178), (250, 250, 248), (128, 128, 128)
_VARIES = 0.1  # standard deviation of log temperatures from which they are said to vary
_PARTS = 3
_FULL = 2.0  # nats, at which the colour of a picture is full


@dataclass(frozen=True)
class Finding:
    """The state of confidence of some pixels: mean NLL and entropy in nats, and the temperature of least NLL.

    The shares say how many pixels are over- and underconfident by themselves. `spread` is the standard deviation of the
    logarithm of the best temperature over the parts of an image (a third of each axis), less what chance alone would
    make of it; None where there are too few pixels to tell.
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


@dataclass(frozen=True)
class Diagnosis:
    """The state of confidence of a data set and of each of its images."""

    dataset: Finding
    images: tuple[Finding, ...]

    def advice(self) -> str:
        """What to do, in one sentence."""
        known = [image.temperature for image in self.images if 0 < image.temperature < np.inf]
        spread = float(np.std(np.log(known))) if len(known) > 1 else 0.0
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
        else:
            start = f"The scores are {self.dataset.state}; a temperature of {best:.3g} for all images fixes that (ts)"
        within, varies = self.dataset.spread, "the best temperature varies"
        between = f"from image to image by {100 * np.expm1(spread):.0f} %" if spread > _VARIES else ""
        if within is not None and within > _VARIES:
            inside = f"within images by {100 * np.expm1(within):.0f} %"
            places = f"{between} and {inside}" if between else inside
            return f"{start}, but {varies} {places}; let it follow the place (lts)."
        if between:
            return f"{start}, but {varies} {between}; let it follow the image ({'lts' if within is None else 'ibts'})."
        return f"{start}, and the images agree on it."

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON: a temperature that is 0 or infinite becomes None."""
        return {
            "dataset": _plain(self.dataset),
            "images": [_plain(image) for image in self.images],
            "advice": self.advice(),
        }


def diagnose(
    cases: Iterable[Case], *, num_classes: int, ignore_index: IgnoreIndex = None, background: int | None = None
) -> Diagnosis:
    """Compare NLL and entropy in the region *All*, over all pixels, in each image and at each pixel.

    With `num_classes=1` the scores are those of a single sigmoid channel. For several channels, diagnose each of them:
    `segcal.calibrators.channels.ChannelCases(cases, k, channels)` with `num_classes=2`.
    """
    if num_classes == 1:
        cases, num_classes = ChannelCases(cases), 2
    kept = reread(cases)
    images = tuple(_image(case, num_classes, ignore_index, background) for case in kept)
    scaling = TemperatureScaling(
        num_classes, ignore_index=ignore_index, background=background, bounds=(np.finfo(float).tiny, 1e300)
    ).fit(kept)
    weights = np.array([image.pixels for image in images], dtype=np.float64)

    def mean(field: str) -> float:
        values = np.array([getattr(image, field) for image in images])
        return float((values * weights)[weights > 0].sum() / weights.sum())

    nll, entropy = mean("nll"), mean("entropy")
    inverse = float(scaling.inverse_temperature)
    whole = Finding(
        "all images",
        confidence_state(nll, entropy),
        nll,
        entropy,
        1 / inverse if inverse else np.inf,
        mean("overconfident_share"),
        mean("underconfident_share"),
        int(weights.sum()),
        _mean_spread(images),
    )
    return Diagnosis(whole, images)


def excess_map(case: Case, num_classes: int, ignore_index: IgnoreIndex = None) -> Array:
    """NLL minus entropy at each pixel `[*S]`, in nats: above 0 where overconfident, NaN where ignored."""
    labels = labels_of(case, num_classes, ignore_index)[0]
    parts = [confidence_excess(slab.logits[0], labels[slab.rows]) for slab in slabs_of(case, num_classes)]
    return torch.cat(parts).float().numpy()


def write_maps(cases: Iterable[Case], *, like: Folder, out: Path) -> None:
    """Write the map of every case to `out`, as its folder stores such maps; of images a picture `NAME.png` too.

    Orange is overconfident, blue underconfident, grey ignored; colours are full from 2 nats on. Several sigmoid
    channels have a folder each.
    """
    heads = heads_of_folder(like)
    with staged_folder(out) as folder:
        count, places = 0, like.map_folders(folder)
        for place in places:
            place.mkdir(exist_ok=True)
        for case in cases:
            for head, place in zip(heads, places, strict=True):
                excess = excess_map(head.case(case), head.protocol.num_classes, like.ignore_index)
                path = write_map(place, case.name, excess, like)
                if excess.ndim == 2:
                    Image.fromarray(_coloured(excess)).save(path.with_suffix(".png"))
            count += 1
        write_json(folder / MARKER, {"format": 1, "segcal": __version__, "maps": {"cases": count}})


def _coloured(excess: Array) -> Array:
    share = np.clip(np.abs(np.nan_to_num(excess)) / _FULL, 0, 1)[..., np.newaxis]
    full = np.where(excess[..., np.newaxis] > 0, _OVER, _UNDER)
    colour = np.where(np.isnan(excess)[..., np.newaxis], _IGNORED, _EVEN + share * (full - np.array(_EVEN)))
    return np.rint(colour).astype(np.uint8)


def _image(case: Case, num_classes: int, ignore_index: IgnoreIndex, background: int | None) -> Finding:
    labels = labels_of(case, num_classes, ignore_index)
    truth = labels.masked_fill(~foreground(labels, IGNORED, background=background), IGNORED)[0]
    over = under = 0
    for slab in slabs_of(case, num_classes):
        excess = confidence_excess(slab.logits[0], truth[slab.rows])
        over, under = over + int((excess > 1e-6).sum()), under + int((excess < -1e-6).sum())

    def at(alpha: float) -> Likelihood:
        parts = [likelihood(s.logits[0], truth[s.rows], alpha) for s in slabs_of(case, num_classes)]
        return Likelihood(*(sum(terms) for terms in zip(*parts, strict=True)))

    found = at(1.0)
    pixels = int(found.pixels)
    if pixels == 0:
        nan = float("nan")
        return Finding(case.name, "balanced", nan, nan, nan, nan, nan, 0)
    nll, entropy = found.nll / pixels, found.entropy / pixels
    inverse = optimal_inverse_temperature(at).inverse_temperature
    temperature = 1 / inverse if inverse else np.inf
    shares, spread = (over / pixels, under / pixels), _spread(case, truth)
    return Finding(case.name, confidence_state(nll, entropy), nll, entropy, temperature, *shares, pixels, spread)


def _spread(case: Case, truth: Tensor) -> float | None:
    """How much the best temperature of parts of an image varies, beyond the noise of their few pixels.

    The variance of log(1/T) found by maximum likelihood is 1 / (a^2 NLL''(a)) at the optimum a = 1/T.
    """
    logs, noise = [], []
    for box in product(*(_thirds(length) for length in truth.shape)):
        logits, labels = to_tensor(case.logits[(slice(None), *box)]), truth[box].contiguous()
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


def _mean_spread(images: Sequence[Finding]) -> float | None:
    known = [(image.spread**2, image.pixels) for image in images if image.spread is not None]
    pixels = sum(count for _, count in known)
    return float(np.sqrt(sum(variance * count for variance, count in known) / pixels)) if known else None


def _plain(finding: Finding) -> dict[str, Any]:
    temperature = finding.temperature if 0 < finding.temperature < np.inf else None
    values = {name: getattr(finding, name) for name in Finding.__dataclass_fields__}
    return {
        name: None if isinstance(value, float) and np.isnan(value) else value
        for name, value in {**values, "temperature": temperature}.items()
    }
