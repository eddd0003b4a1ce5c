"""The files of one case -> a Case, checked, and calibrated scores or maps -> files of the same format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from segcal.data.folders.crop import Crop, crop_of, inside_volume
from segcal.data.folders.probabilities import logits_of
from segcal.data.folders.settings import Classes, Scores
from segcal.data.io.base import ArrayFile, Key, Shape, Spacing, Write, whole_numbers
from segcal.data.io.formats import extension_of, file_at
from segcal.data.io.nifti import check_same_place, volume_orientation
from segcal.files import release_pages, staged_file, staged_store
from segcal.functional.arrays import shared_tensor
from segcal.functional.checks import IGNORED, check_same_space
from segcal.types import Activation, Array, Case, InputError, Lazy

Output: TypeAlias = Literal["scores", "map"]
"""Content of a file that is written for a case."""


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """Number of classes or sigmoid channels, spatial axes and image channels that all cases of a folder share."""

    num_classes: int
    spatial_dims: int
    image_channels: int
    activation: Activation = "softmax"

    def check(
        self, scores: Array, labels: Array | None, image: Array | None, spacing: Spacing | None, *, of: str
    ) -> None:
        """Raise unless a case has the axes of the others; the case stream checks its logits and labels."""
        if scores.ndim != self.spatial_dims + 1:
            if labels is not None:  # one-hot labels, say, for which there is a better remedy
                check_same_space(shared_tensor(scores), shared_tensor(labels), class_axis=0, of=of)
            raise InputError(
                f"all cases must have {self.spatial_dims} spatial axes as the first one, got scores of shape "
                f"{scores.shape} of {of}; keep pictures and volumes in folders of their own"
            )
        if 0 in scores.shape:
            raise InputError(f"scores must have classes and pixels, got shape {scores.shape} of {of}; save them again")
        if spacing is not None and len(spacing) != self.spatial_dims:
            raise InputError(
                f"spacing must have {self.spatial_dims} lengths, one for each spatial axis, got {spacing} of {of}; "
                "correct it"
            )
        if image is not None:
            self._check_image(image, of)

    def _check_image(self, image: Array, of: str) -> None:
        if image.ndim != self.spatial_dims + 1 or image.shape[0] != self.image_channels:
            raise InputError(
                f"images must have {self.image_channels} channels as in the first case, as [C, *S] or [*S], "
                f"got shape {tuple(image.shape)} of {of}; convert it"
            )
        if not torch.isfinite(shared_tensor(image).sum(dtype=torch.float64)):
            raise InputError(f"images must be finite, got NaN or infinity in that of {of}; fill in such pixels")


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """The files of one case, and the kind of its scores.

    Args:
        name: The file name without extension.
        scores: File of `[L, *S]`.
        labels: File of `[*S]`; None for a case without labels.
        image: File of `[C, *S]`, if there are images.
        prediction: The network's own labels beside its scores, used for their geometry only.
        kind: Whether the scores are logits or probabilities.
        group: Cases of one group are never split.
        spacing: What `segcal.toml` says of it; the header of a NIfTI file overrides it.
        archived: Whether the scores are an archive of nnU-Net: what is written is one too, and the case is cut to its
            crop.
        channels: What is declared of the channels of a sigmoid head; None for exclusive classes.
        passes: Files of further passes over the image, of the kind of the scores; each is read when it is asked for.
    """

    name: str
    scores: ArrayFile
    labels: ArrayFile | None
    image: ArrayFile | None
    prediction: ArrayFile | None
    kind: Scores
    group: str | None
    spacing: Spacing | None
    archived: bool = False
    channels: Classes | None = None
    passes: tuple[ArrayFile, ...] = ()

    def space(self, num_classes: int | None) -> Shape:
        """Return `*S`, from the header of the labels, or of the scores, whose class axis `num_classes` may tell."""
        if known := self.labels or self.prediction:
            shape = known.shape("labels")
            return shape[1:] if known is self.labels and self._is_by_channel(shape) else shape
        if self._lacks_channel_axis(None, num_classes):
            return self._stored_shape()
        return self.scores.shape(self.kind, None, num_classes)[1:]

    def num_classes(self, space: Shape) -> int:
        """Return `L`, from the header of the scores; `space` tells the class axis of a NIfTI file."""
        if self._lacks_channel_axis(space, None):
            return 1
        shape = self.scores.shape(self.kind, space)
        if not shape:
            raise InputError(
                f"scores must have shape [L, *S], got a single number in '{self.scores.path}'; fix the file"
            )
        return shape[0]

    def image_channels(self, space: Shape) -> int:
        """Return `C`, from the header of the image; 0 where there is none."""
        if self.image is None:
            return 0
        shape = self.image.shape("image", space)
        return 1 if len(shape) == len(space) else next(iter(shape), 0)

    def identity(self) -> str:
        """Return what changes when a file of this case does, or what the folder says about it."""
        files = (self.scores, self.labels, self.image, self.prediction, *self.passes)
        identities = ["" if file is None else file.identity() for file in files]
        return "; ".join([*identities, self.kind, str(self.group), str(self.spacing), str(self.channels)])

    def companions(self, *, labels_kept: bool) -> list[Path]:
        """Return the files that nnU-Net needs beside an archive: a pickle and, while it is right, its segmentation."""
        if not self.archived:
            return []
        found = [self.scores.path.with_suffix(".pkl")]
        if labels_kept and self.prediction is not None and self.prediction.path.parent == self.scores.path.parent:
            found.append(self.prediction.path)
        return [path for path in found if path.is_file()]

    def load(self, spec: CaseSpec) -> tuple[Case, Crop | None]:
        """Read all files, each once.

        Logits in a .npy file stay on disk, and so do compressed volumes too large for memory, in a temporary file.
        Values of logits and labels are checked by the case stream, which goes through them.

        Returns:
            The case, and its position if the network predicted a part of the volume only.
        """
        of = f"case '{self.name}'"
        placed = _with_geometry(self.labels, self.scores, self.image, self.prediction)
        if len(placed) > 1:
            check_same_place(placed, of=of)
        labels = None if self.labels is None else self.labels.read("labels")
        space = self.space(spec.num_classes) if labels is None else labels.shape
        if labels is not None and self._is_by_channel(labels.shape):
            space = labels.shape[1:]
        scores = self._read_scores(space)
        if labels is not None and labels.size <= scores.size:  # the case stream refuses others, which may be huge
            labels = self._converted(labels)
        image = None if self.image is None else self.image.read("image", space)
        if image is not None and image.ndim == len(space):
            image = image[None]
        stored = [file for file in (self.labels, self.scores, self.image, self.prediction) if file is not None]
        spacing = next((found for file in stored if (found := file.spacing(len(space)))), self.spacing)
        spec.check(scores, labels, image, spacing, of=of)
        crop = crop_of(scores, spec.activation) if self.archived and scores.shape[1:] == space else None
        if crop is not None and crop.is_empty:
            labels, crop = None if labels is None else np.full(labels.shape, IGNORED, np.int16), None
        if crop is not None:
            scores = crop.cut(scores)
            labels, image = (None if part is None else crop.cut(part) for part in (labels, image))
        release_pages(scores)
        case = Case(
            name=self.name,
            logits=self._logits(scores, spec, crop),
            labels=labels,
            image=image,
            spacing=spacing,
            group=self.group,
            orientation=volume_orientation(placed[0]) if placed and len(space) == 3 else None,
            passes=Lazy(partial(self._pass, spec, space, crop), self.passes, keep=True) if self.passes else None,
        )
        return case, crop

    def _pass(self, spec: CaseSpec, space: Shape, crop: Crop | None, file: ArrayFile) -> Array | Tensor:
        """Return the logits `[L, *S]` of a further pass, cut as the scores are."""
        scores = replace(self, scores=file)._read_scores(space)
        return self._logits(scores if crop is None else crop.cut(scores), spec, crop)

    def _logits(self, scores: Array, spec: CaseSpec, crop: Crop | None) -> Array | Tensor:
        origin = () if crop is None else tuple(side.start for side in crop.box)
        if self.kind == "logits":
            return scores
        return logits_of(scores, spec.activation, origin=origin, of=f"case '{self.name}'")

    @contextmanager
    def create(
        self,
        folder: Path,
        content: Output,
        shape: Shape,
        dtype: str,
        crop: Crop | None = None,
        *,
        outside: float = 0,
    ) -> Iterator[Write]:
        """Write scores `[L, *S]`, or one value per pixel `[*S]`, slab by slab, in the format that `file` names.

        A single channel that was stored without a channel axis in NIfTI is written without one. Around a case that was
        cut to nnU-Net's `crop`, probabilities are those of nnU-Net, and all values of a map are `outside`.
        """
        key: Key = "labels" if content == "map" else self.kind
        target, around = self.file(folder, content), np.array(outside, dtype)
        if content == "scores":
            around = np.zeros((shape[0], *[1] * len(shape[1:])), dtype)
            around[0] = self.channels is None  # the background of a softmax is certain there, no channel is present
        if crop is not None:
            shape = (*shape[: -len(crop.shape)], *crop.shape)
        flat = content == "scores" and file_at(target).has_geometry and self._lacks_channel_axis(shape[1:], shape[0])
        if flat:
            key, shape = "labels", shape[1:]
        with (
            (staged_store if file_at(target).is_folder else staged_file)(target) as staging,
            file_at(staging).create(key, shape, dtype, like=self._like(content)) as write,
        ):
            stored: Write = (lambda start, values: write(start, values[0])) if flat else write
            yield stored if crop is None else inside_volume(stored, crop, around)

    def file(self, folder: Path, content: Output) -> Path:
        """Return the name of the file that `create` writes: .npy, NIfTI, Zarr or an archive of nnU-Net."""
        like = self._like(content)
        return folder / f"{self.name}{'.npy' if like is None else extension_of(like)}"

    def _like(self, content: Output) -> Path | None:
        """Return the file whose format and geometry an output takes over; None where it is a plain array."""
        placed = self.archived or self.scores.has_geometry
        if self.scores.is_folder or (placed and content == "scores"):
            return self.scores.path
        return next(iter(_with_geometry(self.labels, self.scores, self.prediction)), None) if placed else None

    def _is_by_channel(self, shape: Shape) -> bool:
        """Return whether labels of this shape have a channel axis; NIfTI labels of three axes are volumes."""
        if self.channels is None or self.labels is None or (len(shape) == 3 and self.scores.has_geometry):
            return False
        return self.channels.are_by_channel(shape, self._stored_shape(), self.labels.path)

    def _lacks_channel_axis(self, space: Shape | None, num_classes: int | None) -> bool:
        """Return whether the scores of a single sigmoid channel are stored as `[*S]`."""
        if self.channels is None:
            return False
        stored = self._stored_shape()
        if space is not None:
            return stored == tuple(space)
        volume = len(stored) == 3 and num_classes == 1 and (stored[0] != 1 or self.scores.has_geometry)
        return len(stored) == 2 or volume

    def _stored_shape(self) -> Shape:
        """Return the shape of the scores as they are stored, in segcal's order of axes."""
        return self.scores.shape("labels" if self.scores.has_geometry else self.kind)

    def _read_scores(self, space: Shape) -> Array:
        if not self._lacks_channel_axis(space, None):
            return self.scores.read(self.kind, space)
        return self.scores.read("labels" if self.scores.has_geometry else self.kind, space)[None]

    def _converted(self, labels: Array) -> Array:
        """Return labels as whole numbers, and as masks of the channels of a sigmoid head."""
        assert self.labels is not None
        whole = whole_numbers(labels, self.labels.path)
        return whole if self.channels is None else self.channels.masks_of(whole)


def _with_geometry(*files: ArrayFile | None) -> list[Path]:
    """Return the paths of the files that say where they lie in the world."""
    return [file.path for file in files if file is not None and file.has_geometry]
