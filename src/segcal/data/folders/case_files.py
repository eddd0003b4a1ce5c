"""The files of one case -> a Case, checked, and calibrated scores or maps -> files of the same format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from segcal.data.folders.crop import Crop, CroppedWriter, crop_of
from segcal.data.folders.probabilities import logits_of
from segcal.data.folders.settings import Classes, Scores
from segcal.data.io.base import Shape, Spacing, Stored, Writer, whole_numbers
from segcal.data.io.formats import format_of
from segcal.data.io.nifti import check_same_place, volume_orientation, volume_spacing
from segcal.files import release_pages, staged_file, staged_store
from segcal.functional.arrays import shared_tensor
from segcal.functional.checks import IGNORED, check_same_space
from segcal.types import Activation, Array, Case, InputError


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
    """Paths of the files of one case, and the kind of its scores.

    Args:
        name: The file name without extension.
        scores: File of `[L, *S]`.
        labels: File of `[*S]`; None for a case without labels.
        image: File of `[C, *S]`, if there are images.
        kind: Whether the scores are logits or probabilities.
        group: Cases of one group are never split.
        spacing: What `segcal.toml` says of it; the header of a NIfTI file overrides it.
        prediction: The network's own labels beside its scores, used for their geometry only.
        archived: Whether the scores are an archive of nnU-Net: what is written is one too, and the case is cut to its
            crop.
        channels: What is declared of the channels of a sigmoid head; None for exclusive classes.
        passes: Files of further passes over the image, of the kind of the scores; each is read when it is asked for.
    """

    name: str
    scores: Path
    labels: Path | None
    image: Path | None
    kind: Scores
    group: str | None
    spacing: Spacing | None
    prediction: Path | None = None
    archived: bool = False
    channels: Classes | None = None
    passes: tuple[Path, ...] = ()

    def space(self, num_classes: int | None) -> Shape:
        """Return `*S`, from the header of the labels, or of the scores, whose class axis `num_classes` may tell."""
        if known := self.labels or self.prediction:
            shape = format_of(known).shape(known, "labels")
            return shape[1:] if known is self.labels and self._is_by_channel(shape) else shape
        if self._lacks_channel_axis(None, num_classes):
            return self._stored_shape()
        return self._score_shape(None, num_classes)[1:]

    def num_classes(self, space: Shape) -> int:
        """Return `L`, from the header of the scores; `space` tells the class axis of a NIfTI file."""
        if self._lacks_channel_axis(space, None):
            return 1
        shape = self._score_shape(space, None)
        if not shape:
            raise InputError(f"scores must have shape [L, *S], got a single number in '{self.scores}'; fix the file")
        return shape[0]

    def image_channels(self, space: Shape) -> int:
        """Return `C`, from the header of the image; 0 where there is none."""
        if self.image is None:
            return 0
        shape = format_of(self.image).shape(self.image, "image", space)
        return 1 if len(shape) == len(space) else next(iter(shape), 0)

    def identity(self) -> str:
        """Return what changes when a file of this case does, or what the folder says about it."""
        paths = (self.scores, self.labels, self.image, self.prediction, *self.passes)
        files = ["" if path is None else format_of(path).identity(path) for path in paths]
        return "; ".join([*files, self.kind, str(self.group), str(self.spacing), str(self.channels)])

    def companions(self, *, labels_kept: bool) -> list[Path]:
        """Return the files that nnU-Net needs beside an archive: a pickle and, while it is right, its segmentation."""
        if not self.archived:
            return []
        found = [self.scores.with_suffix(".pkl")]
        if labels_kept and self.prediction is not None and self.prediction.parent == self.scores.parent:
            found.append(self.prediction)
        return [path for path in found if path.is_file()]

    def load(self, spec: CaseSpec) -> tuple[Case, Crop | None]:
        """Read all files, each once.

        Logits in a .npy file stay on disk, and so do compressed volumes too large for memory, in a temporary file.
        Values of logits and labels are checked by the case stream, which goes through them.

        Returns:
            The case, and its position if the network predicted a part of the volume only.
        """
        of = f"case '{self.name}'"
        if len(placed := self._placed()) > 1:
            check_same_place(placed, of=of)
        labels, label_spacing = (
            (None, None) if self.labels is None else format_of(self.labels).read(self.labels, "labels")
        )
        space = self.space(spec.num_classes) if labels is None else labels.shape
        if labels is not None and self._is_by_channel(labels.shape):
            space, label_spacing = labels.shape[1:], None if label_spacing is None else label_spacing[1:]
        scores, score_spacing = self._read_scores(space)
        if labels is not None and labels.size <= scores.size:  # the case stream refuses others, which may be huge
            labels = self._converted(labels)
        image, image_spacing = None, None
        if self.image is not None:
            image, image_spacing = format_of(self.image).read(self.image, "image", space)
            image = image[None] if image.ndim == len(space) else image
        spacing = label_spacing or score_spacing or image_spacing or self._spacing_of_prediction() or self.spacing
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
            passes=PassFiles(self, spec, space, crop) if self.passes else None,
        )
        return case, crop

    def read_pass(self, number: int, spec: CaseSpec, space: Shape, crop: Crop | None) -> Array | Tensor:
        """Return the logits `[L, *S]` of a further pass, cut as the scores are."""
        scores, _ = replace(self, scores=self.passes[number])._read_scores(space)
        return self._logits(scores if crop is None else crop.cut(scores), spec, crop)

    def _logits(self, scores: Array, spec: CaseSpec, crop: Crop | None) -> Array | Tensor:
        origin = () if crop is None else tuple(side.start for side in crop.box)
        if self.kind == "logits":
            return scores
        return logits_of(scores, spec.activation, origin=origin, of=f"case '{self.name}'")

    @contextmanager
    def create_scores(self, folder: Path, shape: Shape, dtype: str, crop: Crop | None = None) -> Iterator[Writer]:
        """Write scores `[L, *S]` slab by slab as this case's are stored: .npy, NIfTI or an archive of nnU-Net.

        A single channel that was stored without a channel axis in NIfTI is written without one. Around a case that was
        cut to nnU-Net's `crop`, probabilities are those of nnU-Net.
        """
        target, outside = self.score_file(folder), np.zeros((shape[0], *(1,) * len(shape[1:])), dtype)
        if self.channels is None:
            outside[0] = 1
        shape = shape if crop is None else (shape[0], *crop.shape)
        flat = format_of(target).has_geometry and self._lacks_channel_axis(shape[1:], shape[0])
        stored = shape[1:] if flat else shape
        with (
            _staged(target) as staging,
            format_of(target).create(
                staging, "labels" if flat else self.kind, stored, dtype, like=self.scores
            ) as stored_in,
        ):
            writer = _OneChannel(stored_in) if flat else stored_in
            yield writer if crop is None else CroppedWriter(writer, crop, outside)

    @contextmanager
    def create_map(
        self, folder: Path, shape: Shape, dtype: str, crop: Crop | None = None, *, outside: float = 0
    ) -> Iterator[Writer]:
        """Write one value per pixel `[*S]` slab by slab: NIfTI where the scores, or the files with them, are NIfTI.

        Around a case that was cut to nnU-Net's `crop`, all values are `outside`.
        """
        target = self.map_file(folder)
        shape = shape if crop is None else crop.shape
        with (
            _staged(target) as staging,
            format_of(target).create(staging, "labels", shape, dtype, like=self._geometry()) as writer,
        ):
            yield writer if crop is None else CroppedWriter(writer, crop, np.array(outside, dtype))

    def score_file(self, folder: Path) -> Path:
        """Return the name of the file that `create_scores` writes."""
        keep = self.archived or format_of(self.scores).has_geometry or format_of(self.scores).is_folder
        return folder / f"{self.name}{_ending(self.scores) if keep else '.npy'}"

    def map_file(self, folder: Path) -> Path:
        """Return the name of the file that `create_map` writes."""
        like = self.scores if format_of(self.scores).is_folder else self._geometry()
        return folder / f"{self.name}{'.npy' if like is None else _ending(like)}"

    def _is_by_channel(self, shape: Shape) -> bool:
        """Return whether labels of this shape have a channel axis; NIfTI labels of three axes are volumes."""
        if self.channels is None or self.labels is None or (len(shape) == 3 and format_of(self.scores).has_geometry):
            return False
        return self.channels.are_by_channel(shape, self._stored_shape(), self.labels)

    def _lacks_channel_axis(self, space: Shape | None, num_classes: int | None) -> bool:
        """Return whether the scores of a single sigmoid channel are stored as `[*S]`."""
        if self.channels is None:
            return False
        stored = self._stored_shape()
        if space is not None:
            return stored == tuple(space)
        volume = len(stored) == 3 and num_classes == 1 and (stored[0] != 1 or format_of(self.scores).has_geometry)
        return len(stored) == 2 or volume

    def _stored_shape(self) -> Shape:
        """Return the shape of the scores as they are stored, in segcal's order of axes."""
        kind = format_of(self.scores)
        if kind.has_geometry:
            return kind.shape(self.scores, "labels")
        return kind.shape(self.scores, self.kind)

    def _read_scores(self, space: Shape) -> Stored:
        kind = format_of(self.scores)
        if not self._lacks_channel_axis(space, None):
            return kind.read(self.scores, self.kind, space)
        stored = kind.read(self.scores, "labels" if kind.has_geometry else self.kind, space)
        return Stored(stored.values[None], stored.spacing)

    def _score_shape(self, space: Shape | None, num_classes: int | None) -> Shape:
        return format_of(self.scores).shape(self.scores, self.kind, space, num_classes=num_classes)

    def _converted(self, labels: Array) -> Array:
        """Return labels as whole numbers, and as masks of the channels of a sigmoid head."""
        assert self.labels is not None
        whole = whole_numbers(labels, self.labels)
        return whole if self.channels is None else self.channels.masks_of(whole)

    def _placed(self) -> list[Path]:
        """Return the files that say where they lie in the world."""
        paths = (self.labels, self.scores, self.image, self.prediction)
        return [path for path in paths if path is not None and format_of(path).has_geometry]

    def _geometry(self) -> Path | None:
        if not (self.archived or format_of(self.scores).has_geometry):
            return None
        candidates = (self.labels, self.scores, self.prediction)
        return next((path for path in candidates if path is not None and format_of(path).has_geometry), None)

    def _spacing_of_prediction(self) -> Spacing | None:
        path = self.prediction
        return volume_spacing(path) if path is not None and format_of(path).has_geometry else None


class PassFiles(Sequence[Array | Tensor]):
    """Logits `[L, *S]` of further passes, each read from its file when it is first asked for."""

    def __init__(self, files: CaseFiles, *how: Any) -> None:
        self._files, self._how, self._read = files, how, dict[int, Array | Tensor]()

    def __len__(self) -> int:
        return len(self._files.passes)

    def __repr__(self) -> str:
        return f"{len(self)} files"

    @overload
    def __getitem__(self, index: int) -> Array | Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array | Tensor]: ...
    def __getitem__(self, index: int | slice) -> Array | Tensor | list[Array | Tensor]:
        """Return one pass, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        if number not in self._read:
            self._read[number] = self._files.read_pass(number, *self._how)
        return self._read[number]


class _OneChannel(Writer):
    """Writes slabs `[1, rows, ...]` of a single channel to a file without a channel axis."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def write(self, start: int, values: Array) -> None:
        """Write slices of the first spatial axis."""
        self.writer.write(start, values[0])


def _staged(target: Path) -> AbstractContextManager[Path]:
    return staged_store(target) if format_of(target).is_folder else staged_file(target)


def _ending(path: Path) -> str:
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else path.suffix.lower()
