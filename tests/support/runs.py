"""Commands on five cases, whose output every engine must write to the byte."""

from __future__ import annotations

from pathlib import Path

from segcal.data.folders.writer import write_folder
from segcal.data.sample.scenes import simulate
from segcal.types import Case
from support.commands import succeed

COMMANDS = {
    "apply": ("apply", "ts", "data", "--temperature"),
    "evaluate": ("evaluate", "data", "--calibrators", "ts", "--patch-size", "8", "--cases", "case-1"),
    "diagnose": ("diagnose", "data"),
}


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def five_cases(folder: Path) -> Path:
    """Write five cases of different sizes, one of them large enough for two threads, and a calibrator to `folder`."""
    sizes = [(16, 14), (90, 70), (20, 15), (16, 14), (18, 33)]
    scenes = [simulate(1, num_classes=3, size=size, contrast=2.0, seed=k)[0].case for k, size in enumerate(sizes)]
    cases = [Case(f"case-{k}", scene.logits, scene.labels) for k, scene in enumerate(scenes)]
    write_folder(folder / "data", {"test": cases})
    succeed("fit", folder / "data", "--method", "ts", "--out", folder / "ts")
    return folder / "data"
