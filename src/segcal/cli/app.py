"""The application: the list of commands, each of which lives in the module of its name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

import typer

from segcal.cli import nnunet
from segcal.cli.console import Answer, Group, ManyValues
from segcal.cli.options import flattened
from segcal.training.environment import alone, launched
from segcal.version import __version__

COMMANDS = (
    "demo",
    "diagnose",
    "fit",
    "evaluate",
    "compare",
    "apply",
    "table",
    "report",
    "figure",
    "decide",
    "nnunet",
    "fuse",
    "export",
    "methods",
)
"""In the order of work. `segcal NAME` runs the function NAME of the module `segcal.cli.NAME`; `nnunet` has several.

Those modules import only what their help needs; torch and the rest of segcal are imported when a command runs.
"""

SHARED = ("fit", "apply", "evaluate", "compare", "diagnose")
"""Commands whose work the processes of torchrun share, also as `segcal nnunet fit`."""


class OrderedGroup(Group):
    """List the commands in the order of work, groups of commands among them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)


app = typer.Typer(
    cls=OrderedGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Calibrate the probabilities of semantic segmentation.",
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"segcal {__version__}")
        raise typer.Exit
    launched()  # before anything is read or written


def _added(group: typer.Typer, name: str, command: Callable[..., Answer | None]) -> None:
    """Add a command; one that cannot be shared is run by the first process of torchrun, and the others do nothing."""

    @wraps(command)
    def first(**values: Any) -> Answer | None:
        if launched()[0] > 0:
            return None
        with alone():
            return command(**values)

    group.command(name, cls=ManyValues)(flattened(command if name in SHARED else first))


_nnunet = typer.Typer(no_args_is_help=True, help=nnunet.__doc__)
for _command in nnunet.COMMANDS:
    _added(_nnunet, _command.__name__, _command)
app.add_typer(_nnunet, name="nnunet")
for _name in COMMANDS:
    if _name != "nnunet":
        _added(app, _name, getattr(import_module(f"segcal.cli.{_name}"), _name))
