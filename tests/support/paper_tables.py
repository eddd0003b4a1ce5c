"""A paper table of random numbers."""

from __future__ import annotations

import numpy as np

from segcal.tables import PaperTable, Presentation, paper_table

CALIBRATION = ("ece", "mce", "sce", "ace")
QUALITY = ("accuracy", "miou", "nll", "brier")
REGIONS = ("all", "boundary", "local-avg", "local-max")


def build(
    methods: tuple[str, ...] = ("UC", "LTS"), regions: tuple[str, ...] = REGIONS, floor: bool = False
) -> PaperTable:
    random = np.random.default_rng(0)
    columns = [*((m, r) for m in CALIBRATION for r in regions), *((m, "all") for m in QUALITY)]
    samples = {(m, *c): random.random(9) / (1 + 9 * k) for k, m in enumerate(methods) for c in columns}
    shown = Presentation(methods[-1], "wilcoxon")
    return paper_table(samples, methods, shown, floors=samples if floor else None)
