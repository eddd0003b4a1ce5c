"""Work shared between processes: wall time, bytes and identical output of `apply` and `evaluate` under torchrun.

`python -m benchmarks shared --images 2000` writes that many images to a temporary folder and runs both commands with 1,
2 and 4 processes; outputs are compared byte by byte. It also compares `apply` in one process with a program that only
reads and writes the same bytes, for small and for larger images.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

import segcal
from benchmarks.timing import console, scene, table
from segcal.apply import apply_to_folder
from segcal.calibrators import Calibrator, create
from segcal.data.folders.folder import Folder, open_folder
from segcal.types import Case

IMAGES = 2000
SIZE = (180, 240)
CLASSES = 11
PROCESSES = (1, 2, 4)
COPIED = ((11, (180, 240), 200), (21, (512, 512), 16))
"""Classes, size and number of images that are copied and calibrated."""


def sharing(images: int = IMAGES) -> None:
    """Print time and bytes of both commands for each number of processes, and `apply` against copying."""
    with tempfile.TemporaryDirectory(prefix="segcal-benchmark-") as name:
        root = Path(name)
        _write_data(root, images)
        _commands(root, images)
    copying()


def _write_data(root: Path, images: int, classes: int = CLASSES, size: tuple[int, int] = SIZE) -> Calibrator:
    """Write images that are all different, but quickly made: one scene, rolled and scaled."""
    logits, labels = scene(classes, size)
    plain, truth = logits[0].numpy(), labels[0].numpy().astype(np.uint8)
    for kind in ("logits", "labels"):
        (root / "data" / kind).mkdir(parents=True)
    for k in range(images):
        scale, shift = np.float32(0.5 + k % 7 / 4), k % size[1]
        np.save(root / "data" / "logits" / f"{k:05}.npy", np.roll(plain, shift, axis=-1) * scale)
        np.save(root / "data" / "labels" / f"{k:05}.npy", np.roll(truth, shift, axis=-1))
    calibrator = create("ts", classes).fit([Case("first", plain, truth)])
    calibrator.save(root / "ts")
    return calibrator


def _commands(root: Path, images: int) -> None:
    shown = table(
        f"{images} images of {CLASSES} x {SIZE[0]} x {SIZE[1]}, torchrun on {os.cpu_count()} cores",
        "command", "processes", "s", "speed-up", "MB written", "same bytes",
    )  # fmt: skip
    commands = {"apply": ["ts", "data"], "evaluate": ["data", "--calibrators", "ts"]}
    for command, arguments in commands.items():
        first, reference = 0.0, ""
        for processes in PROCESSES:
            out = f"{command}-{processes}"
            seconds = _timed(lambda p=processes, c=command, a=arguments, o=out: _torchrun(root, p, [c, *a, "--out", o]))  # type: ignore[misc]
            size, digest = _digest(root / out)
            first, reference = first or seconds, reference or digest
            same = "yes" if digest == reference else "NO"
            shown.add_row(
                command, str(processes), f"{seconds:.1f}", f"{first / seconds:.2f}", f"{size / 1e6:.0f}", same
            )
    console.print(shown)


def _torchrun(root: Path, processes: int, arguments: list[str]) -> None:
    threads = max(1, (os.cpu_count() or 1) // processes)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    source = str(Path(segcal.__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": source}
    subprocess.run(
        [*launcher, "-m", "segcal", *arguments], cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL
    )


def _digest(folder: Path) -> tuple[int, str]:
    """Return the size of all files of a folder and a hash of their names and contents."""
    digest, size = hashlib.sha256(), 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            digest.update(str(path.relative_to(folder)).encode() + content)
            size += len(content)
    return size, digest.hexdigest()


def copying(rounds: int = 5) -> None:
    """Print `apply` in this process as a multiple of reading and writing the same bytes: the best of rounds in turn."""
    shown = table(
        f"apply in one process, {torch.get_num_threads()} threads",
        "images", "MB each", "read and write, MB/s", "apply, MB/s", "times as long",
    )  # fmt: skip
    for classes, size, images in COPIED:
        with tempfile.TemporaryDirectory(prefix="segcal-benchmark-") as name:
            root = Path(name)
            calibrator = _write_data(root, images, classes, size)
            folder = open_folder(root / "data", require_labels=False)
            megabytes = sum(files.scores.path.stat().st_size for files in folder.files.values()) / 1e6
            copied, applied = _best(root, folder, calibrator, rounds)
        speeds = [f"{megabytes / seconds:.0f}" for seconds in (copied, applied)]
        what = f"{images} of {classes} x {size[0]} x {size[1]}"
        shown.add_row(what, f"{megabytes / images:.1f}", *speeds, f"{applied / copied:.2f}")
    console.print(shown)


def _best(root: Path, folder: Folder, calibrator: Calibrator, rounds: int) -> tuple[float, float]:
    """Return the shortest times of copying and of calibrating a folder, which take turns."""
    apply_to_folder(calibrator, folder[:2], out=root / "warm-up")
    copied, applied = [], []
    for _ in range(rounds):
        copied.append(_timed(lambda: _copied(folder, root / "copied")))
        applied.append(_timed(lambda: apply_to_folder(calibrator, folder, out=root / "applied")))
        for out in ("copied", "applied"):
            shutil.rmtree(root / out)
    return min(copied), min(applied)


def _copied(folder: Folder, out: Path) -> None:
    """Read every score file into memory and write it again, all on disk at the end, as `apply` does."""
    out.mkdir()
    for name, files in folder.files.items():
        np.save(out / f"{name}.npy", np.load(files.scores.path))
    for path in out.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _timed(function: Callable[[], object]) -> float:
    start = perf_counter()
    function()
    return perf_counter() - start
