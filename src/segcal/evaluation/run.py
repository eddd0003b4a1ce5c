"""`segcal.evaluate`: cases x calibrators x regions -> Results, the paper's evaluation (Sec. 4), one row per image."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Unpack

import torch

from segcal.calibrators import Calibrator
from segcal.cases import no_cases, reread
from segcal.evaluation.channel_means import mean_limits, mean_over_channels
from segcal.evaluation.findings import Findings, Key
from segcal.evaluation.gather import Gathered
from segcal.evaluation.heads import Head, check_methods, heads_of
from segcal.evaluation.leaks import leaks
from segcal.evaluation.limits import limits as oracle_limits
from segcal.evaluation.measure import Method, measure
from segcal.evaluation.places import Places
from segcal.evaluation.protocol import Protocol, ProtocolSettings
from segcal.evaluation.quality import CaseQuality
from segcal.evaluation.results import Results
from segcal.regions import PATCH_SIZE, Region, RegionFunction, chosen_regions, local_patch_size
from segcal.statistics import bootstrap_doubts
from segcal.text import CalibrationWarning
from segcal.types import Case, InputError, public


@public
def evaluate(
    cases: Iterable[Case],
    calibrators: Mapping[str, Method],
    protocol: Protocol | None = None,
    *,
    regions: Sequence[str] | Mapping[str, RegionFunction] | None = None,
    **settings: Unpack[ProtocolSettings],
) -> Results:
    """Measure how well calibrated each method is on the same cases, regions and patches.

    Args:
        cases: Cases to measure on; iterated once, unless `limits` is set.
        calibrators: Methods by their name in the tables: fitted calibrators, functions from logits `[1, L, *S]` to
            calibrated logits, or None for the uncalibrated scores.
        protocol: How calibration is measured. Without it, `num_classes` must be among the settings.
        regions: Regions to measure. By default all of `segcal.regions.REGIONS`; a sequence of names selects among them
            (*All* is always measured); a mapping from names to functions adds regions of your own. A function takes a
            case and its labels `[1, *S]` (-1 where ignored) and returns a Bool mask `[1, *S]`.
        settings: Fields of `segcal.Protocol`, such as `num_classes`, `ignore_index`, `background` and `patch_size`.

    Returns:
        One row per case, method, region and metric; metrics pooled over all pixels; the paper's table.
    """
    chosen = Protocol.given(protocol, settings)
    known = reread(cases) if chosen.limits else cases
    measuring, found = measure_all(known, calibrators, chosen, chosen_regions(regions))
    return with_limits(measuring.results(found, list(found.cases)), known, chosen)


def measure_all(
    cases: Iterable[Case],
    calibrators: Mapping[str, Method],
    protocol: Protocol,
    regions: Mapping[str, Region],
) -> tuple[Measuring, Findings]:
    """Measure every case in this process."""
    sized, cases, notes = _with_patch_size(protocol, cases)
    measuring = Measuring.of(calibrators, sized, regions, notes)
    found = measuring.nothing()
    for case in cases:
        measuring.add(case, found)
    if not found.cases:
        raise no_cases(cases)
    return measuring, found


@dataclass(frozen=True)
class Measuring:
    """An evaluation that is ready to measure cases, all of them or some.

    Attributes:
        calibrators: Fitted calibrators by their name in the tables.
        protocol: How it is measured, with the side of the patches.
        regions: The regions by name.
        notes: Warnings known before anything is measured.
    """

    calibrators: Mapping[str, Method]
    protocol: Protocol
    regions: Mapping[str, Region]
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        calibrators: Mapping[str, Method],
        protocol: Protocol,
        regions: Mapping[str, Region],
        notes: Sequence[str] = (),
    ) -> Measuring:
        """Return it checked."""
        if not calibrators:
            raise InputError('at least one method is needed, got none; {"UC": None} measures the uncalibrated scores')
        check_methods(calibrators, protocol)
        return cls(calibrators, protocol, regions, notes)

    @classmethod
    def of_cases(cls, cases: Iterable[Case], calibrators: Mapping[str, Method], protocol: Protocol) -> Measuring:
        """Return it with all regions, and patches whose side suits the first case."""
        sized, _, notes = _with_patch_size(protocol, cases)
        return cls.of(calibrators, sized, chosen_regions(None), notes)

    @cached_property
    def heads(self) -> list[Head]:
        """What is measured: one head for a softmax, one for each sigmoid channel."""
        return heads_of(self.protocol)

    @property
    def masked(self) -> tuple[str, ...]:
        """Names of the regions that are masks, in order."""
        return tuple(name for name, region in self.regions.items() if region.mask is not None)

    @property
    def device(self) -> torch.device | None:
        """Where the calibrators are; the uncalibrated scores are measured there too."""
        return next((one.fitted.device for one in self.calibrators.values() if isinstance(one, Calibrator)), None)

    def nothing(self) -> Findings:
        """Return findings to add cases to."""
        return Findings(self.heads[0].protocol.num_classes, self.protocol.form)

    def add(self, case: Case, found: Findings) -> None:
        """Measure a case with every method: with its labels and, for the floor, with labels drawn at random."""
        for head in self.heads:
            self._add_head(head, case, found)

    def _add_head(self, head: Head, case: Case, found: Findings) -> None:
        view, protocol = head.case(case), head.protocol
        places = Places.of(view, protocol, self.regions.values())
        if head.channel == 0:  # patches are at the same places in every channel
            found.begin(view, places)
        inside, plain = places.regions[self.masked.index("all")], None
        quality = None
        if protocol.surfaces:
            quality = CaseQuality(view, places.labels, head.structures, protocol.surface_tolerance)
        for name, whole in self.calibrators.items():
            method = head.method(whole, case)
            truth, perfect = measure(view, method, places, protocol, device=self.device)
            plain = truth.pixels.predicted if method is None else plain
            moved = 0
            if plain is not None and method is not None and not getattr(method, "preserves_labels", False):
                moved = int(torch.ne(truth.pixels.predicted, plain)[inside].sum())
            surfaces = None if quality is None else quality.of(truth.pixels.predicted)
            found.add(case.name, Key(name, False, head.channel), places, truth, moved, surfaces)
            if perfect is not None:
                found.add(case.name, Key(name, True, head.channel), places, perfect)
            del truth, perfect  # a volume's pixels take hundreds of megabytes, and the next method needs as much

    def results(self, found: Findings, names: Sequence[str]) -> Results:
        """Return the tables of the cases called `names`, in that order, which must be those that were measured."""
        cases = {name: found.cases[name] for name in names}
        doubts = dict.fromkeys(seen.doubt for seen in cases.values() if seen.doubt)
        content = {name: seen.fingerprint for name, seen in cases.items()}
        serious = [*doubts, *leaks(self.calibrators, content, "its figures are too good; measure on others")]
        for text in serious:
            warnings.warn(text, CalibrationWarning, stacklevel=3)
        local = tuple(name for name, region in self.regions.items() if region.mask is None)
        gathered = [
            Gathered(found, names, head.protocol, tuple(self.calibrators), self.masked, local, channel=head.channel)
            for head in self.heads
        ]
        uncalibrated = [name for name, calibrator in self.calibrators.items() if calibrator is None]
        about = {"baseline": [*uncalibrated, *self.calibrators][0], "fits": _fits(self.calibrators)}
        results = self._joined(gathered, [*serious, *self.notes, *bootstrap_doubts(gathered[0].groups)], about)
        if not self.protocol.floor:
            return results
        drawn = [
            replace(own, protocol=replace(own.protocol, floor=False, surfaces=False, limits=False), redrawn=True)
            for own in gathered
        ]
        return _with_floor(results, self._joined(drawn, [], {}))

    def _joined(self, gathered: Sequence[Gathered], warned: list[str], about: Mapping[str, Any]) -> Results:
        """Return the results of the one head, or those of several channels and their mean."""
        names = [head.name for head in self.heads if head.channels]
        about = {**about, "channels": names}
        each = [own.results(warned) for own in gathered]
        if len(each) == 1:
            return replace(each[0], settings={**each[0].settings, **about})
        channels = {
            head.name: replace(own, settings={**own.settings, **about, "channels": [], **_fits_of_channel(about, head)})
            for head, own in zip(self.heads, each, strict=True)
        }
        whole = {"num_classes": len(names), "activation": self.protocol.activation, "class_names": names}
        return mean_over_channels(channels, gathered, {**each[0].settings, **about, **whole})


def _with_floor(results: Results, redrawn: Results) -> Results:
    """Return results with those of the labels drawn at random, also in each channel."""
    channels = {name: replace(own, redrawn=redrawn.channels[name]) for name, own in results.channels.items()}
    mean = replace(redrawn, settings={**redrawn.settings, "channels": []}, channels={})
    return replace(results, redrawn=mean, channels=channels)


def with_limits(results: Results, cases: Iterable[Case], protocol: Protocol) -> Results:
    """Return results with what temperatures chosen with the labels would reach, where the protocol asks for it."""
    if not protocol.limits:
        return results
    names, kept = ("num_classes", "ignore_index", "background", "bins", "seed"), reread(cases)
    frames = {
        head.name: oracle_limits(head.cases(kept), **{name: getattr(head.protocol, name) for name in names})
        for head in heads_of(protocol)
    }
    channels = {name: replace(own, limits_frame=frames[name]) for name, own in results.channels.items()}
    return replace(results, limits_frame=mean_limits(list(frames.values())), channels=channels)


def _with_patch_size(protocol: Protocol, cases: Iterable[Case]) -> tuple[Protocol, Iterable[Case], list[str]]:
    """Choose the side of the patches from the first case where none is given, and say so if it is not the paper's."""
    if protocol.patch_size is not None:
        return protocol, cases, []
    remaining = iter(cases)
    first = next(remaining, None)
    if first is None:
        return protocol, cases, []
    size = local_patch_size([first.logits.shape[1:]])
    note = (
        f"Local patches have a side of {size} pixels, since the paper's {PATCH_SIZE} would cover more than a quarter "
        f"of '{first.name}'; set patch_size for another side"
    )
    whole = replace(protocol, patch_size=size)
    return whole, chain([first], remaining), [] if size == PATCH_SIZE or not protocol.patches else [note]


def _fits(calibrators: Mapping[str, Method]) -> dict[str, Any]:
    """The fit report of each calibrator without the names and content of the cases, in values that JSON can hold."""
    reports = {name: getattr(calibrator, "fit_report_", None) for name, calibrator in calibrators.items()}
    plain = {name: asdict(report) for name, report in reports.items() if report is not None}
    return {
        name: {key: value for key, value in report.items() if key not in ("names", "fingerprints")}
        for name, report in plain.items()
    }


def _fits_of_channel(about: Mapping[str, Any], head: Head) -> dict[str, Any]:
    """The fit reports of a sigmoid head with the details of one of its channels."""
    details = f"channel {head.channel}"
    return (
        {"fits": {name: {**fit, "details": fit["details"].get(details, {})} for name, fit in about["fits"].items()}}
        if "fits" in about
        else {}
    )
