"""Files written case by case, in a folder that appears under its name when it is complete.

A run that was interrupted, or repeated, writes only the cases that are missing or have changed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from segcal.data.folders.folder import Folder
from segcal.engines.run import FinishedCases, Run, write_result
from segcal.files import MARKER, staged_folder, write_json
from segcal.files.guards import checksum, listed_files, marker_of, trust_checksum
from segcal.types import InputError
from segcal.version import __version__

_CASES = "written"
"""Key of the marker with the identity of the run and the files and counts of each case."""


class Output(Protocol):
    """Files that are written for each case."""

    kind: str
    """The key of the marker that says what the folder holds."""

    def identity(self) -> list[Any]:
        """Return everything that decides what is written except the files of the cases, as JSON can hold it."""

    def companions(self) -> Iterable[Path]:
        """Return files of the input that belong beside the output as they are."""

    def write(self, name: str, folder: Path) -> dict[str, int]:
        """Write the files of a case to a folder, and return counts that are added up over the cases."""


def write_cases(output: Output, folder: Folder, run: Run) -> dict[str, int] | None:
    """Write the output of all cases, and publish it when it is complete.

    Returns:
        The number of cases and the sums of their counts; None where another process publishes the output.
    """
    identities = folder.identities()
    run.begin(output.identity(), list(identities))
    assert run.out is not None
    assert run.finished is not None
    if run.engine.is_first:
        _take_over(output, run.finished, run.out, identities)
    counts = [json.loads(result) for result in run.map(partial(_written, output), identities)]
    if not run.engine.is_first:
        return None
    return _publish(output, run.finished, run.out, identities, counts)


def _written(output: Output, name: str, place: Path | None) -> bytes:
    assert place is not None
    return json.dumps(output.write(name, place)).encode()


def _take_over(output: Output, finished: FinishedCases, out: Path, identities: Mapping[str, str]) -> None:
    """Take over from an earlier output the cases that have not changed since, nor have their files."""
    listed, written = listed_files(out), marker_of(out).get(_CASES)
    if listed is None or written is None or written["identity"] != output.identity():
        return
    for name, about in written["cases"].items():
        same = about["identity"] == identities.get(name)
        whole = same and all(checksum(out / file) == listed[file] for file in about["files"])
        if whole and finished.result(name, about["identity"]) is None:
            with finished.working_on(name, about["identity"]) as place:
                for file in about["files"]:
                    _link(out / file, place / file, listed[file])
                write_result(place, json.dumps(about["counts"]).encode())


def _publish(
    output: Output, finished: FinishedCases, out: Path, identities: Mapping[str, str], counts: Sequence[dict[str, int]]
) -> dict[str, int]:
    """Give the files of all cases a second name in the new output, and write its marker."""
    total = {key: sum(count[key] for count in counts) for key in (counts[0] if counts else {})}
    summary = {"cases": len(identities), **total}
    cases = {}
    with staged_folder(out) as staging:
        for (name, identity), count in zip(identities.items(), counts, strict=True):
            files = finished.files(name)
            for file, digest in files.items():
                _link(finished.place(name) / file, staging / file, digest)
            cases[name] = {"identity": identity, "files": list(files), "counts": count}
        for path in output.companions():
            _copy(path, staging)
        about = {"format": 1, "segcal": __version__, output.kind: summary}
        write_json(staging / MARKER, {**about, _CASES: {"identity": output.identity(), "cases": cases}})
    return summary


def _copy(file: Path, folder: Path) -> None:
    try:
        shutil.copyfile(file, folder / file.name)
    except FileNotFoundError as error:
        raise InputError(f"'{file}' must stay until its output is complete, but it is gone; restore it") from error


def _link(source: Path, target: Path, digest: str) -> None:
    """Give a file with a known checksum a second name; copy it where the file system has only one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    trust_checksum(target, digest)
