"""Checkpoints that survive a kill: whole files with a checksum, the newest good one is used, no pickle."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from segcal.files import MARKER, refuse_foreign, refuse_special, staged_file, write_json
from segcal.files.reading import FLAG, NUMBER, TABLE, WHOLE, Kind, list_of, optional, problem, record
from segcal.types import InputError

_KEPT = 2
_STEPS = re.compile("moments/[0-9]+/step")
_COUNT = Kind("a number of epochs", lambda value: WHOLE.accepts(value) and value >= 0)
_LOSS = Kind(
    "a number", lambda value: isinstance(value, float) or NUMBER.accepts(value)
)  # or NaN, where a run diverges
_EPOCH = {"number": _COUNT, "of": _COUNT, "loss": _LOSS, "validation": optional(_LOSS), "best": FLAG, "seconds": _LOSS}
_NOTES = record(
    {"epoch": _COUNT, "run": TABLE, "epochs": list_of(record(_EPOCH)), "best_epoch": _COUNT, "best_loss": _LOSS}
)


class TrainingState(NamedTuple):
    """All that a training run needs to go on after an epoch.

    Attributes:
        epoch: Number of epochs that are done.
        tensors: By part: "weights/NAME" of the network, "best/NAME" of its best epoch, and "moments/NUMBER/NAME" of the
            optimiser for the parameter of a number.
        notes: Losses of the epochs, as JSON can hold them.
    """

    epoch: int
    tensors: Mapping[str, Tensor]
    notes: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a part by their names in it."""
        split = {key.rpartition("/"): value for key, value in self.tensors.items()}
        return {key: value for (part, _, key), value in split.items() if part == name}


class Checkpoints:
    """A folder with the checkpoints of one run; the last two are kept.

    Args:
        folder: Made with the first checkpoint.
        run: Settings of the run, and what is trained on which data; checkpoints of another run are refused.
    """

    def __init__(self, folder: str | Path, run: Mapping[str, Any]) -> None:
        self.folder, self.run = Path(folder), json.loads(json.dumps(run))  # as it is read again

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint under a temporary name, then rename it; drop those that are older than the last two."""
        refuse_foreign(self.folder, "checkpoints")
        if not (self.folder / MARKER).exists():
            with staged_file(self.folder / MARKER) as file:
                write_json(file, {"format": 1, "checkpoints": "of a training run"})
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.tensors.items()}
        notes = json.dumps({**state.notes, "epoch": state.epoch, "run": self.run}, sort_keys=True)
        metadata = {"notes": notes, "sha256": _digest(tensors, notes)}
        path = self.folder / f"epoch-{state.epoch:06d}.safetensors"
        if path.is_symlink():
            raise InputError(f"'{path}' is a link, and a checkpoint is to be written there; remove it")
        with staged_file(path) as file:
            file.write_bytes(save(tensors, metadata))  # `save_file` makes the file private
        for old in self._files()[_KEPT:]:
            old.unlink()

    def newest(self, start: TrainingState) -> tuple[TrainingState | None, list[str]]:
        """The newest whole checkpoint, and a sentence on each damaged one that was passed over.

        Args:
            start: The state in which the run begins; a checkpoint must have tensors of these names, shapes and types.

        Raises:
            InputError: The checkpoints are of another run.
        """
        warnings = list[str]()
        for file in self._files():
            try:
                state = _read(file)
            except (OSError, KeyError, ValueError, RecursionError, SafetensorError) as error:
                reason = str(error)
            else:
                self._check_same_run(file, state.notes["run"])
                if _shapes(state, state.tensors) != _shapes(start, state.tensors):
                    reason = "its values are those of another network"
                elif any(not value >= 0 for name, value in state.tensors.items() if _STEPS.fullmatch(name)):
                    reason = "its optimiser has taken no number of steps"
                else:
                    return state, warnings
            warnings.append(f"checkpoint '{file}' is damaged ({reason}) and was passed over")
        return None, warnings

    def _files(self) -> list[Path]:
        """Return the checkpoints, the newest first, without files of similar names that somebody keeps beside them."""
        numbers = (
            (re.fullmatch(r"epoch-([0-9]{6,12})\.safetensors", path.name), path) for path in self.folder.glob("*")
        )
        found = [(int(name[1]), path) for name, path in numbers if name]
        return [path for _, path in sorted(found, reverse=True)]

    def _check_same_run(self, file: Path, found: Mapping[str, Any]) -> None:
        differing = [name for name in self.run if found.get(name) != self.run[name]]
        if differing:
            name = differing[0]
            raise InputError(
                f"checkpoint '{file}' is of a run with {name}={found.get(name)}, and this one has {self.run[name]}; "
                "use the same settings and data, or another checkpoint folder"
            )


def _shapes(state: TrainingState, found: Collection[str]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shapes and types of the tensors; moments only of those parameters that have any in `found`."""
    parts = {name.rpartition("/")[0] for name in found}
    kept = (name for name in state.tensors if not name.startswith("moments/") or name.rpartition("/")[0] in parts)
    return {name: (state.tensors[name].shape, state.tensors[name].dtype) for name in kept}


def _read(file: Path) -> TrainingState:
    refuse_special(file)
    with safe_open(file, framework="pt") as content:
        metadata = content.metadata() or {}
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    if _digest(tensors, metadata["notes"]) != metadata["sha256"]:
        raise ValueError("its checksum is wrong")
    notes = json.loads(metadata["notes"])
    if wrong := problem(notes, _NOTES):
        raise ValueError(wrong)
    return TrainingState(notes.pop("epoch"), tensors, notes)


def _digest(tensors: Mapping[str, Tensor], notes: str) -> str:
    digest = hashlib.sha256(notes.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
