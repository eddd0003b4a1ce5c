"""`segcal methods`: the methods, and the settings of one of them."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from segcal.cli.console import OUT, Answer, say
from segcal.cli.options import complete_method


def methods(
    method: Annotated[
        str | None, typer.Argument(help="Show the settings of this method.", autocompletion=complete_method)
    ] = None,
) -> Answer:
    """List the calibration methods, or show the settings of one of them.

    Settings are given to 'segcal fit' and 'segcal compare' as --set KEY=VALUE.

    Example: segcal methods lts
    """
    return _list() if method is None else _settings(method)


def _list() -> Answer:
    from segcal.calibrators import methods as names
    from segcal.tables import TextTable

    found = {name: _description(name)[0] for name in names()}

    def show() -> None:
        OUT.print(TextTable(("method", ""), [*found.items()]))
        say("Settings of a method: segcal methods NAME", style="dim")

    return Answer([{"method": name, "summary": summary} for name, summary in found.items()], show)


def _settings(method: str) -> Answer:
    from segcal.cli.settings import settings_of
    from segcal.tables import TextTable

    settings, summary = settings_of(method).values(), _description(method)

    def show() -> None:
        for paragraph in summary:
            say(paragraph)
        for title, trains in (("settings", False), ("settings of training", True)):
            rows = [(one.name, one.shown_default or "-", one.described) for one in settings if one.trains is trains]
            if rows:
                OUT.print("", TextTable((title, "default", ""), rows, keys=2))
        example = f"segcal fit DATA --method {method} --set KEY=VALUE --out {method}/"
        say(f"\nGiven as --set KEY=VALUE: {example}", style="dim")

    found = [
        {"name": each.name, "default": each.default, "values": each.values, "meaning": each.meaning}
        for each in settings
    ]
    return Answer({"method": method, "summary": summary[0], "settings": found}, show)


def _description(method: str) -> list[str]:
    """Return the paragraphs of a method's docstring above its arguments."""
    from segcal.calibrators import create

    text = inspect.cleandoc(type(create(method, num_classes=2)).__doc__ or "No description, as Python runs with -OO.")
    return [" ".join(each.split()) for each in text.partition("Args:\n")[0].split("\n\n") if each.strip()]
