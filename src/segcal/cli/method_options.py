"""The options of the calibration methods, as typer options of `segcal fit` and `segcal compare`.

They follow from the constructors and `fit` methods of the calibrators, which `segcal.cli.derive_options` reads with
torch. Help must do without, so the result is kept in `method_options.json`; a test fails when that file is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.markup import escape

from segcal.cli.groups import OptionGroup
from segcal.text import suggestion

TABLE = Path(__file__).with_name("method_options.json")
_TYPES: dict[str, Any] = {
    "bool": bool,
    "float": float,
    "int": int,
    "list": list[str],
    "pair": tuple[float, float],
    "path": Path,
    "str": str,
}


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: Name of the parameter.
        place: "constructor" or "fit".
        kind: Type of the value, a key of the table of types.
        methods: Methods that have it.
        panel: Title of the panel that shows it in the help.
        help: One or two sentences.
        default: The default in words, "" where the method decides.
        choices: The values allowed, where they are listed.
        on: Whether it is a switch that is on by default.
    """

    name: str
    place: str
    kind: str
    methods: tuple[str, ...]
    panel: str
    help: str
    default: str
    choices: tuple[str, ...]
    on: bool

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"

    def parameter(self) -> Parameter:
        """Return the option as a parameter that typer understands; None stands for not given."""
        declared = f"{self.flag}/--no-{self.flag[2:]}" if self.on else self.flag
        kind: Any = _TYPES[self.kind]
        shown = typer.Option(
            declared,
            help=escape(f"{self.help} Default: {self.default}." if self.default else self.help),
            rich_help_panel=self.panel,
            show_default=False,  # None, which stands for not given
            autocompletion=(lambda: list(self.choices)) if self.choices else None,
        )
        return Parameter(self.name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind | None, shown], default=None)


@cache
def table() -> tuple[dict[str, str], tuple[Option, ...]]:
    """Return the title of each method by its name, and all options."""
    content = json.loads(TABLE.read_text(encoding="utf-8"))
    frozen: list[dict[str, Any]] = [
        {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        for entry in content["options"]
    ]
    return content["methods"], tuple(Option(**entry) for entry in frozen)


def method_names() -> tuple[str, ...]:
    """Return the names of the methods."""
    return tuple(table()[0])


Method: TypeAlias = Annotated[
    str, typer.Option(help=f"One of: {', '.join(method_names())}.", autocompletion=lambda: list(method_names()))
]


@dataclass(frozen=True)
class MethodOptions(OptionGroup):
    """The options of the methods that were given, by name."""

    given: dict[str, Any]

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Return every option of every method."""
        return [option.parameter() for option in table()[1]]

    @classmethod
    def of(cls, values: dict[str, Any]) -> MethodOptions:
        """Return the options that were given."""
        given = {name: value for name, value in values.items() if value is not None}
        listed = {option.name for option in table()[1] if option.kind == "list"}
        return cls({name: _split(value) if name in listed else value for name, value in given.items()})

    def checked(self, methods: Sequence[str], *, shared: Sequence[str] = ()) -> MethodOptions:
        """Return these options; raise if a method does not exist or none of the methods has an option.

        Options that are `shared` also concern the command itself, so that no method needs to have them.
        """
        from segcal.types import InputError

        known = method_names()
        for method in methods:
            if method not in known:
                hint = suggestion(method, known)
                raise InputError(f"method must be one of {', '.join(known)}, got '{method}'{hint}")
        for name in self.given:
            if name not in shared and not any(name in _names(method) for method in methods):
                raise InputError(_refusal(name, methods))
        return self

    def split(self, method: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the constructor and what `fit` of one method gets; options of other methods are left out."""
        places = {option.name: option.place for option in table()[1] if method in option.methods}
        mine = {name: value for name, value in self.given.items() if name in places}
        return (
            {name: value for name, value in mine.items() if places[name] == "constructor"},
            {name: value for name, value in mine.items() if places[name] == "fit"},
        )


def _names(method: str) -> list[str]:
    return [option.name for option in table()[1] if method in option.methods]


def _refusal(name: str, methods: Sequence[str]) -> str:
    (option,) = (option for option in table()[1] if option.name == name)
    owners = ", ".join(option.methods)
    if len(methods) > 1:
        return f"none of {', '.join(methods)} has {option.flag}, which is an option of {owners}; leave it out"
    have = ", ".join(f"--{own.replace('_', '-')}" for own in _names(methods[0])) or "no options of its own"
    return f"'{methods[0]}' has no {option.flag}, which is an option of {owners}; '{methods[0]}' has {have}"


def _split(parts: Sequence[str]) -> list[str]:
    return [name for part in parts for name in part.split(",") if name]
