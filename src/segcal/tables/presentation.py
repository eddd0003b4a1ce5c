"""One choice of reference, test and average, which terminal, tables, page and figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from segcal.statistics import TESTS, Test
from segcal.types import InputError

Average = Literal["images", "pixels"]


@dataclass(frozen=True)
class Presentation:
    """Presentation of results.

    Attributes:
        reference: The method that the others are tested against; None for no test.
        test: "wilcoxon", which compares the methods image by image, or group by group where there are groups; or
            "paper" for the Mann-Whitney U test over images (Local-Avg: patches), which ignores the pairs.
        average: "images" for the mean over images, as in the paper; "pixels" for all pixels together. Local patches
            are always averaged over patches (Local-Avg) and images (Local-Max).
    """

    reference: str | None = None
    test: Test = "wilcoxon"
    average: Average = "images"

    def __post_init__(self) -> None:
        for name, value, known in (("test", self.test, tuple(TESTS)), ("average", self.average, get_args(Average))):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got '{value}'")

    @classmethod
    def saved_in(cls, settings: Mapping[str, Any]) -> Presentation:
        """The choice saved with results; the default for results without one."""
        return cls(**settings.get("presentation", {}))

    def with_changes(
        self, reference: str | None = None, test: str | None = None, average: str | None = None
    ) -> Presentation:
        """The same choice except for what is given."""
        changes = {"reference": reference, "test": test, "average": average}
        return replace(self, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]

    def checked(self, methods: Sequence[str]) -> Presentation:
        """Return the same choice with the reference spelled as among the methods; raise unless it is one of them."""
        return self if self.reference is None else replace(self, reference=named_method(self.reference, methods))

    def test_sentence(self) -> str:
        """Name the test and the correction for many comparisons."""
        over = "images or groups" if TESTS[self.test].paired else "images, Local-Avg: patches"
        return f"{TESTS[self.test].title} over {over}, Benjamini-Hochberg at 0.05"

    def average_sentence(self, spread: str = "mean(std)") -> str:
        """Say what the numbers of a table are averages over."""
        if self.average == "images":
            return f"{spread} over images, Local-Avg over patches"
        return (
            f"all pixels together with 95 % bootstrap interval; Local-Avg: {spread} over patches, "
            f"Local-Max: {spread} over images"
        )


def named_method(name: str, methods: Sequence[str], what: str = "reference") -> str:
    """Return the method of this name; in any case, unless several differ in nothing else.

    Examples:
        >>> named_method("lts", ["UC", "LTS"])
        'LTS'
    """
    alike = [method for method in methods if method.casefold() == name.casefold()]
    if name in alike:
        return name
    if len(alike) != 1:
        raise InputError(f"{what} must be one of {', '.join(alike or methods)}, got '{name}'")
    return alike[0]
