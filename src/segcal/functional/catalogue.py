"""The catalogue of metrics: name, title, unit, direction and digits of each.

Tables, pages and figures take everything they show about a metric from here. `segcal.evidence.readings` has the
function that reads it from the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["%", "nats", "mm", ""]
Better = Literal["lower", "higher", "near zero", "neither"]
Section = Literal["calibration", "quality"]

SCORES = ("nll", "brier")
PARTS = ("calibration", "refinement", "resolution", "uncertainty")
"""Parts that NLL and Brier score are decomposed into (`segcal.evidence.readings`)."""


@dataclass(frozen=True)
class Metric:
    """Name, title, unit and direction of a metric.

    Attributes:
        name: Name in results, such as "ece".
        title: Name in tables and figures.
        unit: "%" for fractions that are shown in percent.
        better: Which values are better.
        section: Part of the paper's table in which it is shown: "calibration" in every region, "quality" in *All* only.
        pooled_only: Whether it is computed only over all pixels of all cases, because it is too noisy for one image.
        interval: Whether the bootstrap gives it an interval. ACE and smooth ECE have none: they depend on all pixels
            at once, which the evidence of single images does not hold.
    """

    name: str
    title: str
    unit: Unit
    better: Better = "lower"
    section: Section | None = None
    pooled_only: bool = False
    interval: bool = True

    @property
    def digits(self) -> int:
        """Digits shown after the decimal point."""
        return {"%": 2, "mm": 3}.get(self.unit, 4)

    @property
    def scale(self) -> int:
        """Factor from the value to the number shown."""
        return 100 if self.unit == "%" else 1

    @property
    def percent(self) -> bool:
        """True if it is shown in percent."""
        return self.unit == "%"

    @property
    def higher_is_better(self) -> bool:
        """True if larger values are better."""
        return self.better == "higher"

    @property
    def heading(self) -> str:
        """Title with unit and direction, as in the paper: `ECE(%)↓`."""
        arrow = {"lower": "↓", "higher": "↑"}.get(self.better, "")
        unit = f"({self.unit})" if self.unit in ("%", "mm") else ""
        return f"{self.title}{unit}{arrow}"

    def number(self, value: float) -> str:
        """The value as it is shown, without its unit.

        Examples:
            >>> CATALOGUE["ece"].number(0.12345), CATALOGUE["nll"].number(0.12345)
            ('12.35', '0.1235')
        """
        return f"{self.scale * value:.{self.digits}f}"


def _part(score: str, part: str) -> Metric:
    """A part of the decomposition of NLL or Brier score."""
    name, title = f"{score}-{part}", {"nll": "NLL", "brier": "Brier"}[score]
    better: dict[str, Better] = {"resolution": "higher", "uncertainty": "neither"}
    return Metric(
        name,
        f"{title} {part}",
        "nats" if score == "nll" else "",
        better.get(part, "lower"),
        pooled_only=True,
    )


_METRICS = (
    Metric("ece", "ECE", "%", section="calibration"),
    Metric("mce", "MCE", "%", section="calibration"),
    Metric("sce", "SCE", "%", section="calibration"),
    Metric("ace", "ACE", "%", section="calibration", interval=False),
    Metric("accuracy", "Accuracy", "%", "higher", "quality"),
    Metric("miou", "mIoU", "%", "higher", "quality"),
    Metric("nll", "NLL", "nats", section="quality"),
    Metric("brier", "Brier", "", section="quality"),
    Metric("entropy", "Entropy", "nats", "neither"),
    Metric("ece-debiased", "debiased ECE", "%", pooled_only=True),
    Metric("rms-debiased", "debiased RMS error", "%", pooled_only=True),
    *(_part(score, part) for score in SCORES for part in PARTS),
    Metric("ece-smooth", "smooth ECE", "%", pooled_only=True, interval=False),  # from the fine histogram
    Metric("volume-bias", "Volume bias", "%", better="near zero", pooled_only=True),  # from the volumes of the cases
)

CATALOGUE: Mapping[str, Metric] = {metric.name: metric for metric in _METRICS}
"""Every metric by name, in the order of tables."""

SURFACES: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("dice", "Dice", "%", better="higher"),
        Metric("surface-dice", "SD", "%", better="higher"),
        Metric("asd", "ASD", "mm"),
        Metric("md95", "95MD", "mm"),
        Metric("hd95", "HD95", "mm"),
        Metric("md", "MD", "mm"),
    )
}
"""Figures of segmentation quality (`segcal.functional.surfaces`), in the order of tables: Dice, surface Dice, and
average, 95 % (of both directions together, and of the larger one) and maximum surface distance."""


def metric_named(name: str) -> Metric:
    """Return a metric by its name; one of a user has its name as title, no unit and no known direction."""
    return CATALOGUE.get(name) or SURFACES.get(name) or Metric(name, name, "", "neither")


METRICS = tuple(metric.name for metric in _METRICS if not metric.pooled_only)
"""Metrics of every case, patch and region."""

POOLED_METRICS = tuple(metric.name for metric in _METRICS if metric.name != "volume-bias")
"""Metrics over all pixels of all cases."""

HIGHER_IS_BETTER = frozenset(metric.name for metric in _METRICS if metric.better == "higher")
CALIBRATION = tuple(metric.name for metric in _METRICS if metric.section == "calibration")
QUALITY = tuple(metric.name for metric in _METRICS if metric.section == "quality")
WITHOUT_INTERVAL = frozenset(metric.name for metric in _METRICS if not metric.interval)
