"""`segcal.evaluate`: cases x calibrators x regions -> Results, the paper's evaluation (Sec. 4), one row per image."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from segcal.calibrators import Calibrator
from segcal.evaluation.channel_means import mean_over_channels
from segcal.evaluation.gather import Gathered
from segcal.evaluation.heads import Head, check_calibrators, heads_of
from segcal.evaluation.measure import measure
from segcal.evaluation.places import Places
from segcal.evaluation.protocol import AceEdges, Protocol
from segcal.evaluation.results import Results
from segcal.functional.binning import Form
from segcal.regions import PATCH_SIZE, Region, RegionFunction, chosen_regions, local_patch_size
from segcal.statistics import IntervalKind, bootstrap_doubts
from segcal.types import Activation, Case, IgnoreIndex, InputError, public


@public
def evaluate(
    cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator | None],
    *,
    num_classes: int,
    activation: Activation | None = None,
    ignore_index: IgnoreIndex = None,
    background: int | None = None,
    bins: int = 10,
    form: Form = "tables",
    ace_edges: AceEdges = "region",
    boundary_width: int = 2,
    boundary_ball: bool = False,
    patch_size: int | None = None,
    patches: int = 10,
    patch_margin: int = 0,
    patch_sizes: Sequence[int] = (),
    seed: int = 0,
    repetitions: int = 1000,
    interval: IntervalKind = "percentile",
    floor: bool = False,
    class_names: Sequence[str] | None = None,
    regions: Sequence[str] | Mapping[str, RegionFunction] | None = None,
    masks: Mapping[str, RegionFunction] | None = None,
) -> Results:
    """Measure how well calibrated each method is on the same cases, regions and patches.

    Args:
        cases: Cases to measure on; iterated once.
        calibrators: Fitted calibrators by their name in the tables; None stands for the uncalibrated scores.
        num_classes: Number of classes L, or of sigmoid channels C.
        activation: "softmax" for exclusive classes; "sigmoid" for channels that may overlap, each measured by itself,
            with labels `[C, *S]` of 0 and 1. By default a softmax, or a sigmoid if `num_classes` is 1.
        ignore_index: Label, or labels, that belong to no region.
        background: Class outside the region *All*; None if there is none.
        bins: Number of confidence bins R.
        form: Form of SCE and ACE: "tables", "equations" or "marginal" (see `segcal.functional.binning`).
        ace_edges: Whether the equal-mass bins of ACE hold equal shares of the pixels of the "region" or of the "image".
        boundary_width: How far *Boundary* reaches, in pixels.
        boundary_ball: Whether *Boundary* reaches in every direction instead of along the axes.
        patch_size: Side of the *Local* patches, in pixels. By default the paper's 72, or less if such a patch would
            cover more than a quarter of the first image (see `segcal.regions.local_patch_size`).
        patches: Number of *Local* patches per image.
        patch_margin: Distance of the patches from the edge of the image, where there is room.
        patch_sizes: Further sides for which Local-Avg and Local-Max are measured, to see how they depend on the side.
        seed: Seed of the places of the patches, of the bootstrap and of the floor.
        repetitions: Number of bootstrap repetitions.
        interval: Bootstrap interval: "percentile", or "bca" for bias-corrected and accelerated intervals.
        floor: Whether to measure also what each method would score if it were perfectly calibrated: with labels drawn
            from its own probabilities.
        class_names: Names of the classes; their numbers by default.
        regions: Regions to measure. By default all of `segcal.regions.REGIONS`; a sequence of names selects among them
            (*All* is always measured); a mapping from names to functions adds regions of your own. A function takes a
            case and its labels `[1, *S]` (-1 where ignored) and returns a Bool mask `[1, *S]`.
        masks: Deprecated name of `regions`.

    Returns:
        One row per case, method, region and metric; figures pooled over all pixels; the paper's table.
    """
    protocol = Protocol.of(locals())  # must stay the first statement: the arguments are the only local names here
    chosen = chosen_regions(regions if masks is None else _renamed(masks, regions))
    if not calibrators:
        raise InputError('at least one method is needed, got none; {"UC": None} measures the uncalibrated scores')
    check_calibrators(calibrators, protocol)
    sized, cases, notes = _with_patch_size(protocol, cases)
    heads = heads_of(sized)
    found, redrawn = _gather(cases, calibrators, heads, chosen)
    seen = found[0].cases
    warned = [*notes, *_seen(calibrators, list(seen)), *bootstrap_doubts(list(seen.values()))]
    uncalibrated = [name for name, calibrator in calibrators.items() if calibrator is None]
    about = {"baseline": [*uncalibrated, *calibrators][0], "fits": _fits(calibrators)}
    results = _joined(found, heads, sized, warned, about)
    return _with_floor(results, _joined(redrawn, heads, replace(sized, floor=False), [], {})) if floor else results


def _joined(
    found: Sequence[Gathered], heads: Sequence[Head], protocol: Protocol, warned: list[str], about: Mapping[str, Any]
) -> Results:
    """Return the results of the one head, or those of several channels and their mean."""
    names = [head.name for head in heads if head.channels]
    about = {**about, "channels": names}
    each = [gathered.results(warned) for gathered in found]
    if len(heads) == 1:
        return replace(each[0], settings={**each[0].settings, **about})
    channels = {
        head.name: replace(own, settings={**own.settings, **about, "channels": [], **_fits_of_channel(about, head)})
        for head, own in zip(heads, each, strict=True)
    }
    whole = {"num_classes": len(heads), "activation": protocol.activation, "class_names": names}
    return mean_over_channels(channels, found, {**each[0].settings, **about, **whole})


def _with_floor(results: Results, redrawn: Results) -> Results:
    """Return results with those of the labels drawn at random, also in each channel."""
    channels = {name: replace(own, redrawn=redrawn.channels[name]) for name, own in results.channels.items()}
    mean = replace(redrawn, settings={**redrawn.settings, "channels": []}, channels={})
    return replace(results, redrawn=mean, channels=channels)


def _with_patch_size(protocol: Protocol, cases: Iterable[Case]) -> tuple[Protocol, Iterable[Case], list[str]]:
    """Choose the side of the patches from the first case where none is given, and say so if it is not the paper's."""
    if protocol.patch_size is not None:
        return protocol, cases, []
    remaining = iter(cases)
    first = next(remaining, None)
    if first is None:
        return protocol, (), []
    size = local_patch_size([first.logits.shape[1:]])
    note = (
        f"Local patches have a side of {size} pixels, since the paper's {PATCH_SIZE} would cover more than a quarter "
        f"of '{first.name}'; set patch_size for another side"
    )
    whole = replace(protocol, patch_size=size)
    return whole, chain([first], remaining), [] if size == PATCH_SIZE or not protocol.patches else [note]


def _gather(
    cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator | None],
    heads: Sequence[Head],
    regions: Mapping[str, Region],
) -> tuple[list[Gathered], list[Gathered]]:
    """Measure every case with every method and head: with its labels and, for the floor, with labels drawn."""
    masked = tuple(name for name, region in regions.items() if region.mask is not None)
    local = tuple(name for name, region in regions.items() if region.mask is None)
    protocols = [head.protocol for head in heads]
    found, redrawn = (
        [Gathered(protocol, tuple(calibrators), masked, local) for protocol in each]
        for each in (protocols, [replace(protocol, floor=False) for protocol in protocols])
    )
    own = [head.calibrators(calibrators) for head in heads]
    for case in cases:
        for k, head in enumerate(heads):
            view = head.case(case)
            places = Places.of(view, head.protocol, regions.values())
            found[k].begin(case)
            redrawn[k].begin(case)
            for method, calibrator in own[k].items():
                truth, perfect = measure(view, calibrator, places, head.protocol)
                found[k].add(case.name, method, places, truth)
                if perfect is not None:
                    redrawn[k].add(case.name, method, places, perfect)
    if not found[0].cases:
        raise InputError("at least one case is needed, got none; is the folder or the split empty?")
    return found, redrawn


def _renamed(masks: Mapping[str, RegionFunction], regions: object) -> Mapping[str, RegionFunction]:
    if regions is not None:
        raise InputError("masks is the old name of regions; give regions only")
    warnings.warn("masks is now called regions; use regions=", DeprecationWarning, stacklevel=3)
    return masks


def _fits(calibrators: Mapping[str, Calibrator | None]) -> dict[str, Any]:
    """The fit report of each calibrator without the names of the cases, in values that JSON can hold."""
    reports = {name: getattr(calibrator, "fit_report_", None) for name, calibrator in calibrators.items()}
    plain = {name: asdict(report) for name, report in reports.items() if report is not None}
    return {name: {key: value for key, value in report.items() if key != "names"} for name, report in plain.items()}


def _seen(calibrators: Mapping[str, Calibrator | None], cases: Sequence[str]) -> list[str]:
    """A warning for each calibrator that was fitted on cases it is now measured on."""
    found = []
    for name, calibrator in calibrators.items():
        report = getattr(calibrator, "fit_report_", None)
        if both := set(report.names if report else ()) & set(cases):
            found.append(f"{name} was fitted on {len(both)} of these {len(cases)} cases: its figures are too good")
    return found


def _fits_of_channel(about: Mapping[str, Any], head: Head) -> dict[str, Any]:
    """The fit reports of a sigmoid head with the details of one of its channels."""
    details = f"channel {head.channel}"
    return (
        {"fits": {name: {**fit, "details": fit["details"].get(details, {})} for name, fit in about["fits"].items()}}
        if "fits" in about
        else {}
    )
