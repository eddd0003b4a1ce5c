"""`segcal demo`: the commands one after another, on brains where the extra `demo` is installed, else on scenes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from segcal.cli.console import OUT, say, say_json
from segcal.cli.options import OUTPUT, AsJson, option

if TYPE_CHECKING:
    from segcal.evaluation.recommendation import Recommendation
    from segcal.types import Case

_TITLES = {
    "ts": "One temperature",
    "lts": "One temperature per pixel",
    "cts": "A temperature from the context",
}


class Story(NamedTuple):
    """A sample, and how the demo fits and measures on it."""

    title: str
    splits: Mapping[str, Sequence[Case]]
    class_names: tuple[str, ...]
    background: int | None
    fits: Mapping[str, tuple[str, ...]]
    """Options of `segcal fit` for each method."""
    patch_sizes: tuple[int, ...]
    """Sides of the Local patches; the first is that of the tables."""


def _brain_story() -> Story:
    """Return the story of a 3D U-Net on brains."""
    from segcal.data.sample import brain, load_sample
    from segcal.regions import local_patch_size

    splits = load_sample("brain")
    size = local_patch_size([case.logits.shape[1:] for case in splits["test"]])
    training = ("--epochs", "100", "--set", "learning_rate=0.005", "cosine=true", "crop=32", "positivity=softplus")
    return Story(
        title="brains made from the MNI152 template, scores of a 3D U-Net",
        splits=splits,
        class_names=brain.CLASSES,
        background=0,
        fits={"ts": (), "lts": training, "cts": ()},
        patch_sizes=(size, size // 2),
    )


def _scene_story() -> Story:
    """Return the story of simulated scenes."""
    from segcal.data.sample import load_sample

    return Story(
        title="simulated scenes",
        splits=load_sample("scenes"),
        class_names=("field", "road", "water", "forest", "town"),
        background=None,
        fits={"ts": (), "lts": ("--epochs", "60", "--set", "learning_rate=0.005", "cosine=true", "flips=true")},
        patch_sizes=(48, 12, 24, 96),
    )


def demo(
    out: Annotated[Path, option(OUTPUT, "Folder for the sample data and the results.")] = Path("demo"),
    as_json: AsJson = False,
) -> None:
    """Run the commands one after another on sample data, offline.

    Example: segcal demo
    """
    from segcal.data.folders.writer import write_folder
    from segcal.data.sample import brain
    from segcal.evaluation.recommendation import recommend
    from segcal.evaluation.results import Results

    story, step = _brain_story() if brain.has_template() else _scene_story(), count(1)
    data, probs, results, page = (out / name for name in ("data", "probs", "results", "page.html"))
    fitted = [out / method for method in story.fits]
    OUT.quiet = as_json
    try:
        if not brain.has_template():
            say(f"{brain.MISSING}. Until then, the demo shows simulated scenes.")
        _title(f"{next(step)}. A folder of scores, labels and images ({story.title})", f"ls {shlex.quote(str(data))}")
        write_folder(data, story.splits, class_names=story.class_names, background=story.background)
        say("  ".join(sorted(path.name for path in data.iterdir())))
        _run(f"{next(step)}. Is the network over- or underconfident?", "diagnose", data, "--split", "fit")
        for method, options in story.fits.items():
            title = f"{next(step)}. {_TITLES[method]}: {method.upper()}"
            _run(title, "fit", data, "--method", method, *options, "--out", out / method)
        sizes = ("--patch-size", story.patch_sizes[0], "--patch-sizes", *sorted(story.patch_sizes))
        measuring = ("--calibrators", *fitted, "--reference", "LTS", *sizes, "--out", results)
        title = "Measure in the whole image, near boundaries and in local patches"
        _run(f"{next(step)}. {title}", "evaluate", data, *measuring)
        recommended = recommend(Results.load(results))
        written = ("--split", "test", "--temperature", "--out", probs)
        title = "Write calibrated probabilities and temperature maps"
        _run(f"{next(step)}. {title}", "apply", _folder_of(recommended, fitted), data, *written)
        _run(f"{next(step)}. A page that opens in any browser", "report", results, "--out", page)
        OUT.print("\nWhich method to use", style="bold")
        say(str(recommended))
    finally:
        OUT.quiet = False
    if as_json:
        places = {"data": data, "calibrators": fitted, "results": results, "probabilities": probs, "page": page}
        written_to = {name: [*map(str, at)] if isinstance(at, list) else str(at) for name, at in places.items()}
        say_json({**written_to, "recommendation": recommended.to_dict()})


def _folder_of(recommended: Recommendation, fitted: Sequence[Path]) -> Path:
    """Return the folder of the recommended calibrator; the last one where no method is better than the baseline."""
    return next((path for path in fitted if path.name.upper() == recommended.method), fitted[-1])


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
