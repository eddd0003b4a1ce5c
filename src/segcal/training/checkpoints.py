"""Checkpoints that survive a kill: whole files with a checksum, the newest good one is used, no pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from segcal.files import MARKER, refuse_foreign, refuse_special, staged_file, write_json
from segcal.types import InputError

_KEPT = 2


class TrainingState(NamedTuple):
    """All that a training run needs to go on after an epoch."""

    epoch: int
    weights: Mapping[str, Tensor]
    best: Mapping[str, Tensor]
    optimiser: dict[str, Any]
    notes: dict[str, Any]


class Checkpoints:
    """A folder with the checkpoints of one run; the last two are kept."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint under a temporary name, then rename it; drop those that are older than the last two."""
        refuse_foreign(self.folder, "checkpoints")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / MARKER).exists():
            write_json(self.folder / MARKER, {"format": 1, "checkpoints": "of a training run"})
        tensors, plain = _flatten(state)
        notes = json.dumps(plain, allow_nan=False, sort_keys=True)
        metadata = {"notes": notes, "sha256": _digest(tensors, notes)}
        with staged_file(self.folder / f"epoch-{state.epoch:06d}.safetensors") as file:
            save_file(tensors, file, metadata=metadata)
        for old in self._files()[_KEPT:]:
            old.unlink()

    def newest(self, settings: Mapping[str, Any]) -> tuple[TrainingState | None, list[str]]:
        """The newest whole checkpoint, and a sentence on each damaged one that was passed over.

        Raises:
            InputError: The checkpoints are of a run with other settings.
        """
        warnings = []
        for file in self._files():
            try:
                state = _read(file)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                warnings.append(f"checkpoint '{file}' is damaged ({error}) and was passed over")
                continue
            _check_same_run(file, state.notes["settings"], settings)
            return state, warnings
        return None, warnings

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("epoch-*.safetensors"), reverse=True)


def _check_same_run(file: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    if differing:
        name = differing[0]
        raise InputError(
            f"checkpoint '{file}' is of a run with {name}={found.get(name)}, and this one has {wanted[name]}; "
            "use the same settings or another checkpoint folder"
        )


def _flatten(state: TrainingState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"weights/{name}": value for name, value in state.weights.items()}
    tensors |= {f"best/{name}": value for name, value in state.best.items()}
    for index, values in state.optimiser["state"].items():
        tensors |= {f"optimiser/{index}/{name}": torch.as_tensor(value) for name, value in values.items()}
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return copies, {"epoch": state.epoch, "groups": state.optimiser["param_groups"], **state.notes}


def _read(file: Path) -> TrainingState:
    refuse_special(file)
    with safe_open(file, framework="pt") as content:
        metadata = content.metadata() or {}
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    if _digest(tensors, metadata["notes"]) != metadata["sha256"]:
        raise ValueError("its checksum is wrong")
    notes = json.loads(metadata["notes"])
    optimiser: dict[str, Any] = {"state": {}, "param_groups": notes.pop("groups")}
    for name, value in tensors.items():
        if name.startswith("optimiser/"):
            _, index, field = name.split("/")
            optimiser["state"].setdefault(int(index), {})[field] = value
    weights, best = (
        {name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}
        for kind in ("weights/", "best/")
    )
    return TrainingState(notes.pop("epoch"), weights, best, optimiser, notes)


def _digest(tensors: Mapping[str, Tensor], notes: str) -> str:
    digest = hashlib.sha256(notes.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
