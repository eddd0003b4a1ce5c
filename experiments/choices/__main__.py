"""Run from the repository's root.

python -m experiments.choices measure decisions --voc DATA/voc --out results/choices
python -m experiments.choices table decisions --out results/choices
python -m experiments.choices table       # all, from the published measurements
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.choices import decisions, pooling, settling
from experiments.command import given, parser_of, status_of
from segcal.files import staged_file
from segcal.types import InputError

MEASURED = Path(__file__).with_name("measured")


class Choice(NamedTuple):
    """What is measured, and how it is shown."""

    measure: Callable[[argparse.Namespace], pd.DataFrame]
    table: Callable[[pd.DataFrame], str]


CHOICES: Mapping[str, Choice] = {
    "decisions": Choice(decisions.measure, decisions.table),
    "pooling": Choice(pooling.measure, pooling.table),
    "settling": Choice(settling.measure, settling.table),
}
"""By the names of the command and of the archives."""


def main(arguments: list[str] | None = None) -> int:
    """Do the stage asked for."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: _run(options))


def table_of(name: str, folder: Path = MEASURED) -> str:
    """Return the table of what a folder holds, by default of what is published."""
    path = folder / f"{name}.csv"
    if not path.exists():
        raise InputError(f"'{path}' does not exist; run `python -m experiments.choices measure {name}` first")
    return CHOICES[name].table(pd.read_csv(path))


def _run(options: argparse.Namespace) -> None:
    if options.stage == "table":
        print("\n\n".join(table_of(name, options.out or MEASURED) for name in options.names))
        return
    out = given(options.out, "--out")
    for name in options.names:
        if options.stage == "archive":
            shutil.copyfile(out / f"{name}.csv", MEASURED / f"{name}.csv")
        else:
            with staged_file(out / f"{name}.csv") as file:
                CHOICES[name].measure(options).to_csv(file, index=False)


def _name(text: str) -> str:
    if text not in CHOICES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(CHOICES)}, got '{text}'")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("choices", __doc__)
    parser.add_argument("stage", choices=("measure", "table", "archive"))
    names = f"{', '.join(CHOICES)}; all by default"
    # no `choices`: with them, argparse of Python 3.11 refuses to take no name at all
    parser.add_argument("names", nargs="*", type=_name, default=tuple(CHOICES), metavar="NAME", help=names)
    parser.add_argument("--out", type=Path, help="folder of the results; without it, `table` prints the published ones")
    parser.add_argument("--voc", type=Path, help="folder that holds logits, labels and images")
    return parser


if __name__ == "__main__":
    sys.exit(main())
