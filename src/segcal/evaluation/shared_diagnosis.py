"""A diagnosis that is shared between processes, or continued after an interruption.

Each image is diagnosed by itself. The temperature of the whole data set depends on all pixels at once: the process that
merges the parts finds it, in a few passes over the data.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from segcal.data.folders.folder import Folder, write_map
from segcal.evaluation.diagnosis import Diagnosis, Finding, coloured, diagnose_image, diagnosis_of, excess_map
from segcal.files import MARKER, staged_folder, write_json
from segcal.parts.journal import Journal
from segcal.parts.outputs import Track
from segcal.parts.work import Sharing, check_complete, check_same_run, gathered, unfinished
from segcal.types import Case
from segcal.version import __version__


def diagnose_folder(folder: Folder, sharing: Sharing, *, track: Track = iter, device: torch.device) -> Diagnosis | None:
    """Diagnose the cases of a folder, or merge the findings of parts; None where another process has the diagnosis."""
    run = sharing.run([folder.num_classes, folder.ignore_index, folder.background, list(folder.names)])
    if sharing.parts:
        check_same_run(run, sharing.parts)
        kept = {name: note for path in sharing.parts for name, note in _finished(path, folder).items()}
        return _diagnosis(kept, folder, device)
    with unfinished(sharing, run) if sharing.out is not None else nullcontext() as place:
        own, identities = sharing.own.of(folder.names), folder.identities()
        found = {} if place is None else _finished(place, folder)
        todo = folder.subset(name for name in own if name not in found)
        for case in track(todo) if len(todo) else ():
            image = diagnose_image(case, folder.num_classes, folder.ignore_index, folder.background, device)
            found[case.name] = {"identity": identities[case.name], "finding": asdict(image)}
            if place is not None:
                Journal(place).note(case.name, found[case.name])
        every = {name: note for notes in gathered(found) for name, note in notes.items()}
        return _diagnosis(every, folder, device) if sharing.own.index == 1 and sharing.part is None else None


def save_diagnosis(found: Diagnosis, out: Path) -> None:
    """Write the folder `out` with the diagnosis as JSON."""
    with staged_folder(out) as folder:
        write_json(folder / "diagnosis.json", found.to_dict())
        write_json(folder / MARKER, {"format": 1, "segcal": __version__, "diagnosis": {"cases": len(found.images)}})


@dataclass(frozen=True)
class ExcessMaps:
    """Maps of NLL minus entropy: a file for each case and, of images, a picture.

    Orange is overconfident, blue underconfident, grey ignored; colours are full from 2 nats on.
    """

    like: Folder
    device: torch.device
    kind = "maps"

    def identity(self) -> list[Any]:
        """Return what decides the maps except the files of the cases."""
        return [self.like.num_classes, self.like.ignore_index]

    def files(self, name: str, folder: Path) -> list[Path]:
        """Return the files of a case."""
        path = self.like.find(name).map_file(folder)
        return [path, *([path.with_suffix(".png")] if self.like.spatial_dims == 2 else [])]

    def write(self, case: Case, folder: Path) -> dict[str, int]:
        """Write the map of a case as its folder stores such maps, and its picture."""
        excess = excess_map(case, self.like.num_classes, self.like.ignore_index, device=self.device)
        path = write_map(folder, case.name, excess, self.like)
        if excess.ndim == 2:
            Image.fromarray(coloured(excess)).save(path.with_suffix(".png"))
        return {}


def _finished(place: Path, folder: Folder) -> dict[str, dict[str, Any]]:
    """Return what was found on cases that have not changed since."""
    identities = folder.identities()
    return {name: note for name, note in Journal(place).notes().items() if note["identity"] == identities.get(name)}


def _diagnosis(notes: dict[str, dict[str, Any]], folder: Folder, device: torch.device) -> Diagnosis:
    check_complete(folder.names, notes)
    images = tuple(Finding(**notes[name]["finding"]) for name in folder.names)
    return diagnosis_of(images, folder, folder.num_classes, folder.ignore_index, folder.background, device)
