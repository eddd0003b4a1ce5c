"""`segcal methods`: the methods, and the settings of one of them."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from segcal.cli.console import OUT, say, say_json
from segcal.cli.options import AsJson, complete_method


def methods(
    method: Annotated[
        str | None, typer.Argument(help="Show the settings of this method.", autocompletion=complete_method)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the calibration methods, or show the settings of one of them.

    Settings are given to 'segcal fit' and 'segcal compare' as --set KEY=VALUE.

    Example: segcal methods lts
    """
    if method is None:
        _list_methods(as_json)
    else:
        _show_settings(method, as_json)


def _list_methods(as_json: bool) -> None:
    from segcal.calibrators import methods as names
    from segcal.tables import TextTable

    found = {name: _description(name)[0] for name in names()}
    if as_json:
        say_json([{"method": name, "summary": summary} for name, summary in found.items()])
        return
    OUT.print(TextTable(("method", ""), [*found.items()]))
    say("Settings of a method: segcal methods NAME", style="dim")


def _show_settings(method: str, as_json: bool) -> None:
    from segcal.cli.settings import KINDS, settings_of
    from segcal.tables import TextTable

    settings = settings_of(method).values()
    summary = _description(method)
    if as_json:
        found = [
            {"name": each.name, "default": each.default, "values": each.values, "meaning": each.meaning}
            for each in settings
        ]
        say_json({"method": method, "summary": summary[0], "settings": found})
        return
    for paragraph in summary:
        say(paragraph)
    for title, trains in (("settings", False), ("settings of training", True)):
        rows = [
            (
                each.name,
                each.shown_default or "-",
                f"{each.meaning} ({each.values})" if each.values in KINDS.values() else each.meaning,
            )
            for each in settings
            if each.trains is trains
        ]
        if rows:
            OUT.print("", TextTable((title, "default", ""), rows, keys=2))
    say(f"\nGiven as --set KEY=VALUE: segcal fit DATA --method {method} --set KEY=VALUE --out {method}/", style="dim")


def _description(method: str) -> list[str]:
    """Return the paragraphs of a method's docstring above its arguments."""
    from segcal.calibrators import create

    text = inspect.cleandoc(type(create(method, num_classes=2)).__doc__ or "")
    return [" ".join(each.split()) for each in text.partition("Args:\n")[0].split("\n\n") if each.strip()]
