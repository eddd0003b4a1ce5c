"""The evaluation protocol (Sec. 4): everything that decides how calibration is measured.

A class that covers more than half of the labelled pixels is probably the background. Most networks are confident and
right there, so that its pixels hide how the structures are calibrated. Where nobody named it, it is not left out
silently: the scores with and without it are given, with the way to name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypedDict, get_args

import numpy as np

from segcal.cases import StreamedCase
from segcal.evidence import Form
from segcal.functional.checks import activation_of
from segcal.regions import PATCH_SIZE, Box, LabelledCase, local_patches
from segcal.statistics import Drawing, IntervalKind
from segcal.tables.numbers import percent
from segcal.text import both_classes, suggestion
from segcal.types import (
    LARGEST_SEED,
    MOST_BINS,
    MOST_CLASSES,
    Activation,
    Array,
    IgnoreIndex,
    InputError,
    check_whole,
    public,
)

AceEdges = Literal["region", "image"]
PatchRule = Literal["labelled", "paper"]

_LARGEST_SIDE = 1 << 20
_RANGES = (
    ("num_classes", 1, MOST_CLASSES),
    ("bins", 1, MOST_BINS),
    ("boundary_width", 0, _LARGEST_SIDE),
    ("patch_size", 1, _LARGEST_SIDE),
    ("patches", 0, 10_000),
    ("patch_margin", 0, _LARGEST_SIDE),
    ("seed", 0, LARGEST_SEED),
    ("repetitions", 0, 100_000),
)
"""Smallest and largest value of each number."""


class ProtocolSettings(TypedDict, total=False):
    """The fields of `Protocol`, as keywords of `segcal.evaluate` and `segcal.compare`."""

    num_classes: int
    activation: Activation | None
    ignore_index: IgnoreIndex
    background: int | None
    bins: int
    form: Form
    ace_edges: AceEdges
    boundary_width: int
    boundary_ball: bool
    patch_size: int | None
    patches: int
    patch_margin: int
    patch_sizes: Sequence[int]
    patch_rule: PatchRule
    seed: int
    repetitions: int
    interval: IntervalKind
    floor: bool
    surfaces: bool
    surface_tolerance: float
    limits: bool
    class_names: Sequence[str] | None


@public
@dataclass(frozen=True)
class Protocol:
    """Settings of an evaluation; defaults are the paper's except for those that "Differences from the paper" lists.

    Examples:
        >>> Protocol(num_classes=11, ignore_index=11, patch_size=48).bins
        10

    Args:
        num_classes: Number of classes L, or of sigmoid channels C.
        activation: "softmax" for exclusive classes; "sigmoid" for channels that may overlap, each measured separately,
            with labels `[C, *S]` of 0 and 1. By default a softmax, or a sigmoid if `num_classes` is 1.
        ignore_index: Label, or labels, that belong to no region.
        background: Class outside the region *All*; None if there is none.
        bins: Number of confidence bins R.
        form: Form of SCE and ACE: "tables", "equations" or "marginal" (see `segcal.evidence.readings`).
        ace_edges: Pixels that the equal-mass bins of ACE divide equally: those of the "region", or those of the whole
            "image" for regions and of the whole patch for *Local* patches.
        boundary_width: Width of *Boundary* on each side of a boundary, in pixels.
        boundary_ball: Measure that width in every direction instead of along the axes.
        patch_size: Side of the *Local* patches, in pixels. By default the paper's 72, or less if such a patch would
            cover more than a quarter of the first image (see `segcal.regions.local_patch_size`).
        patches: Number of *Local* patches per image.
        patch_margin: Distance of the patches from the edge of the image in pixels, where there is room.
        patch_sizes: Further sides for which Local-Avg and Local-Max are measured, to show how they depend on the side.
        patch_rule: "labelled" leaves out patches of which less than a twentieth lies in *All*, whose error is mostly
            noise; "paper" keeps every patch with a pixel in *All*.
        seed: Random seed of the patch positions, the bootstrap and the floor.
        repetitions: Number of bootstrap repetitions.
        interval: Bootstrap interval: "percentile", or "bca" for bias-corrected and accelerated intervals.
        floor: Also measure the floor, the score that each method would have if it were perfectly calibrated: labels
            are drawn from its own probabilities.
        surfaces: Also measure the segmentation itself: Dice, surface Dice and surface distances of every class except
            the background, in the unit of the spacing of the cases (`Results.surfaces`).
        surface_tolerance: Distance up to which surfaces count as equal in the surface Dice, in that unit.
        limits: Also measure the best scores that temperatures chosen with the labels would reach (`segcal diagnose
            --limits`), which reads the cases several times.
        class_names: Names of the classes; their numbers by default.
    """

    num_classes: int
    activation: Activation | None = None
    ignore_index: IgnoreIndex = None
    background: int | None = None
    bins: int = 10
    form: Form = "tables"
    ace_edges: AceEdges = "region"
    boundary_width: int = 2
    boundary_ball: bool = False
    patch_size: int | None = None
    patches: int = 10
    patch_margin: int = 0
    patch_sizes: Sequence[int] = ()
    patch_rule: PatchRule = "labelled"
    seed: int = 0
    repetitions: int = 1000
    interval: IntervalKind = "percentile"
    floor: bool = False
    surfaces: bool = False
    surface_tolerance: float = 1.0
    limits: bool = False
    class_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least, most)
        for side in self.patch_sizes:
            check_whole("each of patch_sizes", side, 1, _LARGEST_SIDE)
        if not self.surface_tolerance >= 0:
            raise InputError(f"surface_tolerance must be 0 or more, got {self.surface_tolerance}")
        kinds = {"form": Form, "ace_edges": AceEdges, "interval": IntervalKind, "patch_rule": PatchRule}
        for name, kind in kinds.items():
            if (value := getattr(self, name)) not in get_args(kind):
                raise InputError(f"{name} must be one of {', '.join(get_args(kind))}, got '{value}'")
        if self.form == "marginal" and self.ace_edges == "image":
            raise InputError(
                "ace_edges='image' are edges of top confidences, and form='marginal' bins each class by its own "
                "probability; use ace_edges='region' or another form"
            )
        object.__setattr__(self, "activation", activation_of(self.activation, self.num_classes))
        many = {1: "1 or 2"}.get(self.num_classes, str(self.num_classes))  # of a single channel, or of both its classes
        if self.class_names is not None and str(len({*self.class_names} - {""})) not in many.split(" or "):
            raise InputError(
                f"class_names must be {many} different names, got {list(self.class_names)}; correct or omit them"
            )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the protocol in a mapping that may hold more, such as `Results.settings`."""
        return cls(**{field.name: settings[field.name] for field in fields(cls) if field.name in settings})

    @classmethod
    def given(cls, protocol: Self | None, settings: ProtocolSettings) -> Self:
        """Return a protocol with some settings changed, or one that is made of settings alone."""
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in settings if name not in known]:
            hint = suggestion(unknown[0], known)
            raise TypeError(f"there is no setting '{unknown[0]}'; the settings are {', '.join(known)}{hint}")
        if protocol is not None:
            return replace(protocol, **settings)
        if "num_classes" not in settings:
            raise TypeError("num_classes is missing; give it, or a Protocol")
        return cls(**settings)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes or channels, or of both classes of a single channel; their numbers by default."""
        names = self.class_names or tuple(str(k) for k in range(max(2, self.num_classes)))
        return both_classes(names[0]) if len(names) == 1 else tuple(names)

    def drawing(self, cases: Sequence[str], groups: Sequence[str]) -> Drawing:
        """Return the bootstrap over cases or their groups."""
        return Drawing(cases, groups, self.interval, self.repetitions, self.seed)

    def labelled(self, case: StreamedCase) -> LabelledCase:
        """Return a case with its checked labels on the CPU, from which its regions are computed."""
        assert case.labels is not None  # or the stream would have raised
        return LabelledCase(case.case, case.labels.cpu(), self.background, self.boundary_width, self.boundary_ball)

    @property
    def patch_side(self) -> int:
        """Side of the *Local* patches: that given, or the paper's."""
        return PATCH_SIZE if self.patch_size is None else self.patch_size

    def boxes(self, case: LabelledCase, size: int | None = None) -> list[Box]:
        """Return the *Local* patches of a case, of side `patch_side` or another."""
        return local_patches(
            case.labels.shape[1:],
            name=case.case.name,
            size=self.patch_side if size is None else size,
            count=self.patches,
            margin=self.patch_margin,
            seed=self.seed,
        )


def majority_class(pixels: Array) -> int | None:
    """Return the class that has more than half of the pixels, by pixels of each class; None if there is none.

    Examples:
        >>> majority_class(np.array([6, 3, 2])), majority_class(np.array([5, 5]))
        (0, None)
    """
    total = int(pixels.sum())
    return int(np.argmax(pixels)) if total and 2 * pixels.max() > total else None


def background_note(label: int, name: str, fraction: float, found: str) -> str:
    """Return a sentence about a class that is probably the background.

    Args:
        label: The class.
        name: Its name.
        fraction: Fraction of the labelled pixels that it covers.
        found: What was found over all pixels, and then without this class.
    """
    return (
        f"class '{name}' covers {percent(fraction)} of the labelled pixels: {found} without this class (except near "
        f"boundaries); if it is the background, set background={label} (--background {label})"
    )
