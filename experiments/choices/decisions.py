"""The bounds of `segcal decide` on real images: random halves, one to learn the rules and one to apply them to."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.beside_paper import lines
from experiments.command import given
from experiments.datasets.coarse import open_coarse
from experiments.datasets.voc import BACKGROUND, CLASSES, VOID
from segcal.evaluation.decisions.decide import CaseCounts, Counts
from segcal.evaluation.methods import heads_of, stream_for
from segcal.evaluation.protocol import Protocol
from segcal.functional.conformal import conformal_radius, controlled_index
from segcal.types import Array

SHOWN = ("background", "person", "car")
RISKS, LEVELS = (0.05, 0.1, 0.2), (0.8, 0.9)
DIVISIONS = 400


def measure(options: argparse.Namespace) -> pd.DataFrame:
    """Return a row for each class and rule: means over the divisions of VOC's images into two halves."""
    cases, random = _counted(given(options.voc, "--voc")), np.random.default_rng(0)
    orders = [random.permutation(len(cases)) for _ in range(DIVISIONS)]
    return pd.DataFrame([row for name in SHOWN for row in _rows(cases, orders, CLASSES.index(name))])


def table(rows: pd.DataFrame) -> str:
    """Return the table as Markdown."""
    found: Mapping[Any, Any] = rows.set_index(["class", "rule", "asked"]).to_dict(orient="index")
    head = ["class", "images with it", *(f"missed at risk {_percent(risk)}" for risk in RISKS)]
    body = []
    for name in rows["class"].unique():
        missed = [_missed(found[name, "risk", risk]) for risk in RISKS]
        inside = [_percent(found[name, "level", level]["mean"], 1) for level in LEVELS]
        body.append([name, str(found[name, "risk", RISKS[0]]["images"]), *missed, *inside])
    return lines([*head, *(f"inside {_percent(level)} intervals" for level in LEVELS)], body)


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _missed(row: Mapping[str, Any]) -> str:
    few = f" (too few in {_percent(row['few'])})" if row["few"] else ""
    return f"{_percent(row['mean'], 1)}{few}"


def _counted(root: Path) -> list[CaseCounts]:
    """Return the counts of every image, with the scores as they are."""
    protocol = Protocol(len(CLASSES), ignore_index=VOID, background=BACKGROUND)
    (head,) = heads_of(protocol)
    counts = Counts("UC", head)
    for case in open_coarse(root):
        counts.add(stream_for(protocol, case, [None])[0], None)
    return counts.cases


def _rows(cases: list[CaseCounts], orders: list[Array], label: int) -> Iterator[dict[str, Any]]:
    """Yield what the rules of one class reach: the share missed, and the share of volumes inside."""
    support = np.array([case.support[label] for case in cases])
    true = np.stack([case.true[[label]].toarray()[0] for case in cases])
    shares = true / support.clip(min=1)[:, np.newaxis]
    losses = np.minimum(np.cumsum(shares, axis=1) - shares, 1.0)  # the share missed at each threshold
    expected, uncertain = (
        np.array([getattr(case, name)[label] for case in cases]) for name in ("expected", "uncertain")
    )
    errors = np.abs(support - expected) / (uncertain + 1)
    about = {"class": CLASSES[label], "images": int((support > 0).sum()), "divisions": len(orders)}
    halves = [np.split(order, [len(order) // 2]) for order in orders]
    for risk in RISKS:
        missed, few = [], 0
        for fit, test in halves:
            own = [half[support[half] > 0] for half in (fit, test)]
            chosen = controlled_index(losses[own[0]], risk)
            few += chosen < 0
            missed.append(losses[own[1], max(0, chosen)].mean() if len(own[1]) else np.nan)
        yield {
            **about,
            "rule": "risk",
            "asked": risk,
            "mean": round(float(np.nanmean(missed)), 6),
            "few": few / len(halves),
        }
    for level in LEVELS:
        radii = [conformal_radius(errors[fit], np.arange(len(fit)), 1 - level) for fit, _ in halves]
        inside = [(errors[test] <= radius).mean() for (_, test), radius in zip(halves, radii, strict=True)]
        yield {**about, "rule": "level", "asked": level, "mean": round(float(np.mean(inside)), 6), "few": 0.0}
