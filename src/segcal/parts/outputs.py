"""Files written case by case by one process or several, in a folder that appears under its name when it is complete.

Each finished case is noted with the identity of its files, so that a run that was interrupted, or repeated, writes only
what is missing or has changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from segcal.data.folders.folder import Folder
from segcal.files import MARKER, discard_unfinished, read_json, remove_leftovers, staged_folder, write_json
from segcal.files.prefetch import prefetch
from segcal.parts.journal import Journal
from segcal.parts.work import Sharing, check_complete, check_same_run, meet, unfinished
from segcal.types import Case, InputError
from segcal.version import __version__

Track = Callable[[Folder], Iterable[Case]]
"""Goes through the cases of a folder, perhaps with a progress bar."""

Note = Mapping[str, Any]
_WRITTEN = "written"


class Piece(Protocol):
    """A part of what is written for a case."""

    @property
    def last(self) -> bool:
        """Whether it is the last of its case."""


P = TypeVar("P", bound=Piece)


class Output(Protocol[P]):
    """What is written for each case."""

    kind: str
    """The key of the marker that says what the folder holds."""

    def identity(self) -> list[Any]:
        """Return everything that decides what is written except the files of the cases, as JSON can hold it."""

    def files(self, name: str, folder: Path) -> list[Path]:
        """Return the files of a case."""

    def companions(self) -> Iterable[Path]:
        """Return files of the input that belong beside the output as they are."""

    def pieces(self, case: Case) -> Iterator[P]:
        """Yield everything that is written for a case, at least one piece; called by a thread, one piece ahead."""

    def write(self, case: Case, pieces: Iterator[P], folder: Path) -> dict[str, int]:
        """Write the files of a case, and return counts that are added up over the cases."""


def write_cases(output: Output[P], folder: Folder, sharing: Sharing, *, track: Track = iter) -> dict[str, int] | None:
    """Write the output of all cases, or of a part of them, or join the output of parts.

    Returns:
        The number of cases and the sums of their counts; None where another process publishes the output.
    """
    assert sharing.out is not None
    run = sharing.run(output.identity(), list(folder.names))
    if sharing.parts:
        check_same_run(run, sharing.parts)
        return _join(output, folder, sharing.parts, sharing.out)
    part, identities = sharing.own, folder.identities()
    with unfinished(sharing, run) as kept:
        journal = Journal(kept)
        if part.index == 1 and sharing.part is None:
            remove_leftovers(kept)
            _reuse(output, journal, sharing.out, identities)
        meet()
        done, own = _finished(output, journal, identities), part.of(folder.names)
        todo = folder.subset(name for name in own if name not in done)
        # the next piece, also of the next case, is computed while this one is written
        with closing(prefetch(_pieces(output, track(todo) if len(todo) else ()))) as pieces:
            for case, first in pieces:
                with _removing_parts(output, case.name, kept):
                    counts = output.write(case, _until_last(first, pieces), kept)
                    note = {"identity": identities[case.name], **counts}
                    journal.note(case.name, {**note, "bytes": _sizes(output, case.name, kept)})
        meet()
        if sharing.part is not None:
            notes = _finished(output, journal, identities)
            return _summary([notes[name] for name in own])
        if part.index > 1:
            return None
        summary = _join(output, folder, [kept], sharing.out)
        discard_unfinished(kept)
    return summary


def _pieces(output: Output[P], cases: Iterable[Case]) -> Iterator[tuple[Case, P]]:
    for case in cases:
        for piece in output.pieces(case):
            yield case, piece
            del piece  # before the next one is computed


def _until_last(piece: P, more: Iterator[tuple[Case, P]]) -> Iterator[P]:
    """Yield the pieces of a case; what belongs to the next case, or failed there, is not looked at."""
    while True:
        last = piece.last
        yield piece
        if last:
            return
        del piece
        _, piece = next(more)


@contextmanager
def _removing_parts(output: Output[Any], name: str, folder: Path) -> Iterator[None]:
    """Remove the files of a case if not all of them could be written, so that only finished cases are kept."""
    try:
        yield
    except BaseException:
        for path in output.files(name, folder):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        raise


def _finished(output: Output[Any], journal: Journal, identities: Mapping[str, str]) -> dict[str, Note]:
    """Return the notes of the cases whose output is whole and whose files have not changed since.

    Sizes are compared because a power failure may keep a note and lose the end of a file.
    """
    return {
        name: note
        for name, note in journal.notes().items()
        if note["identity"] == identities.get(name) and note["bytes"] == _sizes(output, name, journal.folder)
    }


def _sizes(output: Output[Any], name: str, folder: Path) -> list[int]:
    """Return the sizes of the files of a case; -1 for one that is missing."""
    return [_size(path) for path in output.files(name, folder)]


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.exists() else -1


def _reuse(output: Output[Any], journal: Journal, out: Path, identities: Mapping[str, str]) -> None:
    """Take over what an earlier run has written to `out` of cases that have not changed since."""
    try:
        written = read_json(out / MARKER)[_WRITTEN]
        notes = written["cases"] if written["identity"] == output.identity() else {}
    except (InputError, KeyError, TypeError):
        return
    present = journal.notes()
    for name, note in notes.items():
        unchanged = note["identity"] == identities.get(name) and note["bytes"] == _sizes(output, name, out)
        if unchanged and name not in present:
            _take(output, name, out, journal.folder)
            journal.note(name, note)


def _join(output: Output[Any], folder: Folder, parts: Sequence[Path], out: Path) -> dict[str, int]:
    """Publish the files that parts have written; the parts remain, so that a process killed meanwhile loses nothing."""
    identities = folder.identities()
    finished = {
        name: (path, note) for path in parts for name, note in _finished(output, Journal(path), identities).items()
    }
    check_complete(folder.names, finished)
    with staged_folder(out) as staging:
        for name in folder.names:
            _take(output, name, finished[name][0], staging)
        _copy(output.companions(), staging)
        return _complete(output, staging, {name: finished[name][1] for name in folder.names})


def _take(output: Output[Any], name: str, source: Path, target: Path) -> None:
    """Give the files of a case a second name in another folder; copy them where the file system has only one."""
    for old, new in zip(output.files(name, source), output.files(name, target), strict=True):
        new.parent.mkdir(parents=True, exist_ok=True)  # maps of several channels lie two folders deep
        if old.is_dir():
            shutil.rmtree(new, ignore_errors=True)
            shutil.copytree(old, new, copy_function=_link)
        else:
            new.unlink(missing_ok=True)
            _link(old, new)


def _copy(files: Iterable[Path], target: Path) -> None:
    for file in files:
        try:
            shutil.copyfile(file, target / file.name)
        except FileNotFoundError as error:
            raise InputError(f"'{file}' must stay until its output is complete, but it is gone; restore it") from error


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _complete(output: Output[Any], folder: Path, notes: Mapping[str, Note]) -> dict[str, int]:
    """Write the marker of a finished output, and return its counts."""
    cases = {name: {key: value for key, value in note.items() if key != "case"} for name, note in notes.items()}
    summary = _summary(list(cases.values()))
    about = {"format": 1, "segcal": __version__, output.kind: summary}
    write_json(folder / MARKER, {**about, _WRITTEN: {"identity": output.identity(), "cases": cases}})
    return summary


def _summary(notes: Sequence[Note]) -> dict[str, int]:
    counts = [key for key in (notes[0] if notes else {}) if key not in ("case", "identity", "bytes")]
    return {"cases": len(notes), **{key: sum(note[key] for note in notes) for key in counts}}
