"""Command lines that nobody should type, and that somebody will."""

from __future__ import annotations

import typer.main
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from segcal.cli.app import app

VALUES = st.sampled_from((
    "", "0", "-1", "1", "2", "7", "nan", "inf", "-inf", "1e400", "1e30", "0.0", "2.5", "100000000",
    "99999999999999999999999", "-99999999999999999999", "x", "[/red]", "[bold]", "\x1b[31m", "\udcff", "ü", "a\nb",
    "tables", "UC", "TS", "all", ".", "..", "/", "data", "results", "calibrator", "data/logits/a1.npy",
    "results/segcal.json", "out", "out/", "new/deep/out", "/dev/null", "out.html", "x" * 300, "\0", "--", "-", "=",
    "{}", "None",
))  # fmt: skip
LARGE = ("--patches", "--epochs", "--folds", "--resamples", "--set=batch_size=")
"""Options whose large values ask for hours of honest work."""

SETTINGS = tuple(f"--set={name}=" for name in ("bounds", "bins", "batch_size", "learning_rate", "root_offset"))
LEFT_OUT = ("--help", "--version", "--device", "--engine", "--address")


def options_of(command: str) -> tuple[str, ...]:
    """Return the options of a command, as its help lists them."""
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    names = (name for parameter in found.params for name in parameter.opts if name.startswith("--"))
    return (*sorted(set(names) - set(LEFT_OUT)), *(SETTINGS if command == "fit" else ()))


@st.composite
def odd_arguments(draw: DrawFn, args: tuple[str, ...]) -> tuple[str, ...]:
    """Return a strategy of command lines with odd options, another input, or an input left out."""
    changed, kind = list(args), draw(st.integers(0, 11))
    if kind > 9:
        at = draw(st.integers(1, len(changed) - 1))
        changed[at : at + 1] = [draw(VALUES)] * (kind - 10)
        return tuple(changed)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        option, value = draw(st.sampled_from(options_of(args[0]))), draw(VALUES)
        if option in LARGE and value.startswith(("1000", "9999")):
            value = "3"
        joined = [f"{option}{value}"] if option.endswith("=") else [option, value]
        changed += joined[: 1 + (draw(st.integers(0, 30)) < 30)]
    return tuple(changed)
