"""The volume of each class with an interval that contains the true volume for a stated share of new images.

The expected volume is the sum of the probabilities. Its error is not that of independent pixels: neighbours are wrong
together, so an interval from the variance of single pixels would be far too short. The interval is a conformal one
instead (Vovk et al. 2005; Papadopoulos et al. 2008 for its scale): the error of each held-out image is divided by its
uncertain volume, and a new image's interval reaches as many uncertain volumes to either side as all but a share
`1 - level` of them need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from segcal.evaluation.decisions.counts import (
    CaseCounts,
    Counts,
    decided_classes,
    expected_volumes,
    volume_unit,
    voxel_size,
)
from segcal.evaluation.decisions.model import TABLES, Decisions
from segcal.evaluation.methods import Method, check_methods, heads_of
from segcal.functional.conformal import conformal_radius, fewest_units, left_out_radii
from segcal.statistics import clusters_of
from segcal.types import Array, Case, InputError

_LEAST = 1.0  # added to the uncertain volume, in pixels, so that an image without doubt still has a scale


def volume_tables(counts: Mapping[str, Sequence[Counts]], level: float) -> tuple[pd.DataFrame, ...]:
    """Return the radius of each method and class, and the interval of each case from all groups except its own."""
    radii, rows = [], []
    for method, own in ((method, own) for method, heads in counts.items() for own in heads):
        clusters = clusters_of([case.group for case in own.cases])
        for label, name in decided_classes(own.head).items():
            scores = np.array([_error(case, label) for case in own.cases])
            left_out = left_out_radii(scores, clusters, 1 - level)
            inside = scores <= left_out
            known = np.isfinite(left_out)
            radius = conformal_radius(scores, clusters, 1 - level)
            covered = float(inside[known].mean()) if known.any() else np.nan
            groups = len(np.unique(clusters))
            radii.append((method, name, level, radius, covered, len(scores), groups, fewest_units(1 - level)))
            for case, reach in zip(own.cases, left_out, strict=True):
                volumes = case.expected[label], case.uncertain[label], case.voxel
                rows.append((case.name, method, name, *_interval(*volumes, reach), case.support[label] * case.voxel))
    return TABLES["intervals"].frame(radii), TABLES["volumes"].frame(rows)


def new_volumes(cases: Iterable[Case], calibrators: Mapping[str, Method], decisions: Decisions) -> pd.DataFrame:
    """Return the volumes of new cases with intervals: columns `case method label expected low high unit`.

    Args:
        cases: Images from the same source as those that the decisions were learned from; labels are not needed.
        calibrators: The same methods by the same names.
        decisions: The result of `decide`.
    """
    if unknown := [name for name in calibrators if name not in decisions.methods]:
        raise InputError(f"the decisions were learned for {', '.join(decisions.methods)}, got '{unknown[0]}'")
    check_methods(calibrators, decisions.protocol)
    heads = heads_of(decisions.protocol)
    radius = decisions.intervals.set_index(["method", "label"])["radius"]
    rows = []
    for case in cases:
        for method, calibrator in calibrators.items():
            for head in heads:
                expected, uncertain = expected_volumes(head, case, calibrator)
                for label, name in decided_classes(head).items():
                    volumes = expected[label], uncertain[label], voxel_size(case)
                    interval = _interval(*volumes, float(radius[method, name]))
                    rows.append((case.name, method, name, *interval, volume_unit(case)))
    return pd.DataFrame(rows, columns=["case", "method", "label", "expected", "low", "high", "unit"])


def _error(case: CaseCounts, label: int) -> float:
    """Return the error of the expected volume, in uncertain volumes."""
    error = abs(case.support[label] - case.expected[label])
    return float(error / (case.uncertain[label] + _LEAST))


def _interval(expected: float, uncertain: float, voxel: float, radius: float) -> Array:
    """Return the expected volume and both ends of its interval, in units of the spacing."""
    reach = radius * (uncertain + _LEAST)
    return np.array([expected, max(0.0, expected - reach), expected + reach]) * voxel
