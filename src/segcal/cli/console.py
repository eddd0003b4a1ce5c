"""The screen of every command: errors in one sentence, progress bars, warnings, where output was written."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.segment import Segment
from typer.core import TyperCommand, TyperGroup

from segcal.text import CalibrationWarning, printable

_ARROWS = str.maketrans({"\u2193": "v", "\u2191": "^"})
"""Letters for the arrows of headings, for encodings without them; other characters become escapes."""


class PlainConsole(Console):
    """A console that shows text as it is: brackets are not markup, and no text steers the terminal.

    Names of files, classes and methods come from outside. Colours are styles of what is printed, never part of it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)
        self._width = None  # rich would keep the COLUMNS of this moment for ever

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects, whose text is made printable before its width is measured."""
        super().print(*(printable(each, lines=True) if isinstance(each, str) else each for each in objects), **options)

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        """Yield the text in segments, with control characters as escapes."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text, lines=True)
            text = text if self.encoding.startswith("utf") else text.translate(_ARROWS)
            yield segment if text == segment.text else Segment(text, segment.style)


OUT = PlainConsole()
ERR = PlainConsole(stderr=True)
say = OUT.print

_said: set[str] = set()
"""Warnings that the running command has printed."""


class Group(TyperGroup):
    """Turn bad input and bad usage into one sentence on standard error and exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except (KeyboardInterrupt, SystemExit) as error:  # Ctrl-C and SIGTERM
            if hasattr(error, "__notes__"):
                _complain("interrupted", error)
            raise
        except ValueError as error:
            from segcal.types import InputError

            if not isinstance(error, InputError):
                raise
            _complain(str(error), error)
        except (MemoryError, RuntimeError) as error:
            if not _lacks_memory(error):
                raise
            _complain(
                "there is not enough memory for this; use smaller images or crops, fewer bins, or another machine",
                error,
            )
        raise typer.Exit(2)

    def main(self, args: Any = None, *others: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Parse the arguments and run; errors in them are printed as one sentence."""
        run = partial(super().main, args, *others, **{**extra, "standalone_mode": False})
        if not standalone_mode:
            return run()
        if odd := [argument for argument in args or () if "\0" in argument]:  # no name of a file can have one
            _complain(f"arguments must not contain a NUL character, got '{odd[0]}'; remove it")
            sys.exit(2)
        try:
            status = run()
        except BrokenPipeError:
            raise  # the reader closed the pipe (`| head`), which the caller ends quietly
        except OSError as error:  # also where the help or the version is printed
            where = f" ('{error.filename}')" if error.filename else ""
            _complain(f"{_reason(error)}{where}; check the path, its permissions and the free space", error)
            status = 2
        except Exception as error:
            if not hasattr(error, "format_message"):  # what click and typer, which may vendor click, raise
                raise
            _show_usage_error(error)
            status = error.exit_code  # type: ignore[attr-defined]
        sys.exit(status if isinstance(status, int) else 0)


def _complain(sentence: str, error: BaseException | None = None) -> None:
    """Print a sentence, followed by the notes of an error, which say what has been kept."""
    notes = getattr(error, "__notes__", ())
    with suppress(OSError):  # the status says it too, where standard error is full
        typer.echo(f"segcal: {printable('; '.join([sentence, *notes]))}", err=True)


def _reason(error: OSError) -> str:
    """Return in words why the system refused; numpy counts the bytes that were left when a disk is full."""
    if error.errno is None and "requested and" in str(error):
        return "No space left on device"
    return error.strerror or str(error)


def _lacks_memory(error: Exception) -> bool:
    """Return whether memory was short, also for PyTorch, which raises RuntimeError."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error)


def _show_usage_error(error: Any) -> None:
    if "NoArgsIsHelp" in type(error).__name__:
        error.show()
        return
    guesses = getattr(error, "possibilities", None)
    message = (error.message if guesses else error.format_message()).rstrip(".")
    if guesses:
        message += f"; did you mean {' or '.join(sorted(guesses))}?"
    path = getattr(getattr(error, "ctx", None), "command_path", "segcal")
    _complain(f"{message[:1].lower()}{message[1:]} (see '{path} --help')")


class ManyValues(TyperCommand):
    """Let an option that may be repeated take several values at once: `--calibrators a b` for two options."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, after an import of NumPy that Ctrl-C and SIGTERM can end.

        PyTorch imports NumPy while its library is loaded and forgets what that raises, so that a signal would be lost.
        """
        import numpy  # noqa: F401

        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Name the option again before each further value."""
        repeatable = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, list(_expand(args, repeatable)))


def _expand(args: Sequence[str], repeatable: set[str]) -> Iterator[str]:
    current, used = None, False
    for arg in args:
        if arg.startswith("-") and not _is_number(arg):
            current, used = (arg, False) if arg in repeatable else (None, False)
        elif current is not None:
            if used:
                yield current
            used = True
        yield arg


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


class Answer(NamedTuple):
    """Result of a command.

    Attributes:
        content: What is printed with `--json`, or a function that returns it.
        shown: The sentence that is printed otherwise, or a function that prints.
    """

    content: Any
    shown: str | Callable[[], None]

    def print(self, as_json: bool) -> None:
        """Print the result in one of the forms; the other one is not computed."""
        if as_json:
            typer.echo(json.dumps(self.content() if callable(self.content) else self.content))
        elif isinstance(self.shown, str):
            say(self.shown)
        else:
            self.shown()


def written_file(out: Path) -> Answer:
    """Return the result of a command that wrote a file: where, and its size."""
    from rich import filesize

    size = out.stat().st_size
    return Answer({"out": str(out), "bytes": size}, f"written to {out} ({filesize.decimal(size)})")


def say_where(out: Path | None, page: Path | None = None) -> None:
    """Report where results and their page were written."""
    if out is not None:
        say(f"saved in {out}")
    if page is not None:
        say(f"shown in {page}")


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print segcal's Python warnings as the commands print theirs."""
    _said.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("always", CalibrationWarning)
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, CalibrationWarning):
                warn(str(message))
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


def warn(text: str) -> None:
    """Print a warning on standard error, once in a command."""
    if text in _said:
        return
    _said.add(text)
    with suppress(OSError):  # a full disk below standard error does not end the work
        ERR.print(f"warning: {text}", style="yellow")
