"""What several commands do once they run: open a folder, fit with a progress bar, save and show results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from segcal.calibrators import Calibrator, create, load
from segcal.calibrators.progress import fit_with_progress
from segcal.cli.console import Tracked, progress_of
from segcal.cli.options import FitOptions, FolderOptions, MeasureOptions, PageOptions
from segcal.data.folders.folder import Folder, open_folder
from segcal.evaluation.compare import Comparison
from segcal.evaluation.portraits import choose_cases, portray, save_portraits
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.files import check_output_file, refuse_foreign, refuse_overwriting, staged_folder
from segcal.report import write_page
from segcal.training.processes import choose_device
from segcal.types import Activation, InputError

__all__ = [
    "activation_named",
    "check_outputs",
    "create_for",
    "fit_with_progress",
    "keep",
    "load_all",
    "open_at",
    "protocol_of",
    "scores_of",
    "validation_of",
]


def open_at(data: Path, options: FolderOptions, split: str | None, preferred: str | None = None) -> Folder:
    """Open a folder at the split asked for, else at the preferred one if it exists."""
    folder = open_folder(
        data,
        labels=options.labels,
        split=split,
        num_classes=options.num_classes,
        ignore_index=options.ignore_index or None,
        background=options.background,
        scores=scores_of(options.scores),
        activation=activation_named(options.activation),
    )
    return folder.select(preferred) if split is None and preferred in folder.splits else folder


def scores_of(text: str | None) -> Literal["logits", "probabilities"] | None:
    """Return the option --scores; raise if it is neither of the two kinds."""
    if text not in (None, "logits", "probabilities"):
        raise InputError(f"--scores must be logits or probabilities, got '{text}'")
    return text  # type: ignore[return-value]


def activation_named(text: str | None) -> Activation | None:
    """Return the option --activation; raise if there is no such activation."""
    if text not in (None, "softmax", "sigmoid"):
        raise InputError(f"--activation must be softmax or sigmoid, got '{text}'")
    return text  # type: ignore[return-value]


def validation_of(data: Path, options: FolderOptions, split: str | None, folder: Folder) -> Folder | None:
    """Return the cases on which the best weights are chosen, if there are any."""
    if split is None and "validation" not in folder.splits:
        return None
    return open_at(data, options, split or "validation")


def create_for(method: str, folder: Folder, options: FitOptions, settings: Mapping[str, Any]) -> Calibrator:
    """Return an unfitted calibrator for the data of a folder, on the device where it is fitted."""
    calibrator = create(
        method,
        num_classes=folder.num_classes,
        activation=folder.activation,
        spatial_dims=folder.spatial_dims,
        image_channels=0 if options.logits_only else folder.image_channels,
        ignore_index=folder.ignore_index,
        background=folder.background,
        **settings,
    )
    device = choose_device(options.device)
    return calibrator if "device" in calibrator.fit_settings else calibrator.to(device)


def protocol_of(folder: Folder, options: MeasureOptions) -> Protocol:
    """Return how a folder is measured; raise now if an option is wrong, not after an hour of fitting."""
    return Protocol(
        **{**vars(options), "patch_sizes": options.patch_sizes or ()},
        num_classes=folder.num_classes,
        activation=folder.activation,
        ignore_index=folder.ignore_index,
        background=folder.background,
        class_names=folder.class_names,
    )


def load_all(paths: Sequence[Path]) -> dict[str, Calibrator]:
    """Return calibrators by method, or by folder where two have the same method."""
    loaded = [(path, load(path)) for path in paths]
    kinds = [calibrator.method.upper() for _, calibrator in loaded]
    names = [
        kind if kinds.count(kind) == 1 else path.resolve().name for (path, _), kind in zip(loaded, kinds, strict=True)
    ]
    if len(set(names)) < len(names):
        raise InputError(f"calibrators must have different names, got {', '.join(names)}; rename a folder")
    return {name: calibrator for name, (_, calibrator) in zip(names, loaded, strict=True)}


def check_outputs(folder: Folder, options: PageOptions, *inputs: Path | None) -> None:
    """Raise now, rather than after measuring, if folder or page must not be written or a case does not exist."""
    if options.out is not None:
        refuse_overwriting(options.out, *inputs)
        refuse_foreign(options.out, "results")
    check_output_file(options.page, (".html", ".htm"), *inputs, options.out)
    for name in options.cases or ():
        folder.find(name)


def keep(
    found: Results | Comparison, folder: Folder, calibrators: Mapping[str, Calibrator | None], options: PageOptions
) -> None:
    """Save results with portraits of the chosen cases, and write their page, where either is wanted."""
    if options.out is None and options.page is None:
        return
    results = found.results if isinstance(found, Comparison) else found
    cases = options.cases or ()
    chosen = folder.subset(choose_cases(results, cases))
    with progress_of("drawing cases") as progress:
        portraits = portray(Tracked(chosen, progress), calibrators, results, cases)
    if options.out is not None:
        with staged_folder(options.out) as folder_out:  # rows and portraits appear together
            found.save(folder_out)
            save_portraits(portraits, folder_out)
    if options.page is not None:
        write_page(results, options.page, portraits)
