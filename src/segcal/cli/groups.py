"""Options that several commands share, declared once: a parameter of a command may stand for a group of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter
from typing import Any, get_type_hints


class OptionGroup:
    """Base of dataclasses whose fields are options, with annotations as typer reads them."""

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Return the options as keyword-only parameters."""
        hints = get_type_hints(cls, include_extras=True)
        return [
            _keyword(field.name, hints[field.name], Parameter.empty if field.default is MISSING else field.default)
            for field in fields(cls)  # type: ignore[arg-type]  # subclasses are dataclasses
        ]


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` as typer needs it: each parameter that is an `OptionGroup` is replaced by its options.

    An option that the command itself or an earlier group has already is not added a second time.
    """
    hints = get_type_hints(command, include_extras=True)
    owners: dict[str, str] = {}
    groups: dict[str, type[OptionGroup]] = {}
    parameters: dict[str, Parameter] = {}
    plain = inspect.signature(command).parameters
    for name, parameter in plain.items():
        hint = hints[name]
        if not (inspect.isclass(hint) and issubclass(hint, OptionGroup)):
            parameters[name] = _keyword(name, hint, parameter.default)
            continue
        groups[name] = hint
        for option in hint.parameters():
            if option.name not in plain and option.name not in owners:
                owners[option.name], parameters[option.name] = name, option

    @wraps(command)
    def run(**values: Any) -> None:
        shared = {
            name: group(**{option: values.pop(option) for option, owner in owners.items() if owner == name})
            for name, group in groups.items()
        }
        command(**values, **shared)

    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.__doc__ or "").split("\n\n"))
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
