"""How commands divide their cases: `--part i/N`, processes of torchrun, and what `segcal merge` runs again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from segcal.cli.console import say, say_json
from segcal.cli.groups import OptionGroup
from segcal.cli.options import DATA
from segcal.training.environment import alone, launched

if TYPE_CHECKING:
    from segcal.parts.work import Sharing

PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="I/N",
        help="Work on part I of N of the cases only. All parts write to the same --out, which 'segcal merge' joins.",
        rich_help_panel=DATA,
    ),
]

_merging: ContextVar[tuple[Path, ...]] = ContextVar("merging", default=())


def sharing_of(command: Callable[..., None], arguments: Mapping[str, Any], out: Path | None) -> Sharing:
    """Return how a command divides its cases and where it keeps what it finds.

    Args:
        command: The function of the command.
        arguments: All of its arguments.
        out: Where its results will be, or those of the part.
    """
    from segcal.parts.work import Part, Sharing
    from segcal.types import InputError

    text = arguments["part"]
    if text is None:
        return Sharing(command.__name__, encoded(arguments), out, parts=_merging.get())
    part = Part.parse(text)
    if out is None:
        raise InputError("--part needs --out, the folder that all parts write to; 'segcal merge' joins them there")
    if Part.of_process().count > 1:
        raise InputError("torchrun divides the cases between its processes already; leave out --part")
    return Sharing(command.__name__, encoded(arguments), out, part)


def say_part(sharing: Sharing, as_json: bool) -> None:
    """Report that a part is finished; processes of torchrun other than the first report nothing."""
    if sharing.part is None:
        return
    if as_json:
        say_json({"part": str(sharing.part), "out": str(sharing.out)})
    else:
        say(f"part {sharing.part} finished in {sharing.out}; join all parts: segcal merge {sharing.out} --out RESULTS")


def by_first_process(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that cannot be shared: under torchrun the first process runs it, and the others do nothing."""

    @wraps(command)
    def run(**values: Any) -> None:
        if launched()[0] == 0:
            with alone():
                command(**values)

    return run


@contextmanager
def merging(parts: Sequence[Path]) -> Iterator[None]:
    """Let a command merge parts instead of working on cases."""
    token = _merging.set(tuple(parts))
    try:
        yield
    finally:
        _merging.reset(token)


def encoded(value: Any) -> Any:
    """Return arguments of a command in values that JSON can hold; paths become absolute."""
    from segcal.files import url_of

    if isinstance(value, OptionGroup):
        return encoded(vars(value))
    if isinstance(value, Mapping):
        return {name: encoded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    return {"path": url_of(value) or str(value.absolute())} if isinstance(value, Path) else value


def decoded(name: str, arguments: Mapping[str, Any]) -> tuple[Callable[..., None], dict[str, Any]]:
    """Return a command and its arguments, which `encoded` wrote."""
    command: Callable[..., None] = getattr(import_module(f"segcal.cli.{name}"), name)
    hints, found = get_type_hints(command), dict[str, Any]()
    for key in inspect.signature(command).parameters:
        value, hint = _plain(arguments[key]), hints[key]
        found[key] = hint(**value) if inspect.isclass(hint) and issubclass(hint, OptionGroup) else value
    return command, found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return Path(value["path"]) if set(value) == {"path"} else {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
