"""`segcal demo`: the commands one after another, on sample data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import OUT, say_json
from segcal.cli.options import OUTPUT, AsJson


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the sample data and the results.", rich_help_panel=OUTPUT)
    ] = Path("demo"),
    as_json: AsJson = False,
) -> None:
    """Run the other commands on sample data, offline: diagnose, fit, measure, apply, with a page at the end.

    Example: segcal demo
    """
    from segcal.data.datasets.simulate import load_sample
    from segcal.data.folders.writer import write_folder

    sample = load_sample()
    data, ts, lts, probs, results = (out / name for name in ("data", "ts", "lts", "probs", "results"))
    page = out / "page.html"
    OUT.quiet = as_json
    try:
        _title("1. A folder of scores, labels and images (simulated scenes)", f"ls {shlex.quote(str(data))}")
        write_folder(data, sample, class_names=("field", "road", "water", "forest", "town"))
        _run("2. Is the network over- or underconfident?", "diagnose", data, "--split", "fit")
        _run("3. One temperature for all images", "fit", data, "--method", "ts", "--out", ts)
        training = ("--epochs", 60, "--learning-rate", "3e-3", "--flips")
        _run("4. A temperature for every pixel", "fit", data, "--method", "lts", *training, "--out", lts)
        sizes = ("--patch-size", 48, "--patch-sizes", 12, 24, 48, 96)
        measuring = ("--calibrators", ts, lts, "--reference", "LTS", *sizes, "--out", results)
        _run("5. Measure in the whole image, near boundaries and in local patches", "evaluate", data, *measuring)
        written = ("--split", "test", "--temperature", "--out", probs)
        _run("6. Write calibrated probabilities and temperature maps", "apply", lts, data, *written)
        _run("7. Look at it: a page that opens in any browser", "report", results, "--out", page)
    finally:
        OUT.quiet = False
    if as_json:
        places = {"data": data, "calibrators": [ts, lts], "results": results, "probabilities": probs, "page": page}
        say_json({name: [*map(str, at)] if isinstance(at, list) else str(at) for name, at in places.items()})


def _run(title: str, *arguments: object) -> None:
    """Print a title and a command as the user would type it, and run that command."""
    from segcal.cli.app import app

    words = [str(argument) for argument in arguments]
    _title(title, f"segcal {shlex.join(words)}")
    status = typer.main.get_command(app).main(words, prog_name="segcal", standalone_mode=False)
    if status:
        raise typer.Exit(status)


def _title(title: str, command: str) -> None:
    OUT.print(f"\n{title}", style="bold", markup=False, highlight=False)
    OUT.print(f"$ {command}", style="dim", markup=False, highlight=False, soft_wrap=True)
