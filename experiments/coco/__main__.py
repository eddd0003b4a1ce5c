"""Scores of a network on COCO or VOC, then every method of the table on them.

python -m experiments.coco predict --coco COCO --network torchvision:fcn_resnet101 --out scores/coco
python -m experiments.coco measure --data scores/coco --images COCO/val2017 --out results/coco
python -m experiments.coco archive --out results/coco --name coco    # keeps what the tables are made from
python -m experiments.coco table                                     # prints the published tables
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image

from experiments import archive as archives
from experiments.beside_paper import AS_PRINTED, markdown, pooled
from experiments.coco.networks import load_network
from experiments.command import check_unchanged, given, parser_of, status_of, versions
from experiments.datasets.coarse import CoarseFolder, open_coarse
from experiments.datasets.coco import SIZES, Coco, open_coco
from experiments.datasets.splits import shuffled_parts
from experiments.datasets.voc import BACKGROUND, CLASSES, VOID, Voc, open_voc
from experiments.fitting import LEARNED, NAMES, count_changes, fit_methods
from segcal import Results, evaluate
from segcal.calibrators import Calibrator
from segcal.calibrators.local import Preset
from segcal.evaluation.protocol import PatchRule
from segcal.files import read_json, staged_file, write_json
from segcal.integrations.calibrate import CalibratedModel
from segcal.statistics import TESTS, Test
from segcal.training.processes import choose_device
from segcal.types import InputError

MEASURED = Path(__file__).with_name("measured")
"""Folder of the published measurements: one archive per run."""

_ABOUT: dict[str, Any] = {"num_classes": len(CLASSES), "ignore_index": VOID, "background": BACKGROUND}


def main(arguments: list[str] | None = None) -> int:
    """Do the stage asked for."""
    options = _parser().parse_args(arguments)
    stage = {"predict": predict, "measure": measure, "archive": archive, "table": table}[options.stage]
    return status_of(lambda: stage(options))


def archive(options: argparse.Namespace) -> None:
    """Keep what the tables of a run are made from beside the experiment."""
    if options.name is None:
        raise InputError("give the name of the archive with --name")
    MEASURED.mkdir(exist_ok=True)
    archives.pack(given(options.out, "--out"), MEASURED / f"{options.name}.zip")


def table(options: argparse.Namespace) -> None:
    """Print the tables of a run, or without --out of every archive."""
    if options.out is not None:
        print(tables_of(options.out, options.beside, options.test))
    else:
        print(published(options.test))


def published(test: Test = "wilcoxon") -> str:
    """Return the tables of every archive as Markdown."""
    parts = []
    for path in sorted(MEASURED.glob("*.zip"), key=lambda path: path.stem):
        with TemporaryDirectory() as folder:
            archives.unpack(path, Path(folder) / "run")
            parts += [f"## {path.stem}", tables_of(Path(folder) / "run", None, test)]
    return "\n\n".join(parts)


def tables_of(out: Path, beside: str | None = None, test: Test = "wilcoxon") -> str:
    """Return the tables of a run as Markdown."""
    results, report = Results.load(out / "results"), read_json(out / "report.json")
    reference = next((name for name in ("LTS", "LTS" + AS_PRINTED) if name in results.methods), None)
    changed = {name: (count, pixels) for name, (count, pixels) in report["changed"].items() if count}
    told = "; ".join(f"{name} {count:,} of {pixels:,}" for name, (count, pixels) in changed.items())
    parts = [markdown(results, reference=reference, experiment=beside, test=test)]
    parts += ["Over all pixels together:", pooled(results), f"Labels changed: {told or 'none'}."]
    return "\n\n".join(parts)


def predict(options: argparse.Namespace) -> None:
    """Write the coarse logits and the labels of every picture; one that is there already is not computed again."""
    if (options.coco is None) == (options.voc is None):
        raise InputError("give the folder of COCO with --coco or that of VOC with --voc, one of them")
    if options.network is None:
        raise InputError("give the network with --network, such as torchvision:fcn_resnet101")
    data: Coco | Voc = open_coco(options.coco) if options.coco else open_voc(options.voc)
    out, device = given(options.out, "--out"), choose_device(options.device)
    network = load_network(options.network, options.weights).to(device)
    _keep_network(out, {"network": options.network, "weights": options.weights})
    for part in ("logits", "labels"):
        (out / part).mkdir(parents=True, exist_ok=True)
    for name in data.names[: options.limit]:
        target = out / "logits" / f"{name}.npy"
        if target.exists():
            continue
        image = torch.from_numpy(data.image(name)).to(device).unsqueeze(0)
        with torch.no_grad():
            logits = network.coarse(image)[0].half().cpu().numpy()
        Image.fromarray(data.labels(name)).save(out / "labels" / f"{name}.png")
        with staged_file(target) as file:  # last: its presence says that the picture is done
            np.save(file, logits)
    print(f"the scores of {len(data.names[: options.limit])} pictures are in '{out}'")


def _keep_network(out: Path, mine: dict[str, str | None]) -> None:
    """Note whose scores a folder holds, and refuse to put those of another network beside them."""
    file = out / "network.json"
    if file.exists():
        check_unchanged(out, read_json(file), mine)
        return
    if any((out / "logits").glob("*")):
        raise InputError(f"'{out}' holds scores of a network that it does not name; give another --out")
    with staged_file(file) as target:
        write_json(target, mine)


def measure(options: argparse.Namespace) -> None:
    """Fit every method on one part of the cases, choose by a second, measure on a third, and print the table."""
    out, cases = given(options.out, "--out"), open_coarse(given(options.data, "--data"), images=options.images)
    names = shuffled_parts(cases.names, options.sizes, seed=options.seed)
    fit, check, test = (cases.subset(part) for part in names)
    training = {"crop": options.crop, "seed": options.seed, "cache_bytes": 4 << 30}
    epochs = dict(zip(options.preset, (options.epochs or [None]) * len(options.preset), strict=False))
    device, timings, fitted = str(choose_device(options.device)), dict[str, float](), dict[str, Calibrator]()
    for preset in options.preset:
        own = dict[str, float]()
        found = fit_methods(
            [name for name in options.methods if name in LEARNED or preset == options.preset[0]],
            fit,
            check,
            about={**_ABOUT, "spatial_dims": 2, "image_channels": 3},
            training={**training, "epochs": epochs[preset]},
            rates=(None,) if preset == "paper" else options.learning_rate,
            preset=preset,
            device=device,
            timings=own,
        )
        suffix = {NAMES[name]: AS_PRINTED * (preset == "paper") for name in LEARNED}
        fitted |= {name + suffix.get(name, ""): calibrator for name, calibrator in found.items()}
        timings |= {stage + suffix.get(stage.removeprefix("fit "), ""): seconds for stage, seconds in own.items()}
    started = perf_counter()
    results = evaluate(test, {"UC": None, **fitted}, **_ABOUT, seed=options.seed, patch_rule=options.patch_rule)
    results.save(out / "results")
    timings["evaluate"] = perf_counter() - started
    changed = count_changes(test, fitted)
    reports = {name: asdict(calibrator.fit_report_) for name, calibrator in fitted.items()}
    facts = {name: getattr(options, name) for name in ("sizes", "seed", "preset")}
    facts |= {"training": training, "epochs": epochs, "rates": options.learning_rate}
    for name, calibrator in fitted.items():
        calibrator.save(out / "calibrators" / name)
    parts = {"fit": names[0], "validation": names[1], "test": names[2]}
    content = {**facts, **parts, "changed": changed, "seconds": timings, "fits": reports, **versions()}
    with staged_file(out / "report.json") as file:
        write_json(file, content)
    print(tables_of(out, options.beside, options.test))
    if options.network and "LTS" in fitted:
        _check_deployed(CalibratedModel(load_network(options.network, options.weights), fitted["LTS"].cpu()), test)


def _check_deployed(model: CalibratedModel, cases: CoarseFolder) -> None:
    """From picture to calibrated probability in one module: the labels must be those of the network alone."""
    for case in cases[:3]:
        image = torch.as_tensor(case.image).unsqueeze(0)
        with torch.no_grad():
            kept = bool((model(image).argmax(1) == model.logits(image).argmax(1)).all())
        print(f"{case.name}: the calibrated model keeps every label of the network: {kept}")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("coco", __doc__)
    parser.add_argument("stage", choices=("predict", "measure", "archive", "table"))
    parser.add_argument("--out", type=Path, help="folder of the scores (predict) or results (others)")
    parser.add_argument("--name", help="archive: name of the archive")
    parser.add_argument("--network", help="torchvision:NAME, transformers:NAME or MODULE:FUNCTION")
    parser.add_argument("--weights", help="file of the network's weights, instead of the library's own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--coco", help="predict: folder that holds val2017 and annotations")
    parser.add_argument("--voc", help="predict: folder VOC2012 that holds JPEGImages, SegmentationClass and ImageSets")
    parser.add_argument("--limit", type=int, help="predict: only the first pictures")
    parser.add_argument("--data", type=Path, help="measure: folder that holds logits, labels and images")
    parser.add_argument("--images", help="measure: folder of the pictures, if they are elsewhere")
    parser.add_argument("--sizes", type=int, nargs=3, default=SIZES, help="measure: pictures to fit, choose, measure")
    parser.add_argument("--methods", nargs="+", choices=tuple(NAMES), default=tuple(NAMES))
    parser.add_argument(
        "--epochs",
        type=int,
        nargs="+",
        help="measure: of IBTS and LTS, instead of the preset's; one number for each preset, or one for all",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        nargs="+",
        default=(1e-4, 1e-3),
        help="measure: tried with the default preset; the best on the validation images is kept",
    )
    parser.add_argument(
        "--preset",
        nargs="+",
        choices=get_args(Preset),
        default=["default"],
        help="measure: form of IBTS and LTS; each has a row for each",
    )
    parser.add_argument("--crop", type=int, help="measure: train IBTS and LTS on random crops of this side")
    parser.add_argument(
        "--patch-rule",
        choices=get_args(PatchRule),
        default="labelled",
        help="measure: which Local patches count; paper: all with a pixel in All",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", choices=tuple(TESTS), default="wilcoxon", help="test of significance of the tables")
    parser.add_argument("--beside", choices=("coco",), help="measure: print the paper's numbers beside")
    return parser


if __name__ == "__main__":
    sys.exit(main())
