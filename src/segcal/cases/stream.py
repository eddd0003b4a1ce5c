"""The case stream: the only reader of cases, in slabs of bounded size.

A pass over the stream yields the cases one after the other, and each case its slabs. What a pass finds out about a case
(shape, labels, finiteness, fingerprint, the doubt whether its logits are probabilities) is remembered for the passes
that follow, and so are logits and labels as long as they fit into memory: those passes touch no file.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from segcal.cases.collections import as_collection, check_shape, not_a_case
from segcal.files import release_pages
from segcal.functional.arrays import TemporaryArrays, is_mapped, to_tensor
from segcal.functional.checks import IGNORED, check_labels, check_logits, probability_doubt
from segcal.functional.fingerprint import fingerprint
from segcal.functional.geometry import foreground
from segcal.progress import Tracked
from segcal.types import Array, Case, IgnoreIndex, InputError, Labels, Passes, Slab

SLAB = 1 << 25
"""Number of scores read at a time (128 MiB in float32)."""

_WHOLE = 8
"""Slabs start at multiples of this many slices, so that results computed in tiles do not depend on the slabs."""

HOST_MEMORY = 1 << 30
"""Bytes of host memory in which a stream keeps cases that were read from files."""
_DISK_SHARE = 0.5
"""Share of the free space for temporary files in which a stream keeps decompressed cases beyond its memory."""
_DEVICE_SHARE = 0.5
"""Share of the free memory of a CUDA device in which a stream keeps cases; computing needs the rest."""


@dataclass
class CaseFacts:
    """Facts about a case, once it has been read.

    Attributes:
        name: Its name.
        fingerprint: Hash of its content (`segcal.functional.fingerprint`); "" if it has none.
        doubt: Warning that its logits look like probabilities, if they do.
        finite: Whether all of its logits are finite as they are stored; False until all of them have been read.
        logits: Checked logits `[L, *S]`, where they are kept.
        labels: Checked labels `[1, *S]`, where they are kept.
        case: The case itself, where its logits are kept in memory or, decompressed, in a temporary file.
    """

    name: str
    fingerprint: str
    doubt: str | None
    finite: bool = False
    logits: Tensor | None = None
    labels: Labels | None = None
    case: Case | None = None


@dataclass
class _Store:
    """State that a stream shares with its parts: the cases, what is known of them, and bytes that may still be kept."""

    cases: Sequence[Case]
    memory: int
    facts: dict[int, CaseFacts] = field(default_factory=dict)
    files: TemporaryArrays = field(default_factory=TemporaryArrays)
    passes: tuple[int, str] | None = None
    """Number of passes of the case that was read first, and its name."""

    def __post_init__(self) -> None:
        self.room = self.memory

    @cached_property
    def disk(self) -> int:
        """Bytes of temporary files that may still be written."""
        return int(_DISK_SHARE * shutil.disk_usage(tempfile.gettempdir()).free)

    def reserve(self, size: int, place: Literal["room", "disk"] = "room") -> bool:
        """Take some bytes of memory, or of the disk; return whether as many were left."""
        left = getattr(self, place) - size
        if left >= 0:
            setattr(self, place, left)
        return bool(left >= 0)

    def holds(self, logits: object) -> bool:
        """Return whether logits of one of the cases are in memory whether or not the stream keeps them."""
        in_memory = isinstance(logits, np.ndarray | Tensor) and not is_mapped(logits)
        return isinstance(self.cases, list | tuple) and in_memory


Change: TypeAlias = "Callable[[StreamedCase, Slab], Slab]"
"""Function from a case and one of its slabs, as it was read, to another slab of the same pixels."""


class CaseStream:
    """Cases as checked slabs, which can be gone through many times.

    Args:
        cases: Cases, in memory or read on access.
        num_classes: L.
        ignore_index: Label, or labels, to leave out.
        background: Class to leave out except near a boundary (outside the region *All*); None for none.
        device: Device of the slabs; the CPU by default.
        images: Whether slabs carry the image of their case.
        passes: Whether slabs carry the further passes of their case, of which every case must have as many.
        labelled: Whether every case must have labels; without, `labels` of slabs are None.
        memory: Bytes in which cases from files are kept between passes; by default 1 GiB of host memory, or half of the
            free memory of a CUDA device. Cases that are in memory anyway do not count.

    Examples:
        >>> case = Case("a", np.zeros((2, 4, 4), np.float32), np.eye(4, dtype=np.uint8))
        >>> stream = CaseStream([case], num_classes=2, ignore_index=1)
        >>> [(slab.logits.shape, int(slab.labels.min())) for slab in stream.slabs()]
        [(torch.Size([1, 2, 4, 4]), -1)]
    """

    def __init__(
        self,
        cases: Iterable[Case],
        num_classes: int,
        *,
        ignore_index: IgnoreIndex = None,
        background: int | None = None,
        device: torch.device | None = None,
        images: bool = True,
        passes: bool = False,
        labelled: bool = True,
        memory: int | None = None,
    ) -> None:
        self._progress = cases.progress if isinstance(cases, Tracked) else None
        kept = as_collection(cases.items if isinstance(cases, Tracked) else cases)
        self.num_classes, self.ignore_index, self.background = num_classes, ignore_index, background
        self.device = device or torch.device("cpu")
        self.images, self.passes, self.labelled = images, passes, labelled
        sequence = kept if isinstance(kept, Sequence) else list(kept)
        self._change: Change | None = None
        self._hides_passes = not passes
        self._store = _Store(sequence, _free_memory(self.device) if memory is None else memory)
        self._positions: Sequence[int] = range(len(sequence))

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self._positions)

    def __iter__(self) -> Iterator[StreamedCase]:
        """Go through the cases once."""
        positions = self._positions if self._progress is None else Tracked(self._positions, self._progress)
        return map(self._streamed, positions)

    def __getitem__(self, index: int) -> StreamedCase:
        """Return one case."""
        return self._streamed(self._positions[index])

    def slabs(self, context: int = 0) -> Iterator[Slab]:
        """Go through the slabs of all cases once."""
        for case in self:
            yield from case.slabs(context)

    def part(self, indices: Iterable[int]) -> CaseStream:
        """Return the cases at some positions; what is kept and remembered is shared."""
        return self._with(_positions=[self._positions[k] for k in indices])

    @property
    def pass_count(self) -> int:
        """Number of further passes of each case that its slabs carry."""
        return 0 if self._hides_passes or self._change is not None else len(self[0].case.each_pass)

    def without_passes(self) -> CaseStream:
        """Return the same cases without their passes; what is kept and remembered is shared."""
        return self._with(_hides_passes=True)

    def changed(self, change: Change) -> CaseStream:
        """Return the same cases with every slab changed after it is read; what is kept and remembered is shared."""
        return self._with(_change=change)

    def _with(self, **attributes: Any) -> CaseStream:
        found = copy(self)
        found.__dict__.update(attributes)
        return found

    @property
    def facts(self) -> list[CaseFacts]:
        """Facts about the cases that were read, in order."""
        return [self._store.facts[k] for k in self._positions if k in self._store.facts]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Doubts about the logits of the cases that were read, each once."""
        return tuple(dict.fromkeys(facts.doubt for facts in self.facts if facts.doubt))

    def _streamed(self, position: int) -> StreamedCase:
        facts = self._store.facts.get(position)
        if facts is not None and facts.case is not None:
            return StreamedCase(self, facts.case, facts, position)
        case = self._store.cases[position]
        if not isinstance(case, Case):
            raise not_a_case(case)
        case = case if self.passes else replace(case, passes=None)
        check_shape(case if self.labelled else replace(case, labels=None), self.num_classes)
        case = case if self.images else replace(case, image=None)
        if self.passes:
            count = len(case.each_pass)
            expected, first = self._store.passes = self._store.passes or (count, case.name)
            if count != expected:
                raise InputError(
                    f"all cases must have the same passes, got {count} of case '{case.name}' and {expected} of case "
                    f"'{first}'; give every case each pass, in the same order"
                )
        if facts is None:
            content = fingerprint(case.logits, case.labels) if self.labelled and case.labels is not None else ""
            facts = CaseFacts(case.name, content, probability_doubt(case.logits))
            self._store.facts[position] = facts
        return StreamedCase(self, case, facts, position)


class StreamedCase:
    """One case of a stream, of which the labels and one slab at a time are in memory.

    Attributes:
        case: The case as it was given.
        number: Its position among all cases that the stream was made of.
        shape: Shape `[L, *S]` of its logits.
    """

    def __init__(self, stream: CaseStream, case: Case, facts: CaseFacts, number: int) -> None:
        self._stream, self._facts, self.case, self.number = stream, facts, case, number
        self.name, self.group, self.spacing = case.name, case.group, case.spacing
        self.shape: tuple[int, ...] = tuple(int(length) for length in case.logits.shape)

    @property
    def device(self) -> torch.device:
        """Device of its slabs."""
        return self._stream.device

    @property
    def fingerprint(self) -> str:
        """Hash of the content, by which a copy is recognised whatever its name."""
        return self._facts.fingerprint

    @cached_property
    def labels(self) -> Labels | None:
        """Labels `[1, *S]`, -1 at every pixel that is left out; None in a stream without labels."""
        stream, facts = self._stream, self._facts
        if facts.labels is not None or not stream.labelled:
            return facts.labels
        if self.case.labels is None:
            raise InputError(f"fitting and measuring need labels, and case '{self.name}' has none; add them")
        of, given = f"case '{self.name}'", to_tensor(self.case.labels)
        labels = check_labels(given, stream.num_classes, stream.ignore_index, of=of).unsqueeze(0)
        labels = _inside(labels, stream.background).to(stream.device)
        if stream._store.reserve(labels.numel() * labels.element_size()):
            facts.labels = labels
        return labels

    def slabs(self, context: int = 0) -> Iterator[Slab]:
        """Yield the case in slabs of bounded size, each with up to `context` more slices on either side."""
        labels, all_finite = self.labels, True
        scores = self.shape[0] * (1 + (0 if self._stream._hides_passes else len(self.case.each_pass)))
        for rows, inner in _slab_rows((scores, *self.shape[1:]), context):
            # nothing here refers to a slab that was yielded, so that the caller can drop it before the next is read
            logits, finite = self._read((rows,))
            all_finite = all_finite and finite
            yield self._slab(logits, labels, (rows,), inner)
            del logits
        self._facts.finite = all_finite

    def crop(self, box: Sequence[slice]) -> Slab:
        """Return the part of the case inside a box of its spatial axes."""
        logits, _ = self._read(box)
        return self._slab(logits, self.labels, box, slice(0, logits.shape[1]))

    def _slab(self, logits: Tensor, labels: Labels | None, box: Sequence[slice], inner: slice) -> Slab:
        image, place = self.case.image, (slice(None), *box)
        part = None if image is None else to_tensor(image[place]).to(self._stream.device).unsqueeze(0)
        truth = None if labels is None else labels[place]
        slab = Slab(logits.unsqueeze(0), truth, part, box[0], inner, self._passes(place))
        return slab if self._stream._change is None else self._stream._change(self, slab)

    def _passes(self, place: tuple[slice, ...]) -> Passes | None:
        """Return the checked scores `[1, K, L, *S]` of further passes in a part of the case."""
        if self.case.passes is None or self._stream._hides_passes:
            return None
        read = [_read_scores(scores, place, self._stream.device) for scores in self.case.each_pass]
        classes, of = self._stream.num_classes, f"a pass of case '{self.name}'"
        start = place[1].start or 0
        return torch.stack([check_logits(part, classes, class_axis=0, start=start, of=of) for part in read])[None]

    def _read(self, box: Sequence[slice]) -> tuple[Tensor, bool]:
        """Return checked logits `[L, *S]` of a box, and whether all were finite as they were stored."""
        place = (slice(None), *box)
        if (whole := self._whole) is not None:
            return whole[place].contiguous(), self._facts.finite
        stored = _read_scores(self.case.logits, place, self._stream.device)
        return self._checked(stored, box[0].start or 0)

    @cached_property
    def _whole(self) -> Tensor | None:
        """All logits, checked, of a case that is kept or small enough to be read at once; None for larger ones."""
        store, facts, stream = self._stream._store, self._facts, self._stream
        if facts.logits is not None:
            return facts.logits
        large, free = (
            math.prod(self.shape) > SLAB,
            store.holds(self.case.logits) and stream.device.type == "cpu",
        )
        keeps = not large if free else store.reserve(_bytes(self.case))
        if not keeps and not free:
            self._keep_on_disk()
        if large and not keeps:
            return None
        stored = _read_scores(self.case.logits, (slice(None),), stream.device)
        whole, facts.finite = self._checked(stored, 0)
        if keeps:
            facts.logits, facts.case = whole, self.case if free else _without_maps(self.case, stored)
        return whole

    def _keep_on_disk(self) -> None:
        """Keep a case that was decompressed in temporary files, so that later passes do not decompress it again.

        A stream without memory goes through its cases once. Logits that are mapped from a file of the user stay there.
        """
        store, facts, case = self._stream._store, self._facts, self.case
        logits = case.logits
        if not isinstance(logits, np.ndarray) or store.memory == 0 or store.holds(logits) or case.passes is not None:
            return
        if is_mapped(logits) and getattr(logits, "filename", "") is not None:  # a temporary file has no name
            return
        if facts.case is None and store.reserve(_bytes(case), "disk"):
            arrays = {name: getattr(case, name) for name in ("logits", "labels", "image")}
            with suppress(OSError):  # the disk is full after all
                copies: dict[str, Any] = {
                    name: store.files.copy(array) for name, array in arrays.items() if isinstance(array, np.ndarray)
                }
                self.case = facts.case = replace(case, **copies)

    def _checked(self, stored: Tensor, start: int) -> tuple[Tensor, bool]:
        if self._facts.finite:
            return stored, True
        of = f"case '{self.name}'"
        logits = check_logits(stored, self._stream.num_classes, class_axis=0, start=start, of=of)
        return logits, logits is stored


def _inside(labels: Labels, background: int | None) -> Labels:
    """Return labels with -1 also where the background lies outside the region *All*; None keeps every label."""
    if background is None:
        return labels
    inside = foreground(labels, IGNORED, background=background)
    # numpy, because small operations wake PyTorch's threads, which then spin
    return torch.from_numpy(np.where(inside.cpu().numpy(), labels.cpu().numpy(), IGNORED)).to(labels.device)


def _slab_rows(shape: tuple[int, ...], context: int) -> Iterator[tuple[slice, slice]]:
    """Yield the position of each slab of logits of a shape `[L, *S]`, and its inner slices without context in it."""
    step = max(1, SLAB // math.prod((shape[0], *shape[2:])) // _WHOLE) * _WHOLE
    for start in range(0, shape[1], step):
        stop = min(start + step, shape[1])
        rows = slice(max(0, start - context), min(stop + context, shape[1]))
        yield rows, slice(start - rows.start, stop - rows.start)


def _read_scores(scores: Array | Tensor, place: tuple[slice, ...], device: torch.device | None) -> Tensor:
    """Return a part of the scores `[L, *S]` as they are stored, contiguous and on a device."""
    part = to_tensor(scores[place]).to(device)
    release_pages(scores)
    return part.contiguous()


def _without_maps(case: Case, stored: Tensor) -> Case | None:
    """Return a case that is in memory; None where its logits were moved to another device.

    Each map holds its file open, and a process may open about a thousand.
    """
    fields = {name: getattr(case, name) for name in ("logits", "labels", "image")}
    mapped = {name: array for name, array in fields.items() if is_mapped(array)}
    if not mapped and not any(map(is_mapped, case.each_pass)):
        return case
    if stored.device.type != "cpu":
        return None
    copies: dict[str, Any] = {name: stored.numpy() if name == "logits" else np.array(mapped[name]) for name in mapped}
    passes = [np.array(scores) if is_mapped(scores) else scores for scores in case.each_pass]
    return replace(case, **copies, passes=passes or None)


def _bytes(case: Case) -> int:
    """Return the bytes of the scores and the image of a case once they are in memory."""
    arrays = [case.logits, *([] if case.image is None else [case.image]), *case.each_pass]
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def _free_memory(device: torch.device) -> int:
    return int(_DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else HOST_MEMORY
