"""The commands. Each reads folders, calls the library, and writes whole results or none."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn
from typer.core import TyperCommand, TyperGroup

from segcal.apply import apply_to_folder
from segcal.calibrators import Calibrator, FitReport, create, load, methods
from segcal.data.folder import Folder, open_folder
from segcal.data.simulate import load_sample
from segcal.data.writer import write_folder
from segcal.diagnosis import Diagnosis, diagnose
from segcal.evaluate import evaluate
from segcal.export import export_onnx
from segcal.files import refuse_foreign
from segcal.results import Results
from segcal.training import is_first_process, progress_bar
from segcal.types import Case, InputError
from segcal.version import __version__


class _Group(TyperGroup):
    """Turn bad input into one sentence and exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(f"segcal: {error}", err=True)
        except OSError as error:
            typer.echo(
                f"segcal: {error.strerror or error} ('{error.filename}'); check the path and its rights", err=True
            )
        raise typer.Exit(2)


class _ManyValues(TyperCommand):
    """Let an option that may be repeated take several values at once: `--calibrators a b` for two options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeatable = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, list(_expand(args, repeatable)))


def _expand(args: Sequence[str], repeatable: set[str]) -> Iterator[str]:
    current, used = None, False
    for arg in args:
        if arg.startswith("-") and not _is_number(arg):
            current, used = (arg, False) if arg in repeatable else (None, False)
        elif current is not None:
            if used:
                yield current
            used = True
        yield arg


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Make the probabilities of semantic segmentation trustworthy, without changing a label.",
)
_out = Console()
_err = Console(stderr=True)

Data = Annotated[Path, typer.Argument(help="Folder with logits/ and labels/, or nnU-Net predictions.")]
LabelFolder = Annotated[Path | None, typer.Option("--labels", help="Folder of the true labels, if not DATA/labels.")]
Split = Annotated[str | None, typer.Option(help="Only the cases that splits.json lists under this name.")]
Classes = Annotated[int | None, typer.Option("--num-classes", help="Number of classes, if segcal.toml does not say.")]
Ignore = Annotated[list[int] | None, typer.Option("--ignore-index", help="Label(s) left out everywhere.")]
Background = Annotated[int | None, typer.Option(help="Class outside the region All.")]
Scores = Annotated[str | None, typer.Option(help="What the files hold: logits or probabilities.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"segcal {__version__}")
        raise typer.Exit


@app.command(cls=_ManyValues)
def fit(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder to save the calibrator in.")],
    method: Annotated[str, typer.Option(help=f"One of: {', '.join(methods())}.")] = "ts",
    labels: LabelFolder = None,
    split: Split = None,
    validation: Annotated[
        str | None, typer.Option(help="Split that the best weights are chosen on; 'validation' where there is one.")
    ] = None,
    num_classes: Classes = None,
    ignore_index: Ignore = None,
    background: Background = None,
    scores: Scores = None,
    logits_only: Annotated[bool, typer.Option("--logits-only", help="Do not look at the images.")] = False,
    preset: Annotated[str | None, typer.Option(help="lts, ibts: default, or paper for its schedule.")] = None,
    positivity: Annotated[str | None, typer.Option(help="lts, ibts: relu (paper), softplus or exp.")] = None,
    init: Annotated[str | None, typer.Option(help="lts, ibts: normal or zeros.")] = None,
    root_offset: Annotated[float | None, typer.Option(help="lts, ibts: 0 (paper) or 1 (released code).")] = None,
    epochs: Annotated[int | None, typer.Option(help="Learned methods: passes over the data.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learned methods: of Adam.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Learned methods: images in a step.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Learned methods: stop after so many epochs without gain.")
    ] = None,
    crop: Annotated[int | None, typer.Option(help="Learned methods: side of random crops.")] = None,
    flips: Annotated[bool | None, typer.Option("--flips", help="Learned methods: random flips.")] = None,
    precision: Annotated[str | None, typer.Option(help="Learned methods: float32 or bfloat16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Learned methods: of everything random.")] = None,
    device: Annotated[str | None, typer.Option(help="Learned methods: auto, cpu, cuda.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Learned methods: folder to resume from if interrupted.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a calibrator on a folder of scores and labels, and save it.

    Uses the split "fit" of splits.json where there is one, else all cases. Under torchrun, data-parallel.

    Example: segcal fit DATA --method lts --out lts/
    """
    refuse_foreign(out)
    _refuse_overwriting(out, data, labels)
    folder = _open(data, split, "fit", labels, num_classes, ignore_index, background, scores)
    calibrator = _create(
        method, folder, logits_only, preset=preset, positivity=positivity, init=init, root_offset=root_offset
    )
    options = _given(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        patience=patience,
        crop=crop,
        flips=flips,
        precision=precision,
        seed=seed,
        device=device,
        checkpoint=checkpoint,
    )
    checked = _validation(data, validation, folder, labels, scores)
    _fit(calibrator, folder, checked, options)
    if not is_first_process():
        return
    calibrator.save(out)
    _print_report(method, calibrator.fit_report_, out, as_json)


@app.command(cls=_ManyValues)
def apply(
    calibrator: Annotated[Path, typer.Argument(help="Folder of a saved calibrator.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder to write the probabilities in.")],
    temperature: Annotated[bool, typer.Option("--temperature", help="Write temperature maps too.")] = False,
    dtype: Annotated[str, typer.Option(help="Precision of the files: float32 or float16.")] = "float32",
    split: Split = None,
    scores: Scores = None,
    as_json: AsJson = False,
) -> None:
    """Write calibrated probabilities of every case; the predicted labels are checked to be what they were.

    Labels are not needed. NIfTI and nnU-Net files are written in the form in which they were read.

    Example: segcal apply ts/ DATA --out probs/
    """
    _refuse_overwriting(out, calibrator, data)
    fitted = load(calibrator)
    folder = open_folder(
        data, split=split, num_classes=fitted.num_classes, scores=_scores(scores), require_labels=False
    )
    with _progress("calibrating") as progress:
        written = apply_to_folder(
            fitted, _Tracked(folder, progress), like=folder, out=out, dtype=dtype, maps=temperature
        )
    if as_json:
        typer.echo(json.dumps({"out": str(out), **written}))
    else:
        kept = "every predicted label kept" if fitted.preserves_labels else f"{written['changed']:,} labels changed"
        _out.print(f"{written['cases']} cases, {written['pixels']:,} pixels, {kept}; written to {out}", highlight=False)


@app.command("evaluate", cls=_ManyValues)
def evaluate_command(
    data: Data,
    calibrators: Annotated[
        list[Path] | None, typer.Option(help="Folders of saved calibrators, to compare with the scores as they are.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Method that the others are tested against.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to save the results in.")] = None,
    labels: LabelFolder = None,
    split: Split = None,
    num_classes: Classes = None,
    ignore_index: Ignore = None,
    background: Background = None,
    scores: Scores = None,
    bins: Annotated[int, typer.Option(help="Number of bins.")] = 10,
    form: Annotated[str, typer.Option(help="Of SCE and ACE: tables, equations or marginal.")] = "tables",
    patch_size: Annotated[int, typer.Option(help="Side of the Local patches.")] = 72,
    patches: Annotated[int, typer.Option(help="Local patches in each image.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the patches and of the bootstrap.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure calibration: the paper's table by region, mean(std), best in bold, significance.

    Uses the split "test" of splits.json where there is one, else all cases.

    Example: segcal evaluate DATA --calibrators ts/ --reference TS --out results/
    """
    _refuse_overwriting(out, data, labels, *(calibrators or []))
    folder = _open(data, split, "test", labels, num_classes, ignore_index, background, scores)
    compared: dict[str, Calibrator | None] = {"UC": None, **_load_all(calibrators or [])}
    with _progress("measuring") as progress:
        results = evaluate(
            _Tracked(folder, progress),
            compared,
            num_classes=folder.num_classes,
            ignore_index=folder.ignore_index,
            background=folder.background,
            bins=bins,
            form=form,
            patch_size=patch_size,
            patches=patches,
            seed=seed,
        )
    table = results.table(reference=reference)
    if out is not None:
        results.save(out)
    for warning in results.settings["warnings"]:
        _err.print(f"warning: {warning}", style="yellow", highlight=False)
    if as_json:
        typer.echo(json.dumps(_results_json(results)))
        return
    _out.print(table)
    _print_pooled(results)
    if skipped := {name: count for name, count in results.skipped().items() if count}:
        counts = ", ".join(f"{count} {name}" for name, count in skipped.items())
        _out.print(f"left out for want of pixels: {counts}", style="dim", highlight=False)
    if out is not None:
        _out.print(f"saved in {out}", highlight=False)


@app.command("diagnose", cls=_ManyValues)
def diagnose_command(
    data: Data,
    labels: LabelFolder = None,
    split: Split = None,
    num_classes: Classes = None,
    ignore_index: Ignore = None,
    background: Background = None,
    scores: Scores = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the scores are over-, under- or balanced in confidence: data set, each image, share of pixels.

    Example: segcal diagnose DATA
    """
    folder = _open(data, split, None, labels, num_classes, ignore_index, background, scores)
    with _progress("diagnosing") as progress:
        found = diagnose(
            _Tracked(folder, progress),
            num_classes=folder.num_classes,
            ignore_index=folder.ignore_index,
            background=folder.background,
        )
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
        return
    _out.print(_diagnosis_table(found))
    _out.print(found.advice(), highlight=False)


@app.command("export")
def export_command(
    calibrator: Annotated[Path, typer.Argument(help="Folder of a saved calibrator.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    network: Annotated[
        str | None, typer.Option(help="Put this network first: MODULE:FUNCTION that returns an nn.Module.")
    ] = None,
    image_channels: Annotated[int | None, typer.Option(help="Channels of the network's input.")] = None,
    size: Annotated[list[int] | None, typer.Option(help="Spatial size to check with; others work too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write an ONNX file from logits (or, with a network, from images) to calibrated probabilities.

    The file is kept only if onnxruntime agrees with PyTorch, at a size other than the one it was made with.

    Example: segcal export lts/ --out lts.onnx
    """
    worst = export_onnx(
        load(calibrator),
        out,
        network=None if network is None else _import_network(network),
        image_channels=image_channels,
        size=size or None,
    )
    if as_json:
        typer.echo(json.dumps({"out": str(out), "difference": worst}))
    else:
        _out.print(f"written to {out}; differs from PyTorch by at most {worst:.1e}", highlight=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the sample data and the results.")] = Path("demo"),
) -> None:
    """The whole story on sample data, offline: measure, diagnose, fit, apply, measure again.

    Example: segcal demo
    """
    sample = load_sample()
    data, saved = out / "data", out / "ts"
    _step("1. A folder of scores, labels and images (simulated scenes)", f"ls {data}")
    write_folder(data, sample, class_names=("field", "road", "water", "forest", "town"))
    _step("2. Is the network over- or underconfident?", f"segcal diagnose {data} --split fit")
    diagnose_command(data, split="fit")
    _step("3. Fit temperature scaling", f"segcal fit {data} --method ts --out {saved}")
    fit(data, out=saved, method="ts")
    _step("4. Write calibrated probabilities", f"segcal apply {saved} {data} --split test --out {out / 'probs'}")
    apply(saved, data, out=out / "probs", split="test")
    _step(
        "5. Measure, in the whole image, near boundaries and in local patches",
        f"segcal evaluate {data} --calibrators {saved} --reference TS --patch-size 24 --out {out / 'results'}",
    )
    evaluate_command(data, calibrators=[saved], reference="TS", patch_size=24, out=out / "results")
    _out.print(
        "\nOne temperature mends the whole image; Local-Max shows the patches where it does not.", highlight=False
    )


def main() -> None:
    """The entry point."""
    app()


class _Tracked(Sequence[Case]):
    """A folder that moves a progress bar each time it hands out a case; every pass over the data is a new bar."""

    def __init__(self, folder: Folder, progress: Progress) -> None:
        self.folder, self.progress = folder, progress

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: Any) -> Any:
        return self.folder[index]

    def __iter__(self) -> Iterator[Case]:
        task = self.progress.task_ids[-1]
        self.progress.reset(task, total=len(self.folder))
        for case in self.folder:
            yield case
            self.progress.advance(task)


def _progress(what: str) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # elsewhere than in a terminal even an empty bar leaves a blank line, and errors are one line
    progress = Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal)
    progress.add_task(what, total=None)
    return progress


def _open(
    data: Path,
    split: str | None,
    preferred: str | None,
    labels: Path | None,
    num_classes: int | None,
    ignore_index: Sequence[int] | None,
    background: int | None,
    scores: str | None,
) -> Folder:
    """Open a folder at the split asked for, else at the preferred one where it exists."""
    folder = open_folder(
        data,
        labels=labels,
        split=split,
        num_classes=num_classes,
        ignore_index=ignore_index or None,
        background=background,
        scores=_scores(scores),
    )
    return folder.select(preferred) if split is None and preferred in folder.splits else folder


def _refuse_overwriting(out: Path | None, *inputs: Path | None) -> None:
    """Raise if `out` is, or holds, what the command reads: folders that segcal wrote are replaced without asking."""
    for path in inputs:
        if out is not None and path is not None and path.resolve().is_relative_to(out.resolve()):
            raise InputError(f"'{out}' cannot be written to, as '{path}' is read from; choose another output folder")


def _scores(text: str | None) -> Literal["logits", "probabilities"] | None:
    if text not in (None, "logits", "probabilities"):
        raise InputError(f"--scores must be logits or probabilities, got '{text}'")
    return text  # type: ignore[return-value]


def _create(method: str, folder: Folder, logits_only: bool = False, **options: Any) -> Calibrator:
    return create(
        method,
        num_classes=folder.num_classes,
        spatial_dims=folder.spatial_dims,
        image_channels=0 if logits_only else folder.image_channels,
        ignore_index=folder.ignore_index,
        background=folder.background,
        **_given(**options),
    )


def _fit(calibrator: Calibrator, folder: Folder, validation: Folder | None, options: dict[str, Any]) -> None:
    """Fit with a progress bar: of epochs for methods that are trained, of cases for the others."""
    known = inspect.signature(calibrator.fit).parameters
    if unknown := [name for name in options if name not in known]:
        raise InputError(
            f"'{calibrator.method}' is not trained and has no --{unknown[0].replace('_', '-')}; leave it out"
        )
    if "watch" in known:
        with progress_bar(description=f"training {calibrator.method}") as watch:
            calibrator.fit(folder, validation=validation, watch=watch, **options)  # type: ignore[call-arg]
    else:
        with _progress(f"fitting {calibrator.method}") as progress:
            calibrator.fit(_Tracked(folder, progress), validation=validation)


def _validation(
    data: Path, split: str | None, folder: Folder, labels: Path | None, scores: str | None
) -> Folder | None:
    """The cases that the best weights are chosen on, if there are any."""
    if split is None and "validation" not in folder.splits:
        return None
    return open_folder(
        data,
        labels=labels,
        split=split or "validation",
        num_classes=folder.num_classes,
        ignore_index=folder.ignore_index,
        background=folder.background,
        scores=_scores(scores),
    )


def _import_network(text: str) -> nn.Module:
    """The network that MODULE:FUNCTION returns; modules of the working folder are found too."""
    module, _, function = text.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        network = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"--network must be MODULE:FUNCTION that returns a network, got '{text}' ({error})") from error
    finally:
        sys.path.pop(0)
    if not isinstance(network, nn.Module):
        raise InputError(f"--network must return an nn.Module, got {type(network).__name__} from '{text}'")
    return network


def _given(**options: Any) -> dict[str, Any]:
    """The options that were set."""
    return {name: value for name, value in options.items() if value is not None}


def _print_report(method: str, report: FitReport, out: Path, as_json: bool) -> None:
    if as_json:
        content = {"method": method, "out": str(out), **{k: v for k, v in vars(report).items() if k != "names"}}
        typer.echo(json.dumps(content))
        return
    _out.print(
        f"{method}: NLL {report.nll_before:.4f} -> {report.nll_after:.4f} on {report.cases} cases "
        f"({report.pixels:,} pixels), {report.steps} steps, {report.seconds:.1f} s",
        highlight=False,
    )
    for name, value in report.details.items():
        _out.print(f"  {name}: {value:.5g}" if isinstance(value, float) else f"  {name}: {value}", highlight=False)
    for warning in report.warnings:
        _err.print(f"warning: {warning}", style="yellow", highlight=False)
    _out.print(f"saved in {out}", highlight=False)


def _load_all(paths: Sequence[Path]) -> dict[str, Calibrator]:
    """Calibrators by method, or by folder where two have the same method."""
    loaded = [(path, load(path)) for path in paths]
    kinds = [calibrator.method.upper() for _, calibrator in loaded]
    names = [
        kind if kinds.count(kind) == 1 else path.resolve().name for (path, _), kind in zip(loaded, kinds, strict=True)
    ]
    if len(set(names)) < len(names):
        raise InputError(f"calibrators must have different names, got {', '.join(names)}; rename a folder")
    return {name: calibrator for name, (_, calibrator) in zip(names, loaded, strict=True)}


def _results_json(results: Results) -> dict[str, Any]:
    def rows(frame: Any) -> list[dict[str, Any]]:
        return json.loads(frame.to_json(orient="records", double_precision=15))  # type: ignore[no-any-return]

    return {
        "settings": dict(results.settings),
        "skipped": results.skipped(),
        "images": rows(results.to_frame()),
        "pooled": rows(results.pooled()),
    }


def _print_pooled(results: Results) -> None:
    pooled = results.pooled()
    shown = pooled[pooled.metric.isin(["ece", "sce", "nll", "brier"])]
    table = Table(
        title="all pixels together, with 95 % bootstrap intervals over images", title_justify="left", box=None
    )
    for column in ("method", "region", *shown.metric.unique()):
        table.add_column(column, justify="left" if column in ("method", "region") else "right")
    for (method, region), rows in shown.groupby(["method", "region"], sort=False):
        table.add_row(
            str(method), str(region), *(f"{r.value:.4f} [{r.low:.4f}, {r.high:.4f}]" for r in rows.itertuples())
        )
    _out.print(table)


def _diagnosis_table(found: Diagnosis) -> Table:
    table = Table(box=None)
    headings = ("image", "state", "NLL", "entropy", "best T", "overconfident", "underconfident")
    for k, heading in enumerate(headings):
        table.add_column(heading, justify="left" if k < 2 else "right")
    shown = sorted(found.images, key=lambda image: -abs(np.nan_to_num(image.nll - image.entropy)))
    for finding in (found.dataset, *shown[:20]):
        table.add_row(
            finding.name,
            finding.state if finding.pixels else "no pixels",
            f"{finding.nll:.4f}",
            f"{finding.entropy:.4f}",
            f"{finding.temperature:.3f}",
            f"{finding.overconfident_share:.1%}",
            f"{finding.underconfident_share:.1%}",
        )
    if len(shown) > 20:
        table.add_row(f"... {len(shown) - 20} more (--json shows all)")
    return table


def _step(title: str, command: str) -> None:
    _out.print(f"\n[bold]{title}[/bold]\n[dim]$ {command}[/dim]", highlight=False)
