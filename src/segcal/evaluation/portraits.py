"""Small pictures of chosen cases (the paper's Figs. 1 and 2): maps of each method, and local reliability diagrams.

A portrait is what a page or a figure needs to show a case without its data: every n-th pixel of some slices, in 8 bits,
and the reliability histograms of the whole image and of three of its Local patches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import torch
from scipy.ndimage import uniform_filter
from torch import Tensor

from segcal.calibrators import Calibrator, TemperatureCalibrator
from segcal.evaluation.measure import calibrated_slabs
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.files import MARKER, read_json, staged_folder, write_json
from segcal.functional import binning
from segcal.functional.binning import Pixels
from segcal.regions import Box, box_index
from segcal.types import Array, Case, InputError
from segcal.version import __version__

Kind = Literal["image", "truth", "prediction", "confidence", "temperature", "gap"]

FORMAT = 1
FOLDER = "portraits"
"""Where portraits lie inside a folder of results."""

LEVELS = 100
NOTHING = 255
"""A map holds 0..100, from its low to its high value, and 255 where there is none."""

_SIDE, _AREA, _SLICES = 480, 360_000, 15
_WORST = ("worst", "second worst", "third worst")
_OTHER = 254  # classes that one byte has no room for


@dataclass(frozen=True)
class Layer:
    """One picture of every slice: bytes `[slices, h, w]`, or `[slices, h, w, 3]` for an image in colour.

    A map (confidence, temperature, gap) goes from `low` to `high`, a temperature in equal steps of its logarithm. Truth
    and prediction hold positions in the portrait's `classes`. `method` is "" where all methods share the layer.
    """

    kind: Kind
    method: str
    values: Array
    low: float = 0.0
    high: float = 1.0

    def numbers(self) -> Array:
        """The map in its own unit, NaN where there is nothing."""
        share = np.where(self.values == NOTHING, np.nan, self.values / LEVELS)
        if self.kind == "temperature":
            return np.asarray(self.low * (self.high / self.low) ** share)
        return np.asarray(self.low + (self.high - self.low) * share)


@dataclass(frozen=True)
class Curve:
    """A reliability histogram: pixels, right pixels and summed confidence of each bin."""

    count: tuple[int, ...]
    hit: tuple[int, ...]
    confidence: tuple[float, ...]


@dataclass(frozen=True)
class Patch:
    """A Local patch: its number among those of the case, first and last pixel along each axis, and its curves."""

    number: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    curves: Mapping[str, Curve]


@dataclass(frozen=True)
class Portrait:
    """What is kept of one case.

    Attributes:
        name: Of the case.
        why: It was chosen.
        shape: Of the case, `*S`.
        stride: Every so many pixels are kept.
        slices: Which slices along the first axis; empty for an image.
        window: Side of the sliding window of the gap maps.
        classes: The classes that occur; the layers of labels hold positions in this list.
        layers: The pictures.
        curves: Reliability of the whole case in the region *All*, by method.
        patches: Up to three: the worst, the middle and the best by the ECE of the baseline.
    """

    name: str
    why: str
    shape: tuple[int, ...]
    stride: int
    slices: tuple[int, ...]
    window: int
    classes: tuple[int, ...]
    layers: tuple[Layer, ...]
    curves: Mapping[str, Curve]
    patches: tuple[Patch, ...]


def choose_cases(results: Results, named: Sequence[str] = ()) -> dict[str, str]:
    """The cases to portray and why: those named, or the worst, a typical one and the best by Local-Max of the baseline.

    Where there are no patches, by the ECE in *All*.
    """
    frame, baseline = results.to_frame(), results.baseline
    known = list(dict.fromkeys(frame["case"]))
    if unknown := [name for name in named if name not in known]:
        raise InputError(f"cases must be among those measured, got '{unknown[0]}'; the first is '{known[0]}'")
    if named:
        return dict.fromkeys(named, "named")
    regions = set(frame["region"])
    region = "local-max" if "local-max" in regions else "all"
    rows = frame[(frame.method == baseline) & (frame.metric == "ece") & (frame.region == region)]
    ranked = rows.dropna(subset=["value"]).sort_values("value", ascending=False, kind="stable")["case"].tolist()
    if not ranked:
        return {}
    chosen = dict(zip(ranked, _WORST, strict=False))
    rest = {ranked[len(ranked) // 2]: "typical", ranked[-1]: "best"}
    return {**chosen, **{name: why for name, why in rest.items() if name not in chosen}}


def portray(
    cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator | None],
    results: Results,
    named: Sequence[str] = (),
) -> list[Portrait]:
    """Portraits of the cases that were named, or else chosen, out of those that `results` were measured on."""
    chosen = choose_cases(results, named)
    found = {
        case.name: _portrait(case, chosen[case.name], calibrators, results) for case in cases if case.name in chosen
    }
    return [found[name] for name in chosen if name in found]


def save_portraits(portraits: Sequence[Portrait], results_folder: str | Path) -> None:
    """Write them into a folder of results: JSON, and the pictures of each as `.npz`."""
    with staged_folder(Path(results_folder) / FOLDER) as folder:
        for k, portrait in enumerate(portraits):
            layers = {f"layer{j}": layer.values for j, layer in enumerate(portrait.layers)}
            np.savez_compressed(folder / f"{k:03d}.npz", allow_pickle=False, **layers)
        listed = [_plain(portrait) for portrait in portraits]
        write_json(folder / MARKER, {"format": FORMAT, "segcal": __version__, "portraits": listed})


def load_portraits(results_folder: str | Path) -> list[Portrait]:
    """Those of a folder of results; none where none were saved."""
    folder = Path(results_folder) / FOLDER
    if not folder.exists():
        return []
    content = read_json(folder / MARKER)
    try:
        if content["format"] > FORMAT:
            raise InputError(f"the portraits in '{folder}' were saved by a newer segcal; update segcal")
        return [_read(entry, folder / f"{k:03d}.npz") for k, entry in enumerate(content["portraits"])]
    except (KeyError, TypeError, ValueError, OSError, EOFError, BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the portraits in '{folder}' cannot be read ({error!r}); evaluate anew") from error


def _portrait(case: Case, why: str, calibrators: Mapping[str, Calibrator | None], results: Results) -> Portrait:
    settings = results.settings
    protocol = Protocol.of(settings)
    labelled = protocol.labelled(case)
    labels, inside, boxes = labelled.labels, labelled.all[0], protocol.boxes(labelled)
    shape = tuple(int(length) for length in labels.shape[1:])
    shown = _three(results, case.name, len(boxes))
    regions = [binning.index_of(inside), *(box_index(boxes[k], inside) for k in shown)]
    view = _View.of(shape)
    window = max(5, settings["patch_size"] // 3) | 1
    truth, inner = labels[0].numpy(), inside.numpy()
    maps: list[tuple[Kind, str, Array]] = []
    predictions: dict[str, Array] = {}
    curves: dict[str, list[Curve]] = {}
    for method, calibrator in calibrators.items():
        pixels, temperature = _described(case, calibrator, labels[0], settings["num_classes"])
        curves[method] = _curves(pixels, regions, settings)
        confidence = pixels.confidence.numpy().reshape(shape)
        predicted = pixels.predicted.numpy().reshape(shape)
        gap = local_gap(confidence, predicted == truth, inner, window)
        keeps = calibrator is None or calibrator.preserves_labels
        predictions["" if keeps else method] = view(predicted)
        maps.append(("confidence", method, view(confidence)))
        if temperature is not None:
            maps.append(("temperature", method, view(temperature)))
        maps.append(("gap", method, view(gap)))
    classes, coded = _coded({"truth": view(truth), **predictions})
    layers = [
        *_image_layers(case, view),
        Layer("truth", "", coded.pop("truth")),
        *(Layer("prediction", method, values) for method, values in coded.items()),
        *_map_layers(maps, settings["num_classes"]),
    ]
    patches = [
        Patch(k, *_corners(boxes[k]), {method: curves[method][1 + j] for method in curves}) for j, k in enumerate(shown)
    ]
    whole = {method: found[0] for method, found in curves.items()}
    return Portrait(
        case.name, why, shape, view.stride, view.slices, window, classes, tuple(layers), whole, tuple(patches)
    )


@dataclass(frozen=True)
class _View:
    """Which pixels of a case are kept: every `stride`-th of some slices."""

    stride: int
    slices: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> _View:
        *deep, height, width = shape
        stride = -(-max(height, width) // _SIDE)
        if not deep:
            return cls(stride, ())
        area = -(-height // stride) * -(-width // stride)
        count = int(np.clip(_AREA // area, 1, min(_SLICES, deep[0])))
        # the middles of equal parts, so that one slice is the middle one and none is the outermost
        return cls(stride, tuple(int((k + 0.5) * deep[0] / count) for k in range(count)))

    def __call__(self, values: Array) -> Array:
        """Values `[*S, ...]` as `[slices, h, w, ...]`."""
        kept = values[list(self.slices)] if self.slices else values[np.newaxis]
        return np.ascontiguousarray(kept[:, :: self.stride, :: self.stride])


def local_gap(confidence: Array, hit: Array, inside: Array, window: int) -> Array:
    """Mean confidence minus accuracy of the pixels inside, within a window around each; NaN outside.

    >>> gap = local_gap(np.full((1, 3), 0.75), np.array([[True, True, False]]), np.ones((1, 3), bool), 3)
    >>> gap.round(3)
    array([[-0.25 ,  0.083,  0.25 ]])
    """
    total = uniform_filter(np.where(inside, confidence - hit, 0.0), window, mode="constant")
    share = uniform_filter(inside.astype(np.float64), window, mode="constant")
    return np.where(inside, total / np.maximum(share, 1e-12), np.nan)


def _described(
    case: Case, calibrator: Calibrator | None, labels: Tensor, num_classes: int
) -> tuple[Pixels, Array | None]:
    """What the metrics know of each pixel, and the temperatures where the method has them."""
    parts, heats = [], []
    for rows, logits, temperature in _slabs(case, calibrator, num_classes):
        parts.append(binning.describe(logits[0].cpu(), labels[rows]))
        if temperature is not None:
            heats.append(temperature[0, 0].float().cpu())
    return binning.join(parts), torch.cat(heats).numpy() if heats else None


def _slabs(
    case: Case, calibrator: Calibrator | None, num_classes: int
) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    calibrator = None if calibrator is None else calibrator.applied
    if isinstance(calibrator, TemperatureCalibrator):
        for slab, temperature in calibrator.temperature_case(case):
            yield slab.inner_rows, calibrator.scale(slab.logits[:, :, slab.inner], temperature), temperature
    else:
        for rows, logits in calibrated_slabs(case, calibrator, num_classes):
            yield rows, logits, None


def _curves(pixels: Pixels, regions: Sequence[Tensor], settings: Mapping[str, Any]) -> list[Curve]:
    evidence = binning.region_evidence(pixels, regions, num_classes=settings["num_classes"], bins=settings["bins"])
    merged = [part.sum(dim=-2).tolist() for part in evidence.top]
    return [Curve(*(tuple(part[k]) for part in merged)) for k in range(len(regions))]


def _three(results: Results, case: str, many: int) -> list[int]:
    """The patches with the largest, the middle and the least ECE of the baseline, of those that hold pixels."""
    patches = results.patches()
    if not many or not len(patches):
        return []
    rows = patches[(patches.case == case) & (patches.method == results.baseline) & (patches.metric == "ece")]
    ranked = rows.dropna(subset=["value"]).sort_values("value", ascending=False, kind="stable")["patch"].tolist()
    return list(dict.fromkeys(int(ranked[k]) for k in (0, len(ranked) // 2, -1))) if ranked else []


def _coded(labels: Mapping[str, Array]) -> tuple[tuple[int, ...], dict[str, Array]]:
    """The classes that occur, and labels as positions among them; what is ignored becomes 255."""
    present = np.unique(np.concatenate([np.unique(values) for values in labels.values()]))
    classes = present[present >= 0]
    coded = {
        name: np.where(values < 0, NOTHING, np.minimum(np.searchsorted(classes, values), _OTHER)).astype(np.uint8)
        for name, values in labels.items()
    }
    return tuple(int(c) for c in classes[:_OTHER]), coded


def _map_layers(maps: Sequence[tuple[Kind, str, Array]], num_classes: int) -> Iterator[Layer]:
    """Maps in 8 bits; those of one kind share their range, so that methods can be compared by eye."""
    heats = [np.abs(np.log(values)) for kind, _, values in maps if kind == "temperature"]
    heat = float(np.exp(1.2 * max([np.log(1.5), *(np.quantile(values, 0.995) for values in heats)])))
    gaps = [np.abs(values[~np.isnan(values)]) for kind, _, values in maps if kind == "gap"]
    gap = float(min(1.0, max([0.05, *(np.quantile(values, 0.995) for values in gaps if values.size)])))
    ranges = {"confidence": (1 / num_classes, 1.0), "temperature": (1 / heat, heat), "gap": (-gap, gap)}
    for kind, method, values in maps:
        low, high = ranges[kind]
        share = np.log(values / low) / np.log(high / low) if kind == "temperature" else (values - low) / (high - low)
        level = np.rint(LEVELS * np.clip(np.nan_to_num(share), 0, 1))
        yield Layer(kind, method, np.where(np.isnan(share), NOTHING, level).astype(np.uint8), low, high)


def _image_layers(case: Case, view: _View) -> Iterator[Layer]:
    if case.image is None:
        return
    image = np.asarray(case.image)
    channels = image[:3] if image.shape[0] == 3 else image[:1]
    pictures = np.stack([view(channel) for channel in channels], axis=-1)
    if pictures.dtype != np.uint8:
        pictures = pictures.astype(np.float64)
        low, high = (0.0, 1.0) if pictures.min() >= 0 and pictures.max() <= 1 else np.quantile(pictures, (0.001, 0.999))
        pictures = np.rint(255 * np.clip((pictures - low) / max(high - low, 1e-12), 0, 1)).astype(np.uint8)
    yield Layer("image", "", pictures if pictures.shape[-1] == 3 else pictures[..., 0])


def _corners(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(interval.start for interval in box), tuple(interval.stop for interval in box)


def _plain(portrait: Portrait) -> dict[str, Any]:
    def curves(of: Mapping[str, Curve]) -> dict[str, Any]:
        return {method: vars(curve) for method, curve in of.items()}

    fields = vars(portrait)
    return {
        **fields,
        "layers": [
            {name: value for name, value in vars(layer).items() if name != "values"} for layer in portrait.layers
        ],
        "curves": curves(portrait.curves),
        "patches": [{**vars(patch), "curves": curves(patch.curves)} for patch in portrait.patches],
    }


def _read(entry: Mapping[str, Any], path: Path) -> Portrait:
    def curves(of: Mapping[str, Any]) -> dict[str, Curve]:
        return {
            method: Curve(*(tuple(curve[name]) for name in ("count", "hit", "confidence")))
            for method, curve in of.items()
        }

    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:  # a broken file is closed too
        layers = tuple(Layer(**{**layer, "values": arrays[f"layer{j}"]}) for j, layer in enumerate(entry["layers"]))
    patches = tuple(
        Patch(patch["number"], tuple(patch["start"]), tuple(patch["stop"]), curves(patch["curves"]))
        for patch in entry["patches"]
    )
    lists = {name: tuple(entry[name]) for name in ("shape", "slices", "classes")}
    return Portrait(**{**entry, **lists, "layers": layers, "curves": curves(entry["curves"]), "patches": patches})
