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

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from segcal.data.folders.layouts import by_name, only
from segcal.data.io.base import whole_numbers
from segcal.data.io.nifti import Nifti, check_same_place, read_volume
from segcal.files import MARKER, release_pages, staged_folder, write_json
from segcal.functional.arrays import TemporaryArrays
from segcal.fusion.joint_label_fusion import joint_label_fusion_weights, similarity_weights
from segcal.fusion.registration import narrowed
from segcal.fusion.voting import Fused, majority_vote, plurality_vote, weighted_vote
from segcal.types import Array, InputError, check_choice
from segcal.version import __version__

FusionMethod = Literal["jlf", "svwv", "plurality", "majority"]
ENDINGS = (".nii.gz", ".nii")
_BYTES = 128 << 20  # of one slab's atlases, as float64; intermediate results take a few times as much


def fuse_folder(
    folder: Path,
    out: Path,
    method: FusionMethod = "jlf",
    *,
    target: Path | None = None,
    alpha: float = 0.1,
    beta: float | None = None,
    patch: int | None = None,
    nonnegative: bool = False,
    watch: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write `labels.nii.gz`, `probability.nii.gz` and `agreement.nii.gz` of the fused atlases to the folder `out`.

    Args:
        folder: The warped atlases.
        out: Where to write.
        method: "jlf" (joint label fusion), "svwv" (each atlas weighs its probability), "plurality" or "majority".
        target: The target image; needed to weigh atlases by their images.
        alpha: JLF: added to the diagonal of M.
        beta: JLF: exponent of M; by default 1 for probabilities and 2 for images.
        patch: JLF: radius of the cube that M is summed over; by default 0 for probabilities and 1 for images.
        nonnegative: JLF: whether to forbid negative weights.
        watch: Called after each slab with the number of slices done and of all.

    Returns:
        Names of the atlases, kind of their weights, number of voxels, and labels that were fused.
    """
    check_choice("method", method, get_args(FusionMethod))
    if patch is not None and patch < 0:
        raise InputError(f"patch must be at least 0, got {patch}")
    names = sorted(by_name(folder / "labels", ENDINGS))
    if len(names) < 2:
        raise InputError(f"'{folder / 'labels'}' must hold the NIfTI labels of at least two atlases, got {len(names)}")
    label_files = _files(folder / "labels", names)
    kind, evidence_files = _evidence(folder, names, method, target)
    extra = [target] if kind == "images" and target is not None else []
    check_same_place([*label_files, *evidence_files, *extra], of=f"'{folder}'")
    given = {"beta": beta, "patch": patch}
    options = {"alpha": alpha, "nonnegative": nonnegative, **{name: v for name, v in given.items() if v is not None}}
    temporary = TemporaryArrays()
    with staged_folder(out) as staging:
        labels = [temporary.copy(_read_labels(path)) for path in label_files]
        evidence = [temporary.copy(read_volume(path)[0]) for path in (*evidence_files, *extra)]
        _check_shapes([*labels, *evidence], folder)
        shape, reach = labels[0].shape, _reach(method, kind, patch)
        fused = Fused(np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty(shape, np.float32))
        thickness = max(1, _BYTES // (8 * len(labels) * math.prod(shape[1:])))
        for inner, outer in _slabs(shape[0], thickness, reach):
            slabs, evidence_slabs = ([array[outer] for array in arrays] for arrays in (labels, evidence))
            for whole, part in zip(fused, _fused(slabs, evidence_slabs, method, options), strict=True):
                whole[inner] = part[inner.start - outer.start : inner.stop - outer.start]
            for array in (*labels, *evidence):  # pages that stay mapped would add up to all files
                release_pages(array, least=0)
            if watch is not None:
                watch(inner.stop, shape[0])
        for name, array in fused._asdict().items():
            _write(staging / f"{name}.nii.gz", array, label_files[0])
        report = {
            "atlases": names,
            "weights": kind,
            "voxels": fused.labels.size,
            "labels": [int(label) for label in np.unique(fused.labels)],
        }
        write_json(staging / MARKER, {"format": 1, "segcal": __version__, "fusion": method, **report})
    return report


def _fused(labels: list[Array], evidence: list[Array], method: FusionMethod, options: dict[str, Any]) -> Fused:
    """Fuse a slab; the evidence are the probabilities of all atlases, or their images and the target image."""
    if method == "majority":
        return majority_vote(np.stack(labels))
    if method == "plurality":
        return plurality_vote(np.stack(labels))
    values = np.stack([np.asarray(array, np.float64) for array in evidence])
    if method == "svwv":
        weights = values
    elif len(evidence) > len(labels):
        weights = similarity_weights(values[-1], values[:-1], **options)
    else:
        weights = joint_label_fusion_weights(values, **options)
    return weighted_vote(np.stack(labels), weights)


def _reach(method: FusionMethod, kind: str, patch: int | None) -> int:
    """Return the slices that a slab needs beyond its own: the patch, and the neighbourhood that scales images."""
    if method != "jlf":
        return 0
    if kind == "images":
        patch = 1 if patch is None else patch
        return patch + max(patch, 1)
    return patch or 0


def _slabs(length: int, thickness: int, reach: int) -> Iterator[tuple[slice, slice]]:
    """Slices of a slab, and the same with what lies around it."""
    for start in range(0, length, thickness):
        stop = min(start + thickness, length)
        yield slice(start, stop), slice(max(0, start - reach), min(length, stop + reach))


def _files(folder: Path, names: list[str]) -> list[Path]:
    """Return the file of each atlas."""
    found = by_name(folder, ENDINGS)
    return [only(name, found, folder.name, folder, ENDINGS, names) for name in names]


def _evidence(folder: Path, names: list[str], method: FusionMethod, target: Path | None) -> tuple[str, list[Path]]:
    """Return the kind of weights of the atlases, and their files."""
    if method in ("plurality", "majority"):
        return "equal", []
    if (folder / "probabilities").is_dir():
        return "probabilities", _files(folder / "probabilities", names)
    if method == "svwv":
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
    narrow = narrowed(array) if array.dtype.kind == "i" and array.min(initial=0) >= 0 else array
    with Nifti(path).create("labels", array.shape, narrow.dtype.str, like=like) as write:
        write(0, narrow)
