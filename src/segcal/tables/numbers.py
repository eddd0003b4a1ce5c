"""Numbers as text, with the unit and the digits that the catalogue gives a metric.

Terminal, LaTeX, Markdown, page and figures all use these functions, so the same number reads the same everywhere.
"""

from __future__ import annotations

import math

from segcal.functional.catalogue import metric_named

MISSING = "-"


def number(metric: str, value: float) -> str:
    """Write a value without its unit.

    Examples:
        >>> number("ece", 0.0123), number("nll", 0.338), number("ece", float("nan"))
        ('1.23', '0.3380', '-')
    """
    return MISSING if math.isnan(value) else metric_named(metric).number(value)


def with_unit(metric: str, value: float) -> str:
    """Write a value with its unit: `1.23 %`, `0.3380`."""
    return f"{number(metric, value)}{chr(0xA0) + '%' if metric_named(metric).percent else ''}"


def percent(fraction: float, digits: int = 0) -> str:
    r"""Write a fraction in percent.

    Examples:
        >>> percent(0.954), percent(-0.291, 1)
        ('95\xa0%', '-29.1\xa0%')
    """
    return f"{100 * fraction:.{digits}f}{chr(0xA0)}%"


def with_interval(metric: str, value: float, low: float, high: float, *, unit: bool = False) -> str:
    """Write a value and its interval, which is left out where it is not known.

    Examples:
        >>> with_interval("nll", 0.3, 0.25, 0.375)
        '0.3000 [0.2500, 0.3750]'
    """
    text = with_unit(metric, value) if unit else number(metric, value)
    if math.isnan(low) or math.isnan(high):
        return text
    return f"{text} [{number(metric, low)}, {number(metric, high)}]"


def threshold_number(value: float) -> str:
    """Write a threshold of probabilities so that one below 1 never reads as 1, which would accept nothing.

    Examples:
        >>> threshold_number(0.39062), threshold_number(0.99976), threshold_number(0.9999962), threshold_number(1.0)
        ('0.3906', '0.99976', '0.9999962', '1')
    """
    distance = 1 - value
    if not 0 < distance < 0.01:
        return f"{value:.4g}"
    return f"{value:.{1 - math.floor(math.log10(distance))}f}"


def volume_number(value: float) -> str:
    """Write a volume: large ones to the unit, since four digits may not tell an interval's ends from its middle.

    Examples:
        >>> volume_number(74269.8), volume_number(81.2949), volume_number(float("inf"))
        ('74,270', '81.29', 'inf')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"
