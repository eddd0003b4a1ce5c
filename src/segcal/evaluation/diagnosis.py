"""Over-, under- or balanced confidence (appendix "Overconfidence and Underconfidence"): data set, image, pixel."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from segcal.calibrators import TemperatureScaling
from segcal.cases import CaseStream, StreamedCase
from segcal.evaluation.methods import ExclusiveHead, heads_of, heads_of_folder
from segcal.evaluation.protocol import Protocol, background_note, majority_class
from segcal.files import MARKER, staged_folder, write_json
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
from segcal.version import __version__

if TYPE_CHECKING:  # not needed for cases in memory
    from segcal.data.folders.folder import Folder
    from segcal.engines import Run

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
        held = [image for image in self.images if image.pixels]
        known = [image for image in held if image.spread is not None]
        return f"judged in {len(known)} of {len(held)} image{'s' if len(held) != 1 else ''}"

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
    `segcal.cases.channels.channel_cases(cases, k, channels)` with `num_classes=2`.
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
    held = [image for image in images if image.pixels]
    pixels = sum(image.pixels for image in held)
    nll, entropy, over, under = (
        float(sum(getattr(image, field) * image.pixels for image in held) / pixels)
        for field in ("nll", "entropy", "overconfident_share", "underconfident_share")
    )
    counts = np.array([image.class_pixels for image in held]).sum(axis=0)
    known = [(image.spread**2, image.pixels) for image in held if image.spread is not None]
    spread = None
    if 2 * len(known) >= len(held):
        spread = float(np.sqrt(sum(variance * own for variance, own in known) / sum(own for _, own in known)))
    state, by_class = confidence_state(nll, entropy), tuple(counts.tolist())
    whole = ConfidenceSummary("all images", state, nll, entropy, best, over, under, pixels, spread, by_class)
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
    return _temperature(float(scaling.to(device).fit(cases).inverse_temperature))


def _temperature(inverse: float) -> float:
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

    @cache
    def at(alpha: float) -> Likelihood:
        parts = [likelihood(slab.logits[0], _truth(slab), alpha) for slab in streamed.slabs()]
        return Likelihood(*(sum(terms) for terms in zip(*parts, strict=True)))

    pixels = int(at(1.0).pixels)
    if pixels == 0:
        return ConfidenceSummary(case.name, "balanced", *(np.nan,) * 5, 0)
    nll, entropy = at(1.0).nll / pixels, total / pixels
    best = _temperature(optimal_inverse_temperature(at).inverse_temperature)
    shares, known = (over / pixels, under / pixels), tuple(counts.tolist())
    state = confidence_state(nll, entropy)
    return ConfidenceSummary(case.name, state, nll, entropy, best, *shares, pixels, _spread(streamed), known)


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


def _percent(spread: float) -> str:
    return f"{100 * np.expm1(spread):.0f} %"


def _plain(finding: ConfidenceSummary) -> dict[str, Any]:
    values = {**asdict(finding), "temperature": finding.temperature or None}
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in values.items()
    }


def diagnose_folder(folder: Folder, run: Run, *, device: torch.device) -> dict[str, Diagnosis] | None:
    """Diagnose the cases of a folder; None where another process has the diagnosis.

    Each image is diagnosed by itself. The temperature of the whole data set depends on all pixels at once: the first
    process finds it, in a few passes over the data.

    Returns:
        The diagnosis of each sigmoid channel by its name; that of a softmax has the name "".
    """
    run.begin(folder.num_classes, folder.activation, folder.ignore_index, folder.background, list(folder.names))
    found = [json.loads(result) for result in run.map(_DiagnoseCase(folder, device), folder.identities())]
    if not run.engine.is_first:
        return None
    diagnoses = {}
    for k, head in enumerate(heads_of_folder(folder)):
        images = tuple(ConfidenceSummary(**image[k]) for image in found)
        diagnoses[head.name] = diagnosis_of(images, head.cases(folder), head, device)
    return diagnoses


@dataclass(frozen=True)
class _DiagnoseCase:
    """Diagnoses every head of the case with a name."""

    folder: Folder
    device: torch.device

    def __call__(self, name: str, _: Path | None) -> bytes:
        (case,) = self.folder.subset([name])
        heads = heads_of_folder(self.folder)
        found = [diagnose_image(head.case(case), head.protocol, self.device) for head in heads]
        return json.dumps([asdict(image) for image in found]).encode()


def plain_diagnosis(found: Mapping[str, Diagnosis], limits: Mapping[str, pd.DataFrame] | None = None) -> dict[str, Any]:
    """Return a diagnosis, and perhaps its limits, in values that JSON can hold; of several channels by their names."""
    content = {name: diagnosis.to_dict() for name, diagnosis in found.items()}
    for name, frame in (limits or {}).items():
        content[name]["limits"] = frame.to_dict(orient="records")
    return {"channels": content} if len(content) > 1 else next(iter(content.values()))


def save_diagnosis(found: Mapping[str, Diagnosis], out: Path) -> None:
    """Write the folder `out` with the diagnosis as JSON."""
    cases = len(next(iter(found.values())).images)
    with staged_folder(out) as folder:
        write_json(folder / "diagnosis.json", plain_diagnosis(found))
        write_json(folder / MARKER, {"format": 1, "segcal": __version__, "diagnosis": {"cases": cases}})


def write_excess_maps(like: Folder, device: torch.device, name: str, folder: Path) -> dict[str, int]:
    """Write the map of NLL minus entropy of a case as its folder stores such maps and, of an image, a picture.

    Orange is overconfident, blue underconfident, grey ignored; colours are full from 2 nats on. Several sigmoid
    channels have a folder each.
    """
    from segcal.data.folders.folder import write_map  # noqa: PLC0415  (not needed for cases in memory)

    (case,) = like.subset([name])
    crop = like.crops.get(name)
    for place, head in zip(like.map_folders(folder), heads_of_folder(like), strict=True):
        excess = excess_map(head.case(case), head.protocol, device)
        whole = excess if crop is None else crop.put_back(excess, outside=np.nan)
        place.mkdir(parents=True, exist_ok=True)
        path = write_map(place, name, whole, like)
        if whole.ndim == 2:
            Image.fromarray(coloured(whole)).save(path.with_suffix(".png"))
    return {}
