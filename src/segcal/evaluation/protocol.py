"""The evaluation protocol (Sec. 4): everything that decides how calibration is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from segcal.cases import labels_of
from segcal.functional.binning import Form
from segcal.functional.checks import activation_of
from segcal.regions import PATCH_SIZE, Box, LabelledCase, local_patches
from segcal.statistics import IntervalKind
from segcal.types import LARGEST_SEED, MOST_BINS, MOST_CLASSES, Activation, Case, IgnoreIndex, InputError, check_whole

AceEdges = Literal["region", "image"]

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


@dataclass(frozen=True)
class Protocol:
    """The measuring keywords of `segcal.evaluate` and `segcal.compare`, checked; both functions document them.

    The defaults are those of the paper. A test keeps the two signatures and these fields the same.
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
        for name, value, known in (
            ("form", self.form, get_args(Form)),
            ("ace_edges", self.ace_edges, get_args(AceEdges)),
            ("interval", self.interval, get_args(IntervalKind)),
        ):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got '{value}'")
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

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes or channels, or of both classes of a single channel; their numbers by default."""
        names = self.class_names or tuple(str(k) for k in range(max(2, self.num_classes)))
        return (f"not {names[0]}", names[0]) if len(names) == 1 else tuple(names)

    def labelled(self, case: Case) -> LabelledCase:
        """Return a case with its checked labels, from which its regions are computed."""
        labels = labels_of(case, self.num_classes, self.ignore_index)
        return LabelledCase(case, labels, self.background, self.boundary_width, self.boundary_ball)

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
