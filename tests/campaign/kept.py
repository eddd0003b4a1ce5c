"""Work that a refused command keeps: whole files of finished cases, announced, and finished by the same command."""

from __future__ import annotations

import json
import re
import struct
from pathlib import PurePosixPath

from tests.campaign.trees import Tree, below

FOLDER = "out.unfinished/"
_ANNOUNCED = re.compile(r"; (\d+) finished cases? (?:is|are) kept in 'out\.unfinished', and the same command continues")


def wrongly_kept(sentence: str, new: Tree) -> str | None:
    """Return what is wrong with the files that a refused command has left, or None if they are what it announces."""
    kept = below(new, FOLDER)
    if strangers := sorted(name for name in new if not name.startswith(FOLDER)):
        return f"output of a refusal: {strangers}"
    if (announced := _ANNOUNCED.search(sentence)) is None:
        return f"unfinished work that is not announced: {sorted(kept)}"
    marker = json.loads(kept.pop("segcal.json", None) or b"{}")
    if "unfinished" not in marker:
        return "unfinished work without its marker"
    found = {name: kept.pop(name) or b"" for name in sorted(kept) if name.startswith("found/")}
    lines = [line for name, content in found.items() if name.endswith(".jsonl") for line in content.splitlines()]
    notes = list({note["case"]: note for note in map(json.loads, lines)}.values())
    counts = [_measured(name, content) for name, content in found.items() if not name.endswith(".jsonl")]
    if len(notes) + sum(counts) != int(announced[1]):
        return f"{announced[1]} cases announced and {len(notes) + sum(counts)} noted"
    return _incomplete(notes, kept)


def _measured(name: str, content: bytes) -> int:
    """Return the number of cases in a whole file of measurements, which is at the end of its name."""
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    end = max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
    if len(content) != 8 + length + end:
        raise ValueError(f"{name} has {len(content)} bytes")
    return int(name.removesuffix(".safetensors").rpartition("-")[2])


def _incomplete(notes: list[dict], files: Tree) -> str | None:
    """Every file belongs to a noted case and has the size that was noted."""
    sizes: dict[str, list[int]] = {}
    for name, content in files.items():
        sizes.setdefault(_case_of(name, [note["case"] for note in notes]), []).append(len(content or b""))
    wanted = {note["case"]: note["bytes"] for note in notes}
    if {case: sorted(found) for case, found in sizes.items()} != {case: sorted(one) for case, one in wanted.items()}:
        return f"files {sizes}, and {wanted} noted"
    return None


def _case_of(path: str, cases: list[str]) -> str:
    """Return the case of a file: the longest name that its own begins with."""
    name = PurePosixPath(path).name
    return max((case for case in cases if name.startswith(f"{case}.")), key=len, default=name)
