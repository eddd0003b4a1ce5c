"""Stage `register`: every atlas of each fold to all other volumes of the fold."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from experiments.multi_atlas.presets import Preset
from experiments.multi_atlas.volumes import prepared_folds, reader
from segcal.files import staged_file, write_json
from segcal.fusion.registration import RegistrationOutcome, register_pairs

WARPS, REPORT = "warps", "registration.json"
_EVERY = 50


def register_all(out: Path, preset: Preset, *, processes: int) -> None:
    """Register what is not registered yet, and report the failures."""
    pairs = [pair for fold in prepared_folds(out, preset) for pair in fold.all_pairs]
    started = perf_counter()

    def watch(outcome: RegistrationOutcome, done: int, count: int) -> None:
        if done % _EVERY == 0 or done == count:
            print(f"registered {done} of {count} pairs in {perf_counter() - started:.0f} s", flush=True)
        if outcome.problem:
            print(f"  failed: {_failure(outcome)}", flush=True)

    outcomes = register_pairs(pairs, reader(out), out / WARPS, preset.registration, processes=processes, watch=watch)
    failed = [_failure(outcome) for outcome in outcomes if outcome.problem]
    figures = np.array([outcome.quality for outcome in outcomes if outcome.quality is not None])
    means = dict(zip(("centred", "affine", "deformable", "folding"), figures.mean(axis=0).tolist(), strict=True))
    with staged_file(out / REPORT) as file:
        write_json(file, {"pairs": len(pairs), "failed": failed, "mean": means})
    print(f"{len(pairs)} pairs, {len(failed)} failed; mean similarity {means}")


def _failure(outcome: RegistrationOutcome) -> str:
    return f"{outcome.pair.atlas} to {outcome.pair.target}: {outcome.problem}"
