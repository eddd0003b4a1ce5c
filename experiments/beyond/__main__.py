"""Run from the repository's root; results accumulate, and what is measured is not measured again.

python -m experiments.beyond run --voc DATA/voc --out results/beyond
python -m experiments.beyond run --camvid CamVid --logits results/camvid/fc-densenet103-ce-0 --out results/beyond
python -m experiments.beyond table --out results/beyond
python -m experiments.beyond table        # from the published measurements
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.beyond.archive import MEASURED, pack
from experiments.beyond.measure import measure
from experiments.beyond.methods import METHODS, Training
from experiments.beyond.processes import chosen_tasks, measure_in_processes
from experiments.beyond.table import gathered, print_tables
from segcal.types import InputError

SIZES = (2, 5, 10, 25, 50)


def main(arguments: list[str] | None = None) -> int:
    """Do the stage asked for."""
    options = _parser().parse_args(arguments)
    try:
        if options.stage == "table":
            print_tables(options.out)
        elif options.out is None:
            raise InputError("give the folder of the results with --out")
        elif options.stage == "archive":
            pack(gathered(options.out), MEASURED)
        else:
            _run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.voc is None and options.camvid is None:
        raise InputError("give the folder of VOC's scores with --voc or that of CamVid with --camvid")
    tasks, training = chosen_tasks(options), Training(options.epochs, options.crop, options.device)
    items = [
        (place, images, method)
        for place, task in enumerate(tasks)
        for images in sorted({min(size, len(task.fit)) for size in (*options.sizes, len(task.fit))}, reverse=True)
        for method in options.methods
    ]
    if options.processes == 1:
        for place, images, method in items:
            measure(tasks[place], images, method, options.out, training)
        return
    measure_in_processes(options, items, training)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m experiments.beyond", description=__doc__, formatter_class=raw)
    parser.add_argument("stage", choices=("run", "table", "archive"))
    parser.add_argument("--out", type=Path, help="folder of the results; without it, `table` prints the published ones")
    parser.add_argument("--voc", type=Path, help="folder that holds logits, labels and images")
    parser.add_argument("--camvid", type=Path, help="folder of CamVid's frames")
    parser.add_argument("--logits", type=Path, help="folder of a job of experiments.camvid")
    parser.add_argument("--data", nargs="+", help="only these: voc, camvid, camvid-0001TP, camvid-Seq05VD")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="images to fit on, beside all")
    parser.add_argument("--epochs", type=int, help="of LTS; 200 by default")
    parser.add_argument("--crop", type=int, help="train LTS on random crops of this side")
    parser.add_argument("--device", default=Training.device)
    parser.add_argument("--processes", type=int, default=1, help="fits and measurements at the same time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
