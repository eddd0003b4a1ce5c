"""How commands divide their cases: between the processes of torchrun, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from segcal.cli.options import DATA
from segcal.training.environment import alone, launched

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ray",
        help="Map the cases on a Ray cluster.",
        rich_help_panel=DATA,
    ),
]
EngineAddress = Annotated[
    str | None,
    typer.Option("--address", help="Address of the cluster; found or started here.", rich_help_panel=DATA),
]


def by_first_process(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that cannot be shared: under torchrun the first process runs it, and the others do nothing."""

    @wraps(command)
    def run(**values: Any) -> None:
        if launched()[0] == 0:
            with alone():
                command(**values)

    return run
