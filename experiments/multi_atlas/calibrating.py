"""Stage `calibrate`: within each fold, fit on one half of the test targets, test on the other, and exchange them.

With 17 atlases, 3 validation and 20 test targets these are the paper's 170/51/170 pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from experiments.beside_paper import AS_PRINTED
from experiments.fitting import on_device
from experiments.multi_atlas.learning import fold_folder, read_logits, read_warps
from experiments.multi_atlas.presets import Fold, Preset
from experiments.multi_atlas.volumes import reader
from segcal.calibrators import Calibrator, create, load
from segcal.evaluation.results import Results
from segcal.evaluation.run import evaluate
from segcal.files import MARKER
from segcal.functional.geometry import boundary, foreground
from segcal.types import Array, Case, Labels, Mask

METHODS = {
    "ts": "TS",
    "ibts": "IBTS",
    "lts": "LTS",
    "ibts-paper": f"IBTS{AS_PRINTED}",
    "lts-paper": f"LTS{AS_PRINTED}",
    "cts": "CTS",
}
"""Methods by folder, and their titles. IBTS and LTS are fitted with segcal's settings and with `preset="paper"`."""
OUTSIDE = 255
"""Label of the voxels outside *All*, where nothing is fitted or measured."""
OUTLINE = "outline"
"""*Boundary* of the anatomical labels: that of the network's own labels is sparse and thin (appendix)."""
_PAPER = "-paper"
_TRAINED = ("ibts", "lts")


def calibrate(out: Path, fold: Fold, preset: Preset, *, device: str) -> None:
    """Fit every method on each half and measure it on the other, unless that is done."""
    for half, (fit, test) in enumerate(fold.halves):
        folder = fold_folder(out, fold) / f"half-{half}"
        todo = [method for method in METHODS if not (folder / method / MARKER).exists()]
        if todo:
            cases = [list(cases_of(out, fold, targets)) for targets in (fit, fold.validation)]
            _fit(todo, cases[0], cases[1], folder, preset, device)
        if preset.patch_size is not None and not (folder / "results" / MARKER).exists():
            started = perf_counter()
            _measure(out, fold, test, folder, preset.patch_size).save(folder / "results")
            print(f"fold {fold.number}, half {half}: measured in {perf_counter() - started:.0f} s", flush=True)


def cases_of(out: Path, fold: Fold, targets: Sequence[str]) -> Iterator[Case]:
    """The pairs of some targets as cases of two classes: the warped label is wrong (0) or right (1)."""
    read = reader(out)
    for target in targets:
        volume, logits = read(target), read_logits(out, fold, target)
        inside = anatomical_regions(volume.labels)["all"]
        for atlas, warp, own in zip(fold.atlases, read_warps(out, fold, target), logits, strict=True):
            right = np.where(inside, (warp.labels == volume.labels).astype(np.uint8), np.uint8(OUTSIDE))
            image = np.stack([volume.image, warp.image])
            yield Case(f"{target}-{atlas}", two_classes(own), right, image, volume.spacing, group=target)


def two_classes(logit: Array) -> Array:
    """Return one logit `[*S]` as the equivalent logits `[2, *S]` of two classes."""
    return np.stack([np.zeros_like(logit), logit])


def anatomical_regions(labels: Array) -> dict[str, Array]:
    """*All* and *Boundary* of the anatomical labels."""
    truth = torch.from_numpy(labels.astype(np.int64))[None]
    near = boundary(truth)
    return {"all": foreground(truth, background=0, near=near)[0].numpy(), "boundary": near[0].numpy()}


def fitted(folder: Path) -> dict[str, Calibrator | None]:
    """The calibrators of one half by the table's names, and the uncalibrated network."""
    return {"UC": None, **{title: load(folder / method) for method, title in METHODS.items()}}


def _fit(
    wanted: Sequence[str], cases: Sequence[Case], check: Sequence[Case], folder: Path, preset: Preset, device: str
) -> None:
    place = "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
    about: dict[str, Any] = {"num_classes": 2, "spatial_dims": 3, "image_channels": 2, "ignore_index": OUTSIDE}
    # the crop bounds the memory of large volumes; smaller ones are taken whole
    training: dict[str, Any] = {"epochs": preset.local_epochs, "learning_rate": 1e-3, "cosine": True, "crop": 64}
    as_printed: dict[str, Any] = {"epochs": preset.paper_epochs, "crop": 64}
    for method in wanted:
        name, paper = method.removesuffix(_PAPER), method.endswith(_PAPER)
        started, learned = perf_counter(), name in _TRAINED
        home = place if learned else "cpu"
        form: dict[str, Any] = {"preset": "paper"} if paper else {}
        calibrator = create(name, **about, **form).to(home)
        arguments: dict[str, Any] = {}
        if learned:
            arguments = {"validation": on_device(check, home), "device": home, **(as_printed if paper else training)}
        calibrator.fit(on_device(cases, home), **arguments).to("cpu").save(folder / method)
        report = calibrator.fit_report_
        print(
            f"  {folder.parent.name} {folder.name} {METHODS[method]}: NLL {report.nll_before:.4f} -> "
            f"{report.nll_after:.4f} in {perf_counter() - started:.0f} s {' '.join(report.warnings)}",
            flush=True,
        )


def _measure(out: Path, fold: Fold, targets: Sequence[str], folder: Path, patch_size: int) -> Results:
    """The VoteNet+ rows of Table 1, one row for each pair."""
    read = reader(out)
    near: Mapping[str, Mask] = {
        target: torch.from_numpy(anatomical_regions(read(target).labels)["boundary"])[None] for target in targets
    }

    def outline(case: Case, labels: Labels) -> Mask:
        return near[str(case.group)].to(labels.device)

    return evaluate(
        cases_of(out, fold, targets),
        fitted(folder),
        num_classes=2,
        ignore_index=OUTSIDE,
        regions={OUTLINE: outline},
        patch_size=patch_size,
        class_names=("wrong", "right"),
    )
