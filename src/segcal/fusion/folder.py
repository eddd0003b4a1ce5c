"""Fuse a folder of warped atlases, slab by slab, into NIfTI files (`segcal fuse`).

```
ATLASES/
  labels/NAME.nii.gz           the labels of each atlas, warped to the target
  probabilities/NAME.nii.gz    optional: the probability that they are right, from VoteNet+ say, calibrated
  images/NAME.nii.gz           optional: the warped images, to weigh atlases by how much they look like the target
```
Memory holds one volume and a slab of every atlas: compressed files are unpacked to temporary ones and mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from segcal.data.folders.layouts import by_name, only
from segcal.data.io.base import whole_numbers
from segcal.data.io.nifti import Nifti, check_same_place, read_volume
from segcal.files import MARKER, release_pages, staged_folder, write_json
from segcal.functional.arrays import TemporaryArrays
from segcal.fusion.joint_label_fusion import joint_label_fusion_weights, similarity_weights
from segcal.fusion.voting import Fused, majority_vote, plurality_vote, weighted_vote
from segcal.types import Array, InputError, check_choice
from segcal.version import __version__

FusionMethod = Literal["jlf", "svwv", "plurality", "majority"]
ENDINGS = (".nii.gz", ".nii")
_BYTES = 128 << 20  # of one slab's atlases, as float64; intermediate results take a few times as much


@dataclass(frozen=True)
class FusionSettings:
    """Method and parameters of label fusion.

    Args:
        method: "jlf" (joint label fusion), "svwv" (each atlas weighs its probability), "plurality" or "majority".
        alpha: JLF: added to the diagonal of M.
        beta: JLF: exponent of M; by default 1 for probabilities and 2 for images.
        patch: JLF: radius of the cube that M is summed over; by default 0 for probabilities and 1 for images.
        nonnegative: JLF: whether to forbid negative weights.
    """

    method: FusionMethod = "jlf"
    alpha: float = 0.1
    beta: float | None = None
    patch: int | None = None
    nonnegative: bool = False

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(FusionMethod))
        if self.patch is not None and self.patch < 0:
            raise InputError(f"patch must be at least 0, got {self.patch}")


def fuse_folder(
    folder: Path,
    out: Path,
    settings: FusionSettings | None = None,
    *,
    target: Path | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write `labels.nii.gz`, `probability.nii.gz` and `agreement.nii.gz` of the fused atlases to the folder `out`.

    Args:
        folder: The warped atlases.
        out: Where to write.
        settings: How to fuse.
        target: The target image; needed to weigh atlases by their images.
        watch: Called after each slab with the number of slices done and of all.

    Returns:
        Names of the atlases, kind of their weights, number of voxels, and labels that were fused.
    """
    settings = settings or FusionSettings()
    names = sorted(by_name(folder / "labels", ENDINGS))
    if len(names) < 2:
        raise InputError(f"'{folder / 'labels'}' must hold the NIfTI labels of at least two atlases, got {len(names)}")
    label_files = _files(folder / "labels", names)
    kind, evidence_files = _evidence(folder, names, settings, target)
    extra = [target] if kind == "images" and target is not None else []
    check_same_place([*label_files, *evidence_files, *extra], of=f"'{folder}'")
    temporary = TemporaryArrays()
    with staged_folder(out) as staging:
        labels = [temporary.copy(_read_labels(path)) for path in label_files]
        evidence, reference = (
            [temporary.copy(read_volume(path)[0]) for path in paths] for paths in (evidence_files, extra)
        )
        _check_shapes([*labels, *evidence, *reference], folder)
        fused = _fused(labels, evidence, reference[0] if reference else None, kind, settings, watch)
        for name, array in fused._asdict().items():
            _write(staging / f"{name}.nii.gz", array, label_files[0])
        found = {
            "atlases": names,
            "weights": kind,
            "voxels": fused.labels.size,
            "labels": [int(label) for label in np.unique(fused.labels)],
        }
        write_json(staging / MARKER, {"format": 1, "segcal": __version__, "fusion": settings.method, **found})
    return found


def _fused(
    labels: list[Array],
    evidence: list[Array],
    target: Array | None,
    kind: str,
    settings: FusionSettings,
    watch: Callable[[int, int], None] | None,
) -> Fused:
    shape = labels[0].shape
    whole = Fused(np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty(shape, np.float32))
    per_slice = 8 * len(labels) * int(np.prod(shape[1:]))
    for inner, outer in _slabs(shape[0], max(1, _BYTES // per_slice), _reach(kind, settings)):
        own = np.stack([array[outer] for array in labels])
        weights = _weights([array[outer] for array in evidence], None if target is None else target[outer], settings)
        kept = slice(inner.start - outer.start, inner.stop - outer.start)
        part = _vote(own[:, kept], None if weights is None else weights[:, kept], settings)
        for target_array, values in zip(whole, part, strict=True):
            target_array[inner] = values
        for array in (*labels, *evidence):  # pages that stay mapped would add up to all files
            release_pages(array, least=0)
        if watch is not None:
            watch(inner.stop, shape[0])
    return whole


def _weights(evidence: list[Array], target: Array | None, settings: FusionSettings) -> Array | None:
    """The weight of each atlas in a slab; None where the method has none."""
    if not evidence:
        return None
    values = np.stack([np.asarray(array, np.float64) for array in evidence])
    if settings.method == "svwv":
        return values
    options: dict[str, Any] = {"nonnegative": settings.nonnegative}
    options |= {name: value for name in ("beta", "patch") if (value := getattr(settings, name)) is not None}
    if target is not None:
        return similarity_weights(np.asarray(target, np.float64), values, settings.alpha, **options)
    return joint_label_fusion_weights(values, settings.alpha, **options)


def _vote(labels: Array, weights: Array | None, settings: FusionSettings) -> Fused:
    if weights is not None:
        return weighted_vote(labels, weights)
    return majority_vote(labels) if settings.method == "majority" else plurality_vote(labels)


def _reach(kind: str, settings: FusionSettings) -> int:
    """Return the slices that a slab needs beyond its own: the patch, and the neighbourhood that scales images."""
    if settings.method != "jlf":
        return 0
    if kind == "images":
        patch = 1 if settings.patch is None else settings.patch
        return patch + max(patch, 1)
    return settings.patch or 0


def _slabs(length: int, thickness: int, reach: int) -> Iterator[tuple[slice, slice]]:
    """Slices of a slab, and the same with what lies around it."""
    for start in range(0, length, thickness):
        stop = min(start + thickness, length)
        yield slice(start, stop), slice(max(0, start - reach), min(length, stop + reach))


def _files(folder: Path, names: list[str]) -> list[Path]:
    """Return the file of each atlas."""
    found = by_name(folder, ENDINGS)
    return [only(name, found, folder.name, folder, ENDINGS, names) for name in names]


def _evidence(folder: Path, names: list[str], settings: FusionSettings, target: Path | None) -> tuple[str, list[Path]]:
    """Return the kind of weights of the atlases, and their files."""
    if settings.method in ("plurality", "majority"):
        return "equal", []
    if (folder / "probabilities").is_dir():
        return "probabilities", _files(folder / "probabilities", names)
    if settings.method == "svwv":
        raise InputError(f"svwv weighs atlases by their probabilities; add '{folder / 'probabilities'}'")
    if target is None or not (folder / "images").is_dir():
        raise InputError(
            f"jlf needs '{folder / 'probabilities'}', or '{folder / 'images'}' and the target image (--target); "
            "without either, use the method plurality"
        )
    return "images", _files(folder / "images", names)


def _check_shapes(arrays: list[Array], folder: Path) -> None:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        shown = ", ".join(str(shape) for shape in sorted(shapes))
        raise InputError(
            f"all volumes of '{folder}' must have one shape, got {shown} [z, y, x]; warp them to one target"
        )


def _read_labels(path: Path) -> Array:
    labels = whole_numbers(read_volume(path)[0], path)
    if labels.max(initial=0) >= 2**31 or labels.min(initial=0) < -(2**31):
        raise InputError(f"warped labels must be below 2^31, got more in '{path}'; correct them")
    return labels.astype(np.int32)


def _write(path: Path, array: Array, like: Path) -> None:
    """Write a volume `[z, y, x]` with the geometry of another file, labels in the smallest type that holds them."""
    whole = array.dtype.kind == "i" and array.min(initial=0) >= 0
    narrow = array.astype(np.min_scalar_type(int(array.max(initial=0)))) if whole else array
    with Nifti(path).create("labels", array.shape, narrow.dtype.str, like=like) as write:
        write(0, narrow)
