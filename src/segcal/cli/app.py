"""The commands. Each reads folders, calls the library, and writes whole results or none."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from segcal.apply import apply_to_folder
from segcal.calibrators import Calibrator, load, methods
from segcal.calibrators.automatic import CANDIDATES
from segcal.cli import report as report_commands
from segcal.cli.console import (
    OUT,
    Group,
    ManyValues,
    Tracked,
    diagnosis_table,
    print_comparison,
    print_report,
    print_results,
    print_step,
    print_written,
    progress_of,
)
from segcal.cli.demo_story import choose_story, options_of, verdict
from segcal.cli.options import (
    AsJson,
    Background,
    BatchSize,
    Bins,
    Classes,
    Cosine,
    Crop,
    Data,
    Device,
    Epochs,
    Flips,
    Floor,
    Form,
    Ignore,
    Interval,
    LabelFolder,
    LearningRate,
    LogitsOnly,
    Page,
    Patches,
    PatchSize,
    PatchSizes,
    Patience,
    Precision,
    Reference,
    Scores,
    ShownCases,
    SignificanceTest,
    Split,
    ValidationSplit,
)
from segcal.cli.steps import (
    create_for,
    fit_shown,
    given,
    listed,
    load_all,
    open_at,
    protocol_of,
    scores_of,
    validation_of,
)
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.evaluation.compare import (
    PAPER,
    UNCALIBRATED,
    check_fit_settings,
    check_names,
    known_settings,
    look_through,
    measured,
    measured_fit,
)
from segcal.evaluation.diagnosis import diagnose, write_maps
from segcal.evaluation.results import Results, check_reference, check_test
from segcal.evaluation.run import evaluate
from segcal.files import refuse_foreign, refuse_overwriting
from segcal.integrations.calibrated_model import import_network
from segcal.integrations.onnx import export_onnx
from segcal.statistics import Test
from segcal.training.loop import is_first_process
from segcal.version import __version__

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Make the probabilities of semantic segmentation trustworthy, without changing a label.",
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"segcal {__version__}")
        raise typer.Exit


@app.command(cls=ManyValues)
def fit(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder to save the calibrator in.")],
    method: Annotated[str, typer.Option(help=f"One of: {', '.join(methods())}.")] = "ts",
    labels: LabelFolder = None,
    split: Split = None,
    validation: ValidationSplit = None,
    num_classes: Classes = None,
    ignore_index: Ignore = None,
    background: Background = None,
    scores: Scores = None,
    logits_only: LogitsOnly = False,
    preset: Annotated[str | None, typer.Option(help="lts, ibts: default, or paper for its schedule.")] = None,
    positivity: Annotated[str | None, typer.Option(help="lts, ibts: relu (paper), softplus or exp.")] = None,
    condition: Annotated[str | None, typer.Option(help="lts: a factor for each predicted class or confidence.")] = None,
    init: Annotated[str | None, typer.Option(help="lts, ibts: normal or zeros.")] = None,
    root_offset: Annotated[float | None, typer.Option(help="lts, ibts: 0 (paper) or 1 (released code).")] = None,
    features: Annotated[
        bool | None, typer.Option("--features/--no-features", help="cts: let the temperature follow the context.")
    ] = None,
    classes: Annotated[
        bool | None, typer.Option("--classes/--no-classes", help="cts: an offset for each predicted class.")
    ] = None,
    sharpen: Annotated[
        bool | None, typer.Option("--sharpen", help="cts: let pixels become surer than the network made them.")
    ] = None,
    bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="Least and largest temperature; 1 100 makes no pixel surer than it was."),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="cts: nll or nll+brier; ets: cross_entropy or squared_error.")
    ] = None,
    candidates: Annotated[
        list[str] | None, typer.Option(help=f"auto: methods to choose among, of {', '.join(CANDIDATES)}.")
    ] = None,
    epochs: Epochs = None,
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    patience: Patience = None,
    cosine: Cosine = None,
    crop: Crop = None,
    flips: Flips = None,
    precision: Precision = None,
    seed: Annotated[int | None, typer.Option(help="Learned methods: of everything random.")] = None,
    device: Device = None,
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
    refuse_overwriting(out, data, labels)
    folder = open_at(data, split, "fit", labels, num_classes, ignore_index, background, scores)
    calibrator = create_for(
        method,
        folder,
        logits_only,
        preset=preset,
        positivity=positivity,
        init=init,
        root_offset=root_offset,
        condition=condition,
        features=features,
        classes=classes,
        sharpen=sharpen,
        bounds=bounds,
        loss=loss,
        candidates=None if candidates is None else listed(candidates),
    )
    options = given(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        patience=patience,
        cosine=cosine,
        crop=crop,
        flips=flips,
        precision=precision,
        seed=seed,
        device=device,
        checkpoint=checkpoint,
    )
    checked = validation_of(data, validation, folder, labels, scores)
    fit_shown(calibrator, folder, checked, options)
    if not is_first_process():
        return
    calibrator.save(out)
    print_report(method, calibrator.fit_report_, out, as_json)


@app.command(cls=ManyValues)
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
    refuse_overwriting(out, calibrator, data)
    fitted = load(calibrator)
    folder = open_folder(
        data,
        split=split,
        num_classes=fitted.num_classes,
        ignore_index=fitted.ignore_index,
        scores=scores_of(scores),
        require_labels=False,
    )
    with progress_of("calibrating") as progress:
        written = apply_to_folder(
            fitted, Tracked(folder, progress), like=folder, out=out, dtype=dtype, maps=temperature
        )
    print_written(written, fitted, out, as_json)


@app.command("evaluate", cls=ManyValues)
def evaluate_command(
    data: Data,
    calibrators: Annotated[
        list[Path] | None, typer.Option(help="Folders of saved calibrators, to compare with the scores as they are.")
    ] = None,
    reference: Reference = None,
    test: SignificanceTest = "mann-whitney",
    out: Annotated[Path | None, typer.Option(help="Folder to save the results in.")] = None,
    page: Page = None,
    cases: ShownCases = None,
    labels: LabelFolder = None,
    split: Split = None,
    num_classes: Classes = None,
    ignore_index: Ignore = None,
    background: Background = None,
    scores: Scores = None,
    bins: Bins = 10,
    form: Form = "tables",
    patch_size: PatchSize = 72,
    patch_sizes: PatchSizes = None,
    patches: Patches = 10,
    interval: Interval = "percentile",
    floor: Floor = False,
    seed: Annotated[int, typer.Option(help="Of the patches, the bootstrap and the floor.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure calibration: the paper's table by region, mean(std), best in bold, significance.

    Uses the split "test" of splits.json where there is one, else all cases.

    Example: segcal evaluate DATA --calibrators ts/ --reference TS --out results/ --page page.html
    """
    refuse_overwriting(out, data, labels, *(calibrators or []))
    folder = open_at(data, split, "test", labels, num_classes, ignore_index, background, scores)
    compared: dict[str, Calibrator | None] = {UNCALIBRATED: None, **load_all(calibrators or [])}
    check_reference(reference, tuple(compared))  # now, not after an hour of measuring
    check_test(test)
    report_commands.check(folder, out, page, cases or ())
    protocol = protocol_of(folder, bins, form, patch_size, patch_sizes, patches, interval, floor, seed)
    with progress_of("measuring") as progress:
        results = evaluate(Tracked(folder, progress), compared, **protocol)
    table = results.table(reference=reference, test=cast(Test, test), floor=floor)
    report_commands.keep(results, folder, compared, out=out, page=page, cases=cases or ())
    print_results(results, table, out, as_json, page)


@app.command("compare", cls=ManyValues)
def compare_command(
    data: Data,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--methods", help=f"Of {', '.join(methods())}; {','.join(PAPER)} if not given."),
    ] = None,
    reference: Reference = None,
    test: SignificanceTest = "mann-whitney",
    out: Annotated[Path | None, typer.Option(help="Folder to save results and calibrators in.")] = None,
    page: Page = None,
    cases: ShownCases = None,
    labels: LabelFolder = None,
    fit_split: Annotated[str | None, typer.Option(help="Split to fit on; 'fit' where there is one.")] = None,
    validation: ValidationSplit = None,
    test_split: Annotated[str | None, typer.Option(help="Split to measure on; 'test' where there is one.")] = None,
    num_classes: Classes = None,
    ignore_index: Ignore = None,
    background: Background = None,
    scores: Scores = None,
    logits_only: LogitsOnly = False,
    epochs: Epochs = None,
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    patience: Patience = None,
    cosine: Cosine = None,
    crop: Crop = None,
    flips: Flips = None,
    precision: Precision = None,
    device: Device = None,
    bins: Bins = 10,
    form: Form = "tables",
    patch_size: PatchSize = 72,
    patch_sizes: PatchSizes = None,
    patches: Patches = 10,
    interval: Interval = "percentile",
    floor: Floor = False,
    seed: Annotated[int, typer.Option(help="Of training, patches, bootstrap and floor.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit several methods on the same images and measure them on the same others, with what each costs.

    Prints the paper's table, and parameters, seconds and memory of each fit and what it does to labels. A method that
    cannot be fitted to the data says so in its row, and the others go on.

    Example: segcal compare DATA --methods ts,lts,isotonic --reference lts --out results/ --page page.html
    """
    refuse_overwriting(out, data, labels)
    names = listed(chosen or PAPER)
    check_names(names)
    folder = open_at(data, fit_split, "fit", labels, num_classes, ignore_index, background, scores)
    tested = open_at(data, test_split, "test", labels, num_classes, ignore_index, background, scores)
    checked = validation_of(data, validation, folder, labels, scores)
    calibrators = {name.upper(): create_for(name, folder, logits_only) for name in names}
    against = None if reference is None else reference.upper()
    check_reference(against, (UNCALIBRATED, *calibrators))
    check_test(test)
    report_commands.check(tested, out, page, cases or ())
    wanted = given(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        patience=patience,
        cosine=cosine,
        crop=crop,
        flips=flips,
        precision=precision,
        device=device,
    )
    check_fit_settings(calibrators.values(), wanted)
    protocol = protocol_of(folder, bins, form, patch_size, patch_sizes, patches, interval, floor, seed)
    with progress_of("checking") as progress:
        look_through(Tracked(tested, progress), folder.num_classes, folder.ignore_index)
    fits = {}
    for name, calibrator in calibrators.items():
        settings = known_settings(calibrator, {**wanted, "seed": seed})
        fits[name] = measured_fit(calibrator, partial(fit_shown, calibrator, folder, checked, settings))
    if not is_first_process():
        return
    with progress_of("measuring") as progress:
        comparison = measured(fits, Tracked(tested, progress), **protocol)
    compared = {UNCALIBRATED: None, **comparison.calibrators}
    report_commands.keep(comparison, tested, compared, out=out, page=page, cases=cases or ())
    print_comparison(comparison, against, cast(Test, test), floor, out, as_json, page)


@app.command("table")
def table_command(
    results: report_commands.ResultsFolder,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write: .tex or .md for the table; .csv, .parquet or .json for all rows."),
    ] = None,
    reference: Reference = None,
    test: SignificanceTest = "mann-whitney",
    floor: Annotated[bool, typer.Option("--floor", help="Show the floors, if they were measured.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show saved results again, against another reference or by another test, and write them as one file.

    Example: segcal table results/ --reference LTS --out table.tex
    """
    found = Results.load(results)
    table = found.table(reference, test=cast(Test, test), floor=floor)
    if out is not None:
        refuse_overwriting(out, results)
        found.export(out, reference, test=cast(Test, test), floor=floor)
    print_results(found, table, out, as_json)


report_commands.register(app)  # here, so that help lists them after table


@app.command("diagnose", cls=ManyValues)
def diagnose_command(
    data: Data,
    labels: LabelFolder = None,
    split: Split = None,
    num_classes: Classes = None,
    ignore_index: Ignore = None,
    background: Background = None,
    scores: Scores = None,
    maps: Annotated[
        Path | None, typer.Option(help="Folder for a map of each case: NLL minus entropy, above 0 if overconfident.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the scores are over-, under- or balanced in confidence: data set, each image, each pixel.

    Example: segcal diagnose DATA --maps maps/
    """
    refuse_overwriting(maps, data, labels)
    folder = open_at(data, split, None, labels, num_classes, ignore_index, background, scores)
    with progress_of("diagnosing") as progress:
        found = diagnose(
            Tracked(folder, progress),
            num_classes=folder.num_classes,
            ignore_index=folder.ignore_index,
            background=folder.background,
        )
        if maps is not None:
            write_maps(Tracked(folder, progress), like=folder, out=maps)
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
        return
    OUT.print(diagnosis_table(found))
    OUT.print(found.advice(), highlight=False)
    if maps is not None:
        OUT.print(f"maps in {maps}", highlight=False)


@app.command("export", cls=ManyValues)
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
        network=None if network is None else import_network(network),
        image_channels=image_channels,
        size=size or None,
    )
    if as_json:
        typer.echo(json.dumps({"out": str(out), "difference": worst}))
    else:
        OUT.print(f"written to {out}; differs from PyTorch by at most {worst:.1e}", highlight=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the sample data and the results.")] = Path("demo"),
) -> None:
    """Diagnose, fit, measure and apply on sample data, offline, and write a page with the results.

    Example: segcal demo
    """
    story = choose_story()
    if story.note is not None:
        OUT.print(f"{story.note}. Until then, the demo shows simulated scenes.", highlight=False, markup=False)
    data, probs, results, page = (out / name for name in ("data", "probs", "results", "page.html"))
    print_step(f"1. A folder of scores, labels and images ({story.title})", f"ls {data}")
    write_folder(data, story.splits, class_names=story.class_names, background=story.background)
    print_step("2. Is the network over- or underconfident?", f"segcal diagnose {data} --split fit")
    diagnose_command(data, split="fit")
    titles = {"ts": "One temperature", "ibts": "One for each image", "lts": "One for each pixel", "cts": "By context"}
    for method, settings in story.fits.items():
        command = f"segcal fit {data} --method {method}{options_of(settings)} --out {out / method}"
        print_step(f"3. {titles[method]}: {method.upper()}", command)
        fit(data, out=out / method, method=method, **settings)
    fitted = [out / method for method in story.fits]
    sizes = " ".join(map(str, story.patch_sizes))
    print_step(
        "4. Measure, in the whole image, near boundaries and in local patches",
        f"segcal evaluate {data} --calibrators {' '.join(map(str, fitted))} --reference LTS "
        f"--patch-size {story.patch_size} --patch-sizes {sizes} --out {results}",
    )
    size, further = story.patch_size, list(story.patch_sizes)
    evaluate_command(data, calibrators=fitted, reference="LTS", patch_size=size, patch_sizes=further, out=results)
    OUT.print(verdict(Results.load(results)), highlight=False)
    print_step(
        "5. Write calibrated probabilities and temperature maps",
        f"segcal apply {out / 'lts'} {data} --split test --temperature --out {probs}",
    )
    apply(out / "lts", data, out=probs, split="test", temperature=True)
    print_step("6. A page that opens in any browser", f"segcal report {results} --out {page}")
    report_commands.report(results, page)


def main() -> None:
    """The entry point."""
    app()
