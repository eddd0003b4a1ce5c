"""Progress bars on standard error, and in notebooks: the same bar for commands, fits and loaders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
_on_stage: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("on_stage", default=None)


def progress_of(what: str, *, note: bool = False, hidden: bool = False) -> Progress:
    """Return a bar with one task, to be used in a `with` statement; hidden unless someone can see it.

    Args:
        what: Description shown before the bar.
        note: Whether a field "note" is shown after the bar.
        hidden: Whether to show nothing at all.
    """
    from rich.console import Console  # noqa: PLC0415  (rich.progress takes long to import, and help must be quick)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    columns += [TextColumn("{task.fields[note]}")] if note else []
    # outside a terminal even a transient bar leaves a blank line; a notebook needs ipywidgets to update a bar
    seen = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    progress = Progress(*columns, console=console, transient=True, disable=hidden or not seen)
    progress.add_task(what, total=None, note="")
    return progress


class Tracked(Sequence[Item]):
    """A sequence that advances a bar with each item; every pass over it starts the bar again."""

    def __init__(self, items: Sequence[Item], progress: Progress) -> None:
        self.items, self.progress = items, progress

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one item or a part of the sequence; the bar stays as it is."""
        return self.items[index]

    def __iter__(self) -> Iterator[Item]:
        task = self.progress.task_ids[-1]
        self.progress.reset(task, total=len(self.items))
        for item in self.items:
            yield item
            self.progress.advance(task)


@contextmanager
def stages_shown(show: Callable[[str, int, int], None]) -> Iterator[None]:
    """Call `show` for each stage that begins inside."""
    token = _on_stage.set(show)
    try:
        yield
    finally:
        _on_stage.reset(token)


def begin_stage(text: str, number: int, of: int) -> None:
    """Report that one of several stages of a long fit begins, for the bar around it, if there is one."""
    if show := _on_stage.get():
        show(text, number, of)


@contextmanager
def announcements(*, hidden: bool = False) -> Iterator[None]:
    """Print what is announced inside, by the logger "segcal" at level INFO, on standard error, unless hidden."""
    logger, handler = logging.getLogger("segcal"), logging.StreamHandler()
    before = logger.level
    if hidden or logger.isEnabledFor(logging.INFO):  # a caller who listens already does not need it twice
        yield
        return
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
