"""`python -m tests.campaign mutate`: change the code of the core in one place and see whether its tests notice.

Workers share the changes, each in a copy of the project. A seed determines the changes, whatever the number of workers.
Tests that fail without any change are left out, and named: they would notice anything.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.campaign.operators import Slip, slips
from tests.campaign.targets import EQUIVALENT, ROOT, TARGETS
from tests.campaign.testing import copy_project, import_heavy, outcome_of

SECONDS = 180.0
"""After which tests count as having noticed (or later, if they take long without a change): hanging is not missed."""

Change = tuple[str, Slip]


@dataclass
class Noticed:
    """What became of the changes.

    Args:
        counts: By module and "killed", "hung", "survived" or "equivalent".
        survivors: In words.
        left_out: Tests that fail without any change.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)
    left_out: tuple[str, ...] = ()


def mutate(seed: int, *, number: int | None, minutes: float | None, workers: int = 1) -> Noticed:
    """Try a random sample of all changes until there are enough or the time is over."""
    end = time.monotonic() + 60 * minutes if minutes is not None else None
    import_heavy(max(1, (os.cpu_count() or 1) // workers))
    chosen, found = changes(seed)[:number], Noticed()
    with (
        tempfile.TemporaryDirectory(prefix="segcal-mutate-") as folder,
        ProcessPoolExecutor(
            workers, multiprocessing.get_context("fork"), initializer=_make_copy, initargs=(Path(folder),)
        ) as pool,
    ):
        found.left_out, seconds = _baseline(pool, {module for module, _ in chosen})
        trials = {pool.submit(_try, change, found.left_out, seconds, end): k for k, change in enumerate(chosen)}
        survivors = {}
        for k, (module, slip), kind in _finished(trials, chosen):
            found.counts[module, kind] += 1
            if kind == "survived":
                survivors[k] = f"{module}, {slip}"
            print(f"{sum(found.counts.values())} {kind}: {module}, {slip}", file=sys.stderr, flush=True)
    found.survivors = [survivors[k] for k in sorted(survivors)]
    return found


def changes(seed: int) -> list[Change]:
    """Return all changes in the order in which they are tried."""
    every = [(module, slip) for module in TARGETS for slip in slips(_path(ROOT, module).read_text(encoding="utf-8"))]
    Random(seed).shuffle(every)
    print(f"{len(every):,} changes in {len(TARGETS)} modules", file=sys.stderr, flush=True)
    return every


def _finished(trials: dict[Future[str | None], int], chosen: Sequence[Change]) -> Iterator[tuple[int, Change, str]]:
    """Yield number, change and verdict as they come; those that there was no time for are skipped."""
    for trial in as_completed(trials):
        if (kind := trial.result()) is not None:
            yield trials[trial], chosen[trials[trial]], kind


def _baseline(pool: ProcessPoolExecutor, modules: set[str]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Run every file of tests without a change; return the tests that fail, and the seconds that each file takes."""
    files = sorted({file for module in modules for file in TARGETS[module]})
    found = dict(zip(files, pool.map(_run_unchanged, files), strict=True))
    left_out = tuple(name for names, _ in found.values() for name in names)
    for name in left_out:
        print(f"left out, as it fails without any change: {name}", file=sys.stderr, flush=True)
    if whole := [file for file in files if file in left_out]:
        raise SystemExit(f"the tests of {', '.join(whole)} cannot be run here")
    return left_out, {file: seconds for file, (_, seconds) in found.items()}


_copy = Path()
"""The copy of the project in which this worker tries changes."""


def _make_copy(folder: Path) -> None:
    global _copy  # noqa: PLW0603  (the state of a worker process)
    _copy = folder / str(os.getpid())
    _copy.mkdir()
    copy_project(_copy)


def _run_unchanged(file: str) -> tuple[tuple[str, ...], float]:
    outcome = outcome_of(_copy, [file], (), first=False, seconds=1800)
    if outcome.state == "hung" or (outcome.state == "failed" and not outcome.failed):
        raise SystemExit(f"{file} {outcome.state} without any change:\n{outcome.printed}")
    return outcome.failed, outcome.seconds


def _try(change: Change, left_out: Sequence[str], seconds: dict[str, float], end: float | None) -> str | None:
    """Return what became of one change; None if the time is over."""
    module, slip = change
    if (module, slip.text, slip.after) in EQUIVALENT:
        return "equivalent"
    if end is not None and time.monotonic() > end:
        return None
    path, files = _path(_copy, module), TARGETS[module]
    path.write_text(slip.source, encoding="utf-8")
    try:
        limit = max(SECONDS, 6 * sum(seconds[file] for file in files))
        outcome = outcome_of(_copy, files, left_out, first=True, seconds=limit)
    finally:
        shutil.copy2(_path(ROOT, module), path)
    return {"passed": "survived", "failed": "killed", "hung": "hung"}[outcome.state]


def _path(root: Path, module: str) -> Path:
    return root / "src" / "segcal" / f"{module}.py"
