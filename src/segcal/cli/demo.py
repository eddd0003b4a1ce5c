"""`segcal demo`: diagnose, fit, evaluate, apply, report; on brains if the extra `demo` is installed, else on scenes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import OUT, Answer, say
from segcal.cli.options import OUTPUT, option

_TITLES = {
    "ts": "One temperature",
    "lts": "One temperature per pixel",
    "cts": "A temperature from the context",
}
_SCENES = ("field", "road", "water", "forest", "town")
_TRAINING = ("--set", "learning_rate=0.005", "cosine=true")


def demo(out: Annotated[Path, option(OUTPUT, "Folder for the sample data and the results.")] = Path("demo")) -> Answer:
    """Run diagnose, fit, evaluate, apply and report on sample data, offline.

    Example: segcal demo
    """
    from segcal.data.folders.writer import write_folder
    from segcal.data.sample import brain, load_sample
    from segcal.evaluation.recommendation import recommend
    from segcal.evaluation.results import Results
    from segcal.regions import local_patch_size

    classes: Sequence[str]
    sizes: Sequence[int]
    step = count(1)
    if brain.has_template():
        splits, title = load_sample("brain"), "brains made from the MNI152 template, scores of a 3D U-Net"
        size = local_patch_size([case.logits.shape[1:] for case in splits["test"]])
        classes, background, sizes = brain.CLASSES, 0, (size, size // 2)
        fits = {"ts": (), "lts": ("--epochs", "100", *_TRAINING, "crop=32", "positivity=softplus"), "cts": ()}
    else:
        say(f"{brain.MISSING}. Until then, the demo shows simulated scenes.")
        splits, title = load_sample("scenes"), "simulated scenes"
        classes, background, sizes = _SCENES, None, (48, 12, 24, 96)
        fits = {"ts": (), "lts": ("--epochs", "60", *_TRAINING, "flips=true")}
    data, probs, results, page = (out / name for name in ("data", "probs", "results", "page.html"))
    fitted = [out / method for method in fits]

    def run(title: str, *arguments: object) -> None:
        """Print the next title and a command as the user would type it, and run that command."""
        from segcal.cli.app import app

        words = [str(argument) for argument in arguments]
        _title(f"{next(step)}. {title}", f"segcal {shlex.join(words)}")
        status = typer.main.get_command(app).main(words, prog_name="segcal", standalone_mode=False)
        if status:
            raise typer.Exit(status)

    _title(f"{next(step)}. A folder of scores, labels and images ({title})", f"ls {shlex.quote(str(data))}")
    write_folder(data, splits, class_names=classes, background=background)
    say("  ".join(sorted(path.name for path in data.iterdir())))
    run("Is the network over- or underconfident?", "diagnose", data, "--split", "fit")
    for method, options in fits.items():
        run(f"{_TITLES[method]}: {method.upper()}", "fit", data, "--method", method, *options, "--out", out / method)
    measuring = ("--reference", "LTS", "--patch-size", sizes[0], "--patch-sizes", *sorted(sizes), "--out", results)
    title = "Measure in the whole image, near boundaries and in local patches"
    run(title, "evaluate", data, "--calibrators", *fitted, *measuring)
    recommended = recommend(Results.load(results))
    # where no method is better than the baseline, the last one
    best = next((path for path in fitted if path.name.upper() == recommended.method), fitted[-1])
    title = "Write calibrated probabilities and temperature maps"
    run(title, "apply", best, data, "--split", "test", "--temperature", "--out", probs)
    run("A page that opens in any browser", "report", results, "--out", page)
    places = {"data": data, "results": results, "probabilities": probs, "page": page}

    def show() -> None:
        OUT.print("\nWhich method to use", style="bold")
        say(str(recommended))

    written = {"calibrators": [str(path) for path in fitted], **{name: str(path) for name, path in places.items()}}
    return Answer({**written, "recommendation": recommended.to_dict()}, show)


def _title(title: str, command: str) -> None:
    OUT.print(f"\n{title}", style="bold")
    OUT.print(f"$ {command}", style="dim", soft_wrap=True)
