"""A diagnosis that is shared between processes, or continued after an interruption.

Each image is diagnosed by itself. The temperature of the whole data set depends on all pixels at once: the process that
merges the parts finds it, in a few passes over the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from PIL import Image

from segcal.data.folders.folder import Folder, write_map
from segcal.evaluation.diagnosis import Diagnosis, Finding, coloured, diagnose_image, diagnosis_of, excess_map
from segcal.evaluation.heads import Head, heads_of_folder
from segcal.files import MARKER, staged_folder, write_json
from segcal.parts.journal import Journal
from segcal.parts.outputs import Track
from segcal.parts.work import Sharing, check_complete, check_same_run, gathered, unfinished
from segcal.types import Array, Case
from segcal.version import __version__


def diagnose_folder(
    folder: Folder, sharing: Sharing, *, track: Track = iter, device: torch.device
) -> dict[str, Diagnosis] | None:
    """Diagnose the cases of a folder, or merge the findings of parts; None where another process has the diagnosis.

    Returns:
        The diagnosis of each sigmoid channel by its name; that of a softmax has the name "".
    """
    classes = [folder.num_classes, folder.activation, folder.ignore_index, folder.background]
    run, heads = sharing.run([*classes, list(folder.names)]), heads_of_folder(folder)
    if sharing.parts:
        check_same_run(run, sharing.parts)
        kept = {name: note for path in sharing.parts for name, note in _finished(path, folder).items()}
        return _diagnosis(kept, folder, device)
    with unfinished(sharing, run) if sharing.out is not None else nullcontext() as place:
        own, identities = sharing.own.of(folder.names), folder.identities()
        found = {} if place is None else _finished(place, folder)
        journal = None if place is None else Journal(place)
        todo = folder.subset(name for name in own if name not in found)
        for case in track(todo) if len(todo) else ():
            images = [asdict(_diagnosed(head, case, device)) for head in heads]
            found[case.name] = {"identity": identities[case.name], "findings": images}
            if journal is not None:
                journal.note(case.name, found[case.name])
        every = {name: note for notes in gathered(found) for name, note in notes.items()}
        return _diagnosis(every, folder, device) if sharing.own.index == 1 and sharing.part is None else None


def plain_diagnosis(found: Mapping[str, Diagnosis], limits: Mapping[str, pd.DataFrame] | None = None) -> dict[str, Any]:
    """Return a diagnosis, and perhaps its limits, in values that JSON can hold; of several channels by their names."""
    content = {name: diagnosis.to_dict() for name, diagnosis in found.items()}
    for name, frame in (limits or {}).items():
        content[name]["limits"] = frame.to_dict(orient="records")
    return {"channels": content} if len(content) > 1 else next(iter(content.values()))


def save_diagnosis(found: Mapping[str, Diagnosis], out: Path) -> None:
    """Write the folder `out` with the diagnosis as JSON."""
    cases = len(next(iter(found.values())).images)
    with staged_folder(out) as folder:
        write_json(folder / "diagnosis.json", plain_diagnosis(found))
        write_json(folder / MARKER, {"format": 1, "segcal": __version__, "diagnosis": {"cases": cases}})


class Excess(NamedTuple):
    """NLL minus entropy `[*S]` of a case or one of its channels, and whether it is the last one."""

    values: Array
    last: bool


@dataclass(frozen=True)
class ExcessMaps:
    """Maps of NLL minus entropy: a file for each case and, of images, a picture.

    Orange is overconfident, blue underconfident, grey ignored; colours are full from 2 nats on. Several sigmoid
    channels have a folder each.
    """

    like: Folder
    device: torch.device
    kind = "maps"

    def identity(self) -> list[Any]:
        """Return what decides the maps except the files of the cases."""
        return [self.like.num_classes, self.like.activation, self.like.ignore_index]

    def files(self, name: str, folder: Path) -> list[Path]:
        """Return the files of a case."""
        maps = [self.like.find(name).map_file(place) for place in self.like.map_folders(folder)]
        return [*maps, *(path.with_suffix(".png") for path in maps if self.like.spatial_dims == 2)]

    def companions(self) -> tuple[Path, ...]:
        """Return nothing: maps stand alone."""
        return ()

    def pieces(self, case: Case) -> Iterator[Excess]:
        """Yield the maps of a case, one for each sigmoid channel or a single one."""
        heads = heads_of_folder(self.like)
        for k, head in enumerate(heads):
            ignored = self.like.ignore_index
            excess = excess_map(head.case(case), head.protocol.num_classes, ignored, device=self.device)
            crop = self.like.crops.get(case.name)
            whole = excess if crop is None else crop.put_back(excess, outside=np.nan)
            yield Excess(whole, last=k == len(heads) - 1)

    def write(self, case: Case, pieces: Iterator[Excess], folder: Path) -> dict[str, int]:
        """Write the map of a case as its folder stores such maps, and its picture."""
        for place, (excess, _) in zip(self.like.map_folders(folder), pieces, strict=True):
            place.mkdir(exist_ok=True)
            path = write_map(place, case.name, excess, self.like)
            if excess.ndim == 2:
                Image.fromarray(coloured(excess)).save(path.with_suffix(".png"))
        return {}


def _diagnosed(head: Head, case: Case, device: torch.device) -> Finding:
    protocol = head.protocol
    return diagnose_image(head.case(case), protocol.num_classes, protocol.ignore_index, protocol.background, device)


def _finished(place: Path, folder: Folder) -> dict[str, dict[str, Any]]:
    """Return what was found on cases that have not changed since."""
    identities = folder.identities()
    return {name: note for name, note in Journal(place).notes().items() if note["identity"] == identities.get(name)}


def _diagnosis(notes: dict[str, dict[str, Any]], folder: Folder, device: torch.device) -> dict[str, Diagnosis]:
    check_complete(folder.names, notes)
    found = {}
    for k, head in enumerate(heads_of_folder(folder)):
        images = tuple(Finding(**notes[name]["findings"][k]) for name in folder.names)
        protocol = head.protocol
        found[head.name] = diagnosis_of(
            images, head.cases(folder), protocol.num_classes, protocol.ignore_index, protocol.background, device
        )
    return found
