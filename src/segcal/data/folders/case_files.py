"""The files of one case -> a Case, checked, and calibrated scores or maps -> files of the same kind."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from segcal.data.folders.settings import Scores
from segcal.data.io import formats, nifti
from segcal.data.io.nifti import Spacing
from segcal.files import staged_file
from segcal.functional.checks import check_labels, check_logits, check_same_space
from segcal.functional.probability import logits_from_probabilities
from segcal.types import Array, Case, InputError

_RIVAL: dict[Scores, Scores] = {"logits": "probabilities", "probabilities": "logits"}


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """Where one case lies on disk, and what its scores are.

    Args:
        name: The file name without extension.
        scores: File of `[L, *S]`.
        labels: File of `[*S]`; None where nobody labelled the case.
        image: File of `[C, *S]`, if there are images.
        kind: Whether the scores are logits or probabilities.
        nnunet: Whether the scores lie in a prediction folder of nnU-Net, and are to be written as it does.
        group: Cases of one group are never split.
        spacing: What `segcal.toml` says of it; the header of a NIfTI file goes first.
        prediction: nnU-Net's own labels beside its scores, for their geometry and nothing else.
    """

    name: str
    scores: Path
    labels: Path | None
    image: Path | None
    kind: Scores
    nnunet: bool
    group: str | None
    spacing: Spacing | None
    prediction: Path | None

    def space(self, num_classes: int | None) -> tuple[int, ...]:
        """Shape `*S`, from the header of the labels, or of the scores, whose class axis `num_classes` may tell."""
        if known := self.labels or self.prediction:
            return _map_shape(known)
        if formats.is_nifti(self.scores):
            return nifti.space_beside_classes(self.scores, num_classes)
        return _array_shape(self.scores, self.kind, _RIVAL[self.kind])[1:]

    def num_classes(self, space: tuple[int, ...]) -> int:
        """`L`, from the header of the scores; `space` tells the class axis of a NIfTI file."""
        if formats.is_nifti(self.scores):
            return nifti.channel_count(self.scores, space)
        shape = _array_shape(self.scores, self.kind, _RIVAL[self.kind])
        if not shape:
            raise InputError(f"scores must have shape [L, *S], got a single number in '{self.scores}'; mend the file")
        return shape[0]

    def image_channels(self, space: tuple[int, ...]) -> int:
        """`C`, from the header of the image; 0 where there is none."""
        if self.image is None:
            return 0
        if formats.is_picture(self.image):
            return formats.picture_shape(self.image)[0]
        if formats.is_nifti(self.image):
            plain_volume = nifti.volume_shape(self.image) == space
            return 1 if plain_volume else nifti.channel_count(self.image, space)
        shape = formats.npy_shape(self.image)
        return 1 if len(shape) == len(space) else (shape or (1,))[0]

    def load(self, expected: Expected, *, check: bool) -> Case:
        """Read all files, each once, and check what they hold, unless the case is known to be right.

        Logits in a .npy file stay on disk; probabilities are read and become logits.
        """
        labels, label_spacing = self._read_labels()
        space = self.space(expected.num_classes) if labels is None else labels.shape
        scores, score_spacing = self._read_scores(space)
        image, image_spacing = self._read_image(space)
        spacing = label_spacing or score_spacing or image_spacing or self._spacing_of_prediction() or self.spacing
        if check:
            expected.check(self.name, self.kind, scores, labels, image, spacing)
            niftis = [path for path in (self.labels, self.scores, self.image) if path and formats.is_nifti(path)]
            nifti.check_same_place(niftis, of=f"case '{self.name}'")
        return Case(
            name=self.name,
            logits=scores if self.kind == "logits" else logits_from_probabilities(_tensor(scores)),
            labels=labels,
            image=image,
            spacing=spacing,
            group=self.group,
        )

    def _read_labels(self) -> tuple[Array | None, Spacing | None]:
        path, spacing = self.labels, None
        if path is None:
            return None, None
        if formats.is_nifti(path):
            labels, spacing = nifti.read_volume(path)
        elif formats.is_picture(path):
            labels = formats.read_label_picture(path)
        else:
            labels = _read_array(path, "labels")
        return formats.whole_numbers(labels, path), spacing

    def _read_scores(self, space: tuple[int, ...]) -> tuple[Array, Spacing | None]:
        if formats.is_nifti(self.scores):
            return nifti.read_channels(self.scores, space)
        scores = _read_array(self.scores, self.kind, _RIVAL[self.kind])
        flat = self.kind == "probabilities" and scores.ndim == 4 and scores.shape[1] == 1 and len(space) == 2
        return scores[:, 0] if flat else scores, None  # nnU-Net gives pictures a z axis of one

    def _read_image(self, space: tuple[int, ...]) -> tuple[Array | None, Spacing | None]:
        path = self.image
        if path is None:
            return None, None
        if formats.is_picture(path):
            return formats.read_image_picture(path), None
        if not formats.is_nifti(path):
            image = formats.read_npy(path)
            return image[None] if image.ndim == len(space) else image, None
        if nifti.volume_shape(path) == space:
            volume, spacing = nifti.read_volume(path)
            return volume.astype(np.float32)[None], spacing
        channels, spacing = nifti.read_channels(path, space)
        return channels.astype(np.float32), spacing

    def write_scores(self, folder: Path, array: Array) -> Path:
        """Write scores `[L, *S]` as this case's are stored: .npy, NIfTI or an archive of nnU-Net."""
        extension = formats.extension_of(self.scores, formats.NIFTI)
        target = folder / f"{self.name}{extension or ('.npz' if self.nnunet else '.npy')}"
        with staged_file(target) as staging:
            if extension:
                nifti.write_channels(staging, array, like=self.scores)
            elif self.nnunet:
                np.savez_compressed(staging, probabilities=self._with_z_axis(array))
            else:
                np.save(staging, array)
        return target

    def write_map(self, folder: Path, array: Array) -> Path:
        """Write one value per pixel `[*S]`: NIfTI where the scores, or what lies with nnU-Net's, are NIfTI."""
        like = self._geometry()
        extension = formats.extension_of(like, formats.NIFTI) if like else ".npy"
        target = folder / f"{self.name}{extension}"
        with staged_file(target) as staging:
            if like:
                nifti.write_volume(staging, array, like)
            else:
                np.save(staging, array)
        return target

    def _geometry(self) -> Path | None:
        if not (self.nnunet or formats.is_nifti(self.scores)):
            return None
        candidates = (self.labels, self.scores, self.prediction)
        return next((path for path in candidates if path and formats.is_nifti(path)), None)

    def _spacing_of_prediction(self) -> Spacing | None:
        if self.labels or not (self.prediction and formats.is_nifti(self.prediction)):
            return None
        return nifti.volume_spacing(self.prediction)

    def _with_z_axis(self, array: Array) -> Array:
        stored = formats.npz_shape(self.scores, self.kind)
        return array[:, None] if len(stored) == array.ndim + 1 else array


@dataclass(frozen=True, slots=True)
class Expected:
    """What every case of a folder must agree with."""

    num_classes: int
    ignore_index: tuple[int, ...] | None
    spatial_dims: int
    image_channels: int

    def check(
        self,
        name: str,
        kind: Scores,
        scores: Array,
        labels: Array | None,
        image: Array | None,
        spacing: Spacing | None,
    ) -> None:
        """Raise, naming the case, unless shapes agree, scores are finite and labels in range."""
        of = f"case '{name}'"
        values = _tensor(scores)
        if kind == "probabilities":
            check_probabilities(values, of=of)
        check_logits(values, self.num_classes, class_axis=0, of=of)
        if labels is not None:
            check_same_space(values, _tensor(labels), class_axis=0, of=of)
        self._check_dims(scores, labels, spacing, of)
        if labels is not None:
            check_labels(_tensor(labels), self.num_classes, self.ignore_index, of=of)
        if image is not None:
            self._check_image(_tensor(image), values, of)

    def _check_dims(self, scores: Array, labels: Array | None, spacing: Spacing | None, of: str) -> None:
        if scores.ndim != self.spatial_dims + 1:
            got = f"scores of shape {scores.shape}" if labels is None else f"labels of shape {labels.shape}"
            raise InputError(
                f"all cases must have {self.spatial_dims} spatial axes as the first one, got {got} of {of}; "
                "keep pictures and volumes in folders of their own"
            )
        if spacing is not None and len(spacing) != self.spatial_dims:
            raise InputError(
                f"spacing must have {self.spatial_dims} lengths, one for each spatial axis, got {spacing} of {of}; "
                "mend it"
            )

    def _check_image(self, image: Tensor, logits: Tensor, of: str) -> None:
        if image.ndim != logits.ndim or image.shape[0] != self.image_channels:
            raise InputError(
                f"images must have {self.image_channels} channels as in the first case, as [C, *S] or [*S], "
                f"got shape {tuple(image.shape)} of {of}; convert it"
            )
        check_same_space(logits, image[0], class_axis=0, what="each channel of the image", of=of)
        if not torch.isfinite(image.sum(dtype=torch.float64)):
            raise InputError(f"images must be finite, got NaN or infinity in that of {of}; fill in such pixels")


def check_probabilities(probs: Tensor, *, of: str) -> None:
    """Raise unless `probs` `[L, *S]` are finite, in 0..1 and sum to 1, as far as half precision can tell."""
    hint = f'of {of}; if these are logits, set scores = "logits"'
    if not torch.is_floating_point(probs):
        raise InputError(f"probabilities must be floating point, got {probs.dtype} of {of}; convert them first")
    # written so that NaN is wrong as well
    _raise_at(~((probs >= -1e-3) & (probs <= 1 + 1e-3)), probs, "probabilities must be in 0..1", hint)
    total = probs.sum(dim=0, dtype=torch.float64)
    _raise_at(~((total - 1).abs() <= 1e-2), total, "probabilities must sum to 1 over the classes", hint)


def as_numpy(array: Array | Tensor) -> Array:
    """`array` for NumPy, which lacks bfloat16 and gets float32 instead."""
    if not isinstance(array, Tensor):
        return array
    values: Array = (array.float() if array.dtype == torch.bfloat16 else array).detach().cpu().numpy()
    return values


def _raise_at(wrong: Tensor, values: Tensor, required: str, hint: str) -> None:
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        raise InputError(f"{required}, got {values[at].item():.6g} at {at} {hint}")


def _tensor(array: Array) -> Tensor:
    """`array` as a tensor that shares its memory, which nobody here writes to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)


def _map_shape(path: Path) -> tuple[int, ...]:
    """`*S` of labels, from their header."""
    if formats.is_nifti(path):
        return nifti.volume_shape(path)
    if formats.is_picture(path):
        return formats.picture_shape(path)[1:]
    return _array_shape(path, "labels")


def _array_shape(path: Path, key: str, rival: str | None = None) -> tuple[int, ...]:
    if formats.extension_of(path, (".npz",)):
        return formats.npz_shape(path, key, rival)
    return formats.npy_shape(path)


def _read_array(path: Path, key: str, rival: str | None = None) -> Array:
    if formats.extension_of(path, (".npz",)):
        return formats.read_npz(path, key, rival)
    return formats.read_npy(path)
