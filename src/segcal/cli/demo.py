"""`segcal demo`: the commands one after another, on sample data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import OUT, say, say_json
from segcal.cli.options import OUTPUT, AsJson

_TITLES = {
    "ts": "One temperature",
    "ibts": "One temperature per image",
    "lts": "One temperature per pixel",
    "cts": "A temperature from the context",
}


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the sample data and the results.", rich_help_panel=OUTPUT)
    ] = Path("demo"),
    as_json: AsJson = False,
) -> None:
    """Run the commands one after another on sample data, offline.

    Example: segcal demo
    """
    from segcal.cli.demo_story import choose_story, options_of, verdict
    from segcal.data.folders.writer import write_folder
    from segcal.evaluation.results import Results

    story = choose_story()
    data, probs, results, page = (out / name for name in ("data", "probs", "results", "page.html"))
    fitted = [out / method for method in story.fits]
    OUT.quiet = as_json
    try:
        if story.note is not None:
            say(f"{story.note}. Until then, the demo shows simulated scenes.")
        _title(f"1. A folder of scores, labels and images ({story.title})", f"ls {shlex.quote(str(data))}")
        write_folder(data, story.splits, class_names=story.class_names, background=story.background)
        say("  ".join(sorted(path.name for path in data.iterdir())))
        _run("2. Is the network over- or underconfident?", "diagnose", data, "--split", "fit")
        for step, (method, settings) in enumerate(story.fits.items(), 3):
            title = f"{step}. {_TITLES[method]}: {method.upper()}"
            _run(title, "fit", data, "--method", method, *options_of(settings), "--out", out / method)
        sizes = ("--patch-size", story.patch_size, "--patch-sizes", *story.patch_sizes)
        measuring = ("--calibrators", *fitted, "--reference", "LTS", *sizes, "--out", results)
        last = 2 + len(story.fits)
        _run(
            f"{last + 1}. Measure in the whole image, near boundaries and in local patches",
            "evaluate",
            data,
            *measuring,
        )
        say(verdict(Results.load(results)))
        written = ("--split", "test", "--temperature", "--out", probs)
        _run(f"{last + 2}. Write calibrated probabilities and temperature maps", "apply", out / "lts", data, *written)
        _run(f"{last + 3}. A page that opens in any browser", "report", results, "--out", page)
    finally:
        OUT.quiet = False
    if as_json:
        places = {"data": data, "calibrators": fitted, "results": results, "probabilities": probs, "page": page}
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
    OUT.print(f"\n{title}", style="bold")
    OUT.print(f"$ {command}", style="dim", soft_wrap=True)
