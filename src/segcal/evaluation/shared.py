"""An evaluation that is shared between processes, or continued after an interruption.

Processes keep what they find on their cases in a journal (see `segcal.parts`), and one of them merges it. Nothing that
is merged depends on how the cases were divided, so the results are the same bits as those of one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

from safetensors import safe_open

from segcal.calibrators import Calibrator
from segcal.data.folders.folder import Folder
from segcal.evaluation.findings import Findings, merged
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.evaluation.run import Measuring, with_limits
from segcal.functional.checks import ignored_labels
from segcal.parts.journal import Journal
from segcal.parts.outputs import Track
from segcal.parts.work import Sharing, check_complete, check_same_run, gathered, meet, unfinished

_ENDING = ".safetensors"
_INTERVAL = 30.0
"""Seconds after which findings are written to the journal; what was found since is lost in an interruption."""


def evaluate_folder(
    folder: Folder,
    calibrators: Mapping[str, Calibrator | None],
    protocol: Protocol,
    sharing: Sharing,
    *,
    track: Track = iter,
) -> Results | None:
    """Measure the cases of a folder, or merge what was measured in parts; None where another process has the results.

    Args:
        folder: The cases.
        calibrators: Fitted calibrators by their name in the tables; None stands for the uncalibrated scores.
        protocol: How calibration is measured.
        sharing: How the work is divided and kept.
        track: Goes through cases, perhaps with a progress bar.
    """
    measuring = Measuring.of_cases(folder, calibrators, protocol)
    found = measure_shared(measuring, folder, sharing, track)
    if found is None:
        return None
    return with_limits(measuring.results(found, folder.names), folder, measuring.protocol)


def identity_of_measuring(measuring: Measuring, folder: Folder) -> list[Any]:
    """Return everything that decides the numbers except the files of the cases, in values that JSON can hold."""
    settings = {**vars(measuring.protocol), "ignore_index": ignored_labels(measuring.protocol.ignore_index)}
    kept = {name: method for name, method in measuring.calibrators.items() if isinstance(method, Calibrator)}
    methods = {name: kept[name].identity() if name in kept else None for name in measuring.calibrators}
    return [settings, methods, list(measuring.regions), list(folder.names)]


def measure_shared(measuring: Measuring, folder: Folder, sharing: Sharing, track: Track) -> Findings | None:
    """Return what was found on all cases, or None where another process has it."""
    run = sharing.run(*identity_of_measuring(measuring, folder))
    if sharing.parts:
        check_same_run(run, sharing.parts)
        return merge_journals(measuring, folder, sharing.parts)
    with unfinished(sharing, run) if sharing.out is not None else nullcontext() as kept:
        return measure_into(kept, measuring, folder, sharing, track)


def measure_into(
    kept: Path | None, measuring: Measuring, folder: Folder, sharing: Sharing, track: Track
) -> Findings | None:
    """Measure the cases of this process, keep what is found in a folder if there is one, and merge it with the rest."""
    part = sharing.own
    own = part.of(folder.names)
    if kept is None:
        (found,) = _measured(measuring, folder.subset(own), track, interval=None)
        if part.count == 1:
            return found
        every = gathered(found.to_bytes({}))
        return merged(map(findings_from, every), measuring.nothing()) if part.index == 1 else None
    journal, identities = Journal(kept), folder.identities()
    done = {name for names in _usable([kept], identities).values() for name in names}
    todo = folder.subset(name for name in own if name not in done)
    for found in _measured(measuring, todo, track, interval=_INTERVAL):
        seen = {name: identities[name] for name in found.cases}
        journal.add(found.to_bytes({"identities": seen}), _ENDING, len(seen))
        del found  # its tables take hundreds of megabytes, and those of the journal come next
    meet()
    return merge_journals(measuring, folder, [kept]) if part.index == 1 and sharing.part is None else None


def _measured(measuring: Measuring, folder: Folder, track: Track, *, interval: float | None) -> Iterator[Findings]:
    """Measure cases and yield what was found, every so many seconds; all at the end where there is no interval."""
    found, started = measuring.nothing(), monotonic()
    for case in track(folder) if len(folder) else ():
        measuring.add(case, found)
        if interval is not None and monotonic() - started > interval:
            yield found
            found, started = measuring.nothing(), monotonic()
    if found.cases or interval is None:
        yield found


def merge_journals(measuring: Measuring, folder: Folder, places: Sequence[Path]) -> Findings:
    """Return the findings of all parts together; raise unless every case is there."""
    usable = _usable(places, folder.identities())
    check_complete(folder.names, {name for names in usable.values() for name in names})
    return merged((findings_from(path.read_bytes()) for path in usable), measuring.nothing())


def _usable(places: Sequence[Path], identities: Mapping[str, str]) -> dict[Path, list[str]]:
    """Return files of findings and the names of their cases, which are all in the folder, unchanged, and there once."""
    usable, finished = dict[Path, list[str]](), set[str]()
    for path in (path for place in places for path in Journal(place).files(_ENDING)):
        with safe_open(path, "numpy") as file:
            seen = json.loads(file.metadata()["extra"])["identities"]
        unchanged = all(identities.get(name) == identity for name, identity in seen.items())
        if unchanged and finished.isdisjoint(seen):  # two processes may have measured the same case
            usable[path] = list(seen)
            finished.update(seen)
    return usable


def findings_from(content: bytes) -> Findings:
    """Read findings from a safetensors file, whose metadata begin it: 8 bytes of length, then JSON."""
    length = int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
    return Findings.from_bytes(content, about)
