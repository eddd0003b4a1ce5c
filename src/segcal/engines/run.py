"""A run: the work of one command, divided by an engine, and kept in `OUT.unfinished` until the output is complete.

The unfinished folder has a marker that says what the run is made of, so that nothing of another run is ever mixed in.
A finished case is a folder that appears when its files are on disk and lists their checksums. It counts only as long as
neither its input nor what was written (truncated, zeroed, emptied) has changed.

Files written case by case (`write_cases`) appear in the folder of the output when all are there; a run that is repeated
writes only the cases that are missing or have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from segcal.data.folders.folder import Folder
from segcal.engines.engine import Engine, Track
from segcal.files.guards import MARKER, checksums, listed_files, marker_of, refuse_foreign, trust_checksum
from segcal.files.outputs import exclusive, remove_folder, replacing, staged_folder
from segcal.files.reading import LIST, TEXT, WHOLE, list_of, problem, record, table_of, write_json
from segcal.text import CalibrationWarning, counted
from segcal.types import InputError
from segcal.version import __version__

_WORK = re.compile(r"\.?(case|fit)-[0-9a-f]{32}(\..*)?")
"""Name of a folder with finished work, or of what a killed process left of one."""
_RESULT = "result"
_CASES = "written"
"""Key of the marker of an output with the identity of the run and the files and counts of each case."""
_COUNTS = table_of(WHOLE)
_SCHEMA = record(
    {
        "identity": LIST,
        "cases": table_of(record({"identity": TEXT, "files": list_of(TEXT), "counts": _COUNTS})),
    }
)

Work = Callable[[str, Path | None], bytes]
"""Computes the result of the case with a name, and writes its files, if it has any, to a folder."""


@dataclass(frozen=True)
class FinishedCases:
    """Finished cases, or other finished work with a name, in the unfinished output: a folder each.

    Attributes:
        folder: The unfinished output.
        kind: "case" or "fit".
    """

    folder: Path
    kind: str = "case"

    def place(self, name: str) -> Path:
        """Return the folder of a case, whose own name no name of a case makes too long."""
        return self.folder / f"{self.kind}-{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"

    @contextmanager
    def working_on(self, name: str, identity: str) -> Iterator[Path]:
        """Yield a folder for the files of a case, which is finished when the block ends.

        Args:
            name: The case.
            identity: What changes when the input of the case does.
        """
        with staged_folder(self.place(name)) as staging:
            yield staging
            write_json(staging / MARKER, {"format": 1, "case": name, "identity": identity})

    def result(self, name: str, identity: str) -> bytes | None:
        """Return the result of a case that is finished; None if it is not, or its input has changed since.

        What is damaged is reported and removed.
        """
        place = self.place(name)
        if not place.exists():
            return None
        if listed_files(place) != checksums(place):
            text = f"the finished work on '{name}' in '{self.folder}' is damaged, and is done again"
            warnings.warn(text, CalibrationWarning, stacklevel=2)
            remove_folder(place)
            return None
        return (place / _RESULT).read_bytes() if marker_of(place).get("identity") == identity else None

    def files(self, name: str) -> dict[str, str]:
        """Return the files of a finished case and their checksums."""
        listed = listed_files(self.place(name)) or {}
        return {file: digest for file, digest in listed.items() if file != _RESULT}

    def count(self) -> int:
        """Return how many cases are finished."""
        return len(list(self.folder.glob(f"{self.kind}-*")))


def write_result(folder: Path, result: bytes) -> None:
    """Write the result of a case to its folder."""
    (folder / _RESULT).write_bytes(result)


class Run:
    """The work of one command on all cases; use it in a `with` statement that ends when the output is published.

    Args:
        command: Name of the command.
        out: Where the output will be; None to keep nothing.
        engine: How the cases are mapped.
        track: Goes through cases, perhaps with a progress bar.
    """

    def __init__(
        self, command: str, out: Path | None = None, engine: Engine | None = None, track: Track = iter
    ) -> None:
        self.command, self.out, self.engine, self.track = command, out, engine or Engine(), track
        self.finished: FinishedCases | None = None
        self.fits: FinishedCases | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self.finished is None or self.fits is None or not self.engine.is_first:
                return
            folder, counts = self.finished.folder, {"finished case": self.finished.count(), "fit": self.fits.count()}
            if error is None or not any(counts.values()):
                _discard(folder)
                return
            named = " and ".join(counted(n, what) for what, n in counts.items() if n)
            are, here = "are" if sum(counts.values()) > 1 else "is", Path.cwd()
            place = folder.relative_to(here) if folder.is_relative_to(here) else folder
            error.add_note(f"{named} {are} kept in '{place}', and the same command continues from there")

    def begin(self, *content: Any) -> None:
        """Make the folder in which the run is kept, or find it there.

        Args:
            content: Everything that decides the output except the files of the cases, as JSON can hold it.
        """
        if self.out is None:
            return
        target = self.out.resolve()
        folder = target.with_name(f"{target.name}.unfinished")
        if self.engine.is_first:
            self._stack.enter_context(exclusive(folder, "folder"))
            _prepare(folder, self.command, _identity(__version__, self.command, content))
        self.engine.share(lambda: None)
        self.finished, self.fits = FinishedCases(folder), FinishedCases(folder, "fit")

    def map(self, work: Work, identities: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the result of every case in order, on the first process; what is finished is not done again.

        Args:
            work: Computes the result of a case.
            identities: What changes when the input of a case does, by the name of the case.
        """
        names, finished, done = list(identities), self.finished, set[str]()
        if finished is not None:
            done = self.engine.share(
                lambda: {name for name in names if finished.result(name, identities[name]) is not None}
            )
        step, left = _Step(work, finished, identities), [name for name in names if name not in done]
        new = step.map(left, self.track) if self.engine.is_alone else self.engine.map(step, left, track=self.track)
        if not self.engine.is_first:
            yield from new
            return
        for name in names:
            result = next(new) if finished is None or name not in done else finished.result(name, identities[name])
            if result is None:
                raise InputError(f"the finished work on '{name}' changed during the run; run the command again")
            yield result
        yield from new  # nothing, but the last case is recorded


@dataclass(frozen=True)
class _Step:
    """The work on one case, recorded when it is finished."""

    work: Work
    finished: FinishedCases | None
    identities: Mapping[str, str]

    def __call__(self, name: str) -> bytes:
        (result,) = self.map([name])
        return result

    def map(self, names: Sequence[str], track: Track = iter) -> Iterator[bytes]:
        """Yield the result of every case in order; a case is synchronised and recorded while the next is computed."""
        before: Future[None] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="segcal-record") as pool:
            for name in track(names) if names else ():
                with ExitStack() as stack:
                    place = None
                    if self.finished is not None:
                        place = stack.enter_context(self.finished.working_on(name, self.identities[name]))
                    result = self.work(name, place)
                    if place is not None:
                        write_result(place, result)
                    if before is not None:
                        before.result()
                    before = pool.submit(stack.pop_all().close)
                yield result
        if before is not None:
            before.result()


def _prepare(folder: Path, command: str, identity: str) -> None:
    """Make an unfinished folder, or keep the one that is there if it belongs to the same run.

    Work of the same command on other data or with other options is replaced; work of another command, which can still
    be completed, is refused.
    """
    if folder.is_symlink():
        raise InputError(f"'{folder}' is a link, and unfinished output is to be kept there; remove it")
    refuse_foreign(folder, "unfinished")
    about = marker_of(folder).get("unfinished")
    known = about if isinstance(about, dict) else {}
    if folder.exists() and any(folder.iterdir()):
        if strangers := _contents(folder)[1]:
            name = strangers[0].name
            raise InputError(f"'{folder}' holds '{name}', which segcal did not write; move it elsewhere")
        if known.get("command") != command:
            raise InputError(
                f"'{folder}' holds unfinished output of `segcal {known.get('command')}`; run that command again to "
                "complete it, delete the folder, or choose another output"
            )
        if known.get("identity") == identity:
            return
        _discard(folder)
    with replacing(folder) as staging:
        write_json(staging / MARKER, {"format": 1, "unfinished": {"command": command, "identity": identity}})


def _discard(folder: Path) -> None:
    """Remove the unfinished folder of a run, except for what a user has put there."""
    work, strangers = _contents(folder)
    for place in work if strangers else [folder]:
        remove_folder(place)


def _contents(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the finished work in an unfinished folder, and what segcal did not write."""
    found = sorted(path for path in folder.iterdir() if path.name != MARKER or path.is_symlink())
    work = [path for path in found if _WORK.fullmatch(path.name)]
    return work, [path for path in found if path not in work]


def _identity(*content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=str)  # paths
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_cases(
    folder: Folder,
    run: Run,
    kind: str,
    identity: list[Any],
    write: Callable[[str, Path], dict[str, int]],
    companions: Iterable[Path] = (),
) -> dict[str, int] | None:
    """Write the files of all cases, and publish them when they are complete.

    Args:
        folder: The cases.
        run: How the work is divided and kept.
        kind: The key of the marker that says what the output holds.
        identity: Everything that decides what is written except the files of the cases, as JSON can hold it.
        write: Writes the files of the case with a name to a folder, and returns counts.
        companions: Files of the input that belong beside the output as they are.

    Returns:
        The number of cases and the sums of their counts; None where another process publishes the output.
    """
    identities = folder.identities()
    run.begin(identity, list(identities))
    assert run.out is not None
    assert run.finished is not None
    if run.engine.is_first:
        _take_over(run.finished, run.out, identity, identities)
    counts = [json.loads(result) for result in run.map(partial(_counted, write), identities)]
    if not run.engine.is_first:
        return None
    total = {key: sum(count[key] for count in counts) for key in (counts[0] if counts else {})}
    summary, cases = {"cases": len(identities), **total}, {}
    with staged_folder(run.out) as staging:  # the files of all cases get a second name in it
        for (name, own), count in zip(identities.items(), counts, strict=True):
            files = run.finished.files(name)
            for file, digest in files.items():
                _link(run.finished.place(name) / file, staging / file, digest)
            cases[name] = {"identity": own, "files": list(files), "counts": count}
        for path in companions:
            _copy(path, staging)
        about = {"format": 1, "segcal": __version__, kind: summary}
        write_json(staging / MARKER, {**about, _CASES: {"identity": identity, "cases": cases}})
    return summary


def _counted(write: Callable[[str, Path], dict[str, int]], name: str, place: Path | None) -> bytes:
    assert place is not None
    return json.dumps(write(name, place)).encode()


def _take_over(finished: FinishedCases, out: Path, identity: list[Any], identities: Mapping[str, str]) -> None:
    """Take over from an earlier output the cases that have not changed since, nor have their files."""
    listed, written, found = listed_files(out), marker_of(out).get(_CASES), checksums(out)
    if listed is None or written is None or problem(written, _SCHEMA) or written["identity"] != identity:
        return
    for name, about in written["cases"].items():
        same = about["identity"] == identities.get(name)
        # only what lies in the folder, whatever the marker lists
        whole = same and all(found.get(file) == listed.get(file, "") for file in about["files"])
        if whole and finished.result(name, about["identity"]) is None:
            with finished.working_on(name, about["identity"]) as place:
                for file in about["files"]:
                    _link(out / file, place / file, listed[file])
                write_result(place, json.dumps(about["counts"]).encode())


def _copy(file: Path, folder: Path) -> None:
    try:
        shutil.copyfile(file, folder / file.name)
    except FileNotFoundError as error:
        raise InputError(f"'{file}' must stay until its output is complete, but it is gone; restore it") from error


def _link(source: Path, target: Path, digest: str) -> None:
    """Give a file with a known checksum a second name; copy it where the file system has only one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        raise InputError(
            f"the file system of the output takes '{target.name}' for the name of another file; rename one of the "
            "two cases, or choose another output"
        )
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    trust_checksum(target, digest)
