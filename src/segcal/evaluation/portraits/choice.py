"""Choice of the cases to portray."""

from __future__ import annotations

from collections.abc import Sequence

from segcal.evaluation.results import Results
from segcal.types import InputError

_WORST = ("worst", "second worst", "third worst")


def choose_cases(results: Results, named: Sequence[str] = ()) -> dict[str, str]:
    """Return the cases to portray and why: those named, or the worst three, the median and the best.

    Cases are ranked by the Local-Max ECE of the baseline, or by its ECE in *All* where there are no patches.
    """
    frame, baseline = results.to_frame(), results.baseline
    known = list(dict.fromkeys(frame["case"]))
    if unknown := [name for name in named if name not in known]:
        raise InputError(f"cases must be among those measured, got '{unknown[0]}'; the first is '{known[0]}'")
    if named:
        return dict.fromkeys(named, "named")
    region = "local-max" if "local-max" in set(frame["region"]) else "all"
    rows = frame[(frame.method == baseline) & (frame.metric == "ece") & (frame.region == region)]
    ranked = rows.dropna(subset=["value"]).sort_values("value", ascending=False, kind="stable")["case"].tolist()
    if not ranked:
        return {}
    chosen = dict(zip(ranked, _WORST, strict=False))
    rest = {ranked[len(ranked) // 2]: "typical", ranked[-1]: "best"}
    return {**chosen, **{name: why for name, why in rest.items() if name not in chosen}}


def choose_patches(results: Results, case: str) -> list[int]:
    """Return the patches with the largest, the median and the smallest ECE of the baseline, of those with pixels."""
    patches = results.patches()
    if not len(patches):
        return []
    rows = patches[(patches.case == case) & (patches.method == results.baseline) & (patches.metric == "ece")]
    ranked = rows.dropna(subset=["value"]).sort_values("value", ascending=False, kind="stable")["patch"].tolist()
    return list(dict.fromkeys(int(ranked[k]) for k in (0, len(ranked) // 2, -1))) if ranked else []
