"""How a run is divided, and the folder in which it is kept until it is complete.

Every process works on some of the cases and writes what it finds to a folder that all of them see. Such a folder is
recognised by its marker, which says what the run is made of, so that nothing of another run is ever mixed in, and that
nobody takes it for a finished result. What was found on a case counts only as long as its files do not change.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import distributed

from segcal.files import MARKER, discard_unfinished, read_json, unfinished_folder, unfinished_name
from segcal.parts.journal import Journal
from segcal.training.processes import process_group
from segcal.types import InputError
from segcal.version import __version__

T = TypeVar("T")
FITS = "fits"
"""Folder of the fitted calibrators in the unfinished output of a comparison."""

_PATIENCE = timedelta(days=7)  # parts may differ by hours; torchrun ends all processes if one of them fails


@dataclass(frozen=True)
class Part:
    """Part `index` of `count`, from 1 on: every `count`-th case.

    >>> Part.parse("2/3").of(["a", "b", "c", "d", "e"])
    ['b', 'e']
    """

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "i/N"."""
        found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise InputError(f"a part must be i/N with i in 1..N, got '{text}'; the second of four is 2/4")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of_process(cls) -> Self:
        """Return the part of this process among those that torchrun started; the whole if there is only one."""
        return cls(int(os.environ.get("RANK", "0")) + 1, int(os.environ.get("WORLD_SIZE", "1")))

    def of(self, names: Sequence[T]) -> list[T]:
        """Return every `count`-th of the names."""
        return list(names[self.index - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True)
class Run:
    """What a run is made of: two processes work on the same one if all of this agrees.

    Attributes:
        command: Name of the command.
        arguments: Its arguments, in values that JSON can hold; `segcal merge` runs the command with them again.
        identity: Hash of everything that decides the numbers: settings, calibrators, the names of the cases.
    """

    command: str
    arguments: Mapping[str, Any]
    identity: str

    @property
    def marker(self) -> dict[str, Any]:
        """The content of the marker of an unfinished folder."""
        about = {"command": self.command, "identity": self.identity, "arguments": dict(self.arguments)}
        return {"format": 1, "unfinished": about}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the run that an unfinished folder belongs to."""
        content = read_json(folder / MARKER)
        about = content.get("unfinished") if isinstance(content, dict) else None
        if not isinstance(about, dict):
            raise InputError(f"'{folder}' holds no parts of a run; give a folder that a command with --part wrote")
        return cls(about["command"], about["arguments"], about["identity"])


def check_same_run(run: Run, folders: Sequence[Path]) -> None:
    """Raise unless all folders are parts of a run."""
    for folder in folders:
        if Run.read(folder).identity != run.identity:
            raise InputError(
                f"'{folder}' belongs to another run: data, calibrators, options or the version of segcal have changed "
                "since; run its parts again"
            )


def check_complete(names: Sequence[str], finished: Container[str]) -> None:
    """Raise unless every case is finished."""
    if missing := [name for name in names if name not in finished]:
        shown = ", ".join(f"'{name}'" for name in missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise InputError(
            f"{len(missing)} of {len(names)} cases are not finished, or their files have changed since ({shown}); "
            "run their part, or all parts, again, which skips what is finished"
        )


def identity_of(*content: Any) -> str:
    """Return a hash of values that JSON can hold."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Sharing:
    """How work is divided and kept.

    Attributes:
        command: Name of the command.
        arguments: Its arguments, in values that JSON can hold.
        out: Where the results will be, or, with a part, the folder of the parts; None to keep nothing.
        part: The part to work on; None for the whole, divided between the processes of torchrun if there are several.
        parts: Folders of finished parts, which are merged instead of working on anything.
    """

    command: str
    arguments: Mapping[str, Any]
    out: Path | None = None
    part: Part | None = None
    parts: Sequence[Path] = ()

    @property
    def own(self) -> Part:
        """The part of this process."""
        return self.part or Part.of_process()

    def run(self, *content: Any) -> Run:
        """Return the run that everything with the same content belongs to."""
        return Run(self.command, self.arguments, identity_of(__version__, self.command, *content))


@contextmanager
def unfinished(sharing: Sharing, run: Run) -> Iterator[Path]:
    """Yield the folder in which a run is kept until it is complete, made or found there.

    With a part, the folder may be shared with other processes, and one of another run is refused; otherwise such a
    folder is replaced. Under torchrun the first process does so before the others enter.
    """
    assert sharing.out is not None
    processes, divided = Part.of_process(), sharing.part is not None
    path = sharing.out if divided else unfinished_name(sharing.out)
    if processes.index > 1:
        meet()
    replace, shared = processes.index == 1 and not divided, divided or processes.count > 1
    with unfinished_folder(path, run.marker, shared=shared, replace=replace) as folder:
        if processes.index == 1:
            meet()
        with naming_kept_work(folder, shared=shared):
            yield folder


@contextmanager
def naming_kept_work(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """If the block fails, add a note to the error that says what is kept in an unfinished folder.

    A folder without any finished work is removed, unless other processes share it.
    """
    try:
        yield
    except BaseException as error:
        if kept := _kept_work(folder):
            note = f"{kept} kept in '{_as_seen(folder)}', and the same command continues from there"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        elif not shared:
            discard_unfinished(folder)
        raise


@contextmanager
def publishing(sharing: Sharing) -> Iterator[None]:
    """Delete what a run has kept once its results are published; if that fails, say where the work is kept."""
    if sharing.out is None:
        yield
        return
    kept = unfinished_name(sharing.out)
    with naming_kept_work(kept, shared=True):
        yield
    discard_unfinished(kept)


def _kept_work(folder: Path) -> str | None:
    """Return the finished work of a folder in words, such as "3 finished cases are"; None if there is none."""
    cases, fits = Journal(folder).finished(), len(list((folder / FITS).glob("*.json")))
    counts = [(cases, "finished case"), (fits, "fit")]
    words = [f"{count:,} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
    return f"{' and '.join(words)} {'is' if cases + fits == 1 else 'are'}" if words else None


def _as_seen(folder: Path) -> Path:
    """Return a path relative to the working folder if it lies inside."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def meet() -> None:
    """Wait until every process of torchrun is here."""
    gathered(None)


def gathered(content: T) -> list[T]:
    """Return what every process of torchrun found, in the order of their ranks; all of them must call this."""
    if Part.of_process().count == 1:
        return [content]
    with process_group(torch.device("cpu"), patience=_PATIENCE):
        found: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, content)
    return found
