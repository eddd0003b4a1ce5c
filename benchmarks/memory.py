"""Peak memory of fitting on half a billion pixels, and of calibrating a 57-class brain, each in its own process."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numba import njit, prange

from benchmarks.timing import console, table
from segcal import Case, create, methods
from segcal.types import Array

CLASSES = 11
SIZE = (720, 960)
BOUND = 2_000_000_000
PIXELS = 500_000_000
_TABLE = 1 << 22
_CONTRAST, _TEMPERATURE = 2.0, 1.5


class Simulated(Sequence[Case]):
    """Cases made when they are asked for, and forgotten: overconfident logits and labels drawn from the true ones.

    Each class of each case is a piece of one table of random numbers, at a place that the seed and the case tell: new
    numbers would take longer to draw than most methods take to look at them.
    """

    def __init__(self, pixels: int, seed: int = 0) -> None:
        self.length, self.seed = -(-pixels // (SIZE[0] * SIZE[1])), seed
        random = np.random.default_rng(seed)
        self.normal = random.standard_normal(_TABLE, dtype=np.float32)
        self.gumbel = random.gumbel(size=_TABLE).astype(np.float32)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Case]: ...
    def __getitem__(self, index: int | slice) -> Case | Sequence[Case]:
        """One case; parts of the sequence are not needed."""
        if isinstance(index, slice):
            raise TypeError("cases are made one at a time")
        if not 0 <= index < self.length:
            raise IndexError(index)
        random = np.random.default_rng([self.seed, index])
        starts = random.integers(0, _TABLE - SIZE[0] * SIZE[1], size=(2, CLASSES))
        logits, labels = np.empty((CLASSES, *SIZE), np.float32), np.empty(SIZE, np.uint8)
        _draw(self.normal, self.gumbel, starts, logits.reshape(CLASSES, -1), labels.reshape(-1))
        return Case(f"case-{index}", logits, labels)


@njit(parallel=True, cache=True)
def _draw(normal: Array, gumbel: Array, starts: Array, logits: Array, labels: Array) -> None:
    """The argmax of logits plus Gumbel noise is a draw from their softmax."""
    for pixel in prange(labels.size):
        best = -np.inf
        for k in range(CLASSES):
            true_logit = _CONTRAST * normal[starts[0, k] + pixel]
            logits[k, pixel] = _TEMPERATURE * true_logit
            score = true_logit + gumbel[starts[1, k] + pixel]
            if score > best:
                best, labels[pixel] = score, k


def fit_one(method: str, pixels: int) -> None:
    """Fit one method, and print what it took as JSON: for a process that does nothing else."""
    cases = Simulated(pixels)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # what is made on the fly is not worth keeping
    settings: dict[str, Any] = {"epochs": 1, "cache_bytes": 0} if method in ("lts", "ibts") else {}
    calibrator = create(method, CLASSES).fit(cases, **settings)
    report = calibrator.fit_report_
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"peak": 1024 * peak, "held": 1024 * held, "seconds": report.seconds, "pixels": report.pixels}
    print(json.dumps({**found, "before": report.nll_before, "after": report.nll_after, "steps": report.steps}))


def fitting(pixels: int = PIXELS, chosen: Sequence[str] = ()) -> None:
    """Print the peak resident memory of fitting each method."""
    title = f"fit on {pixels:,} pixels of {CLASSES} classes, made while fitting; bound {BOUND / 1e9:.0f} GB"
    shown = table(title, "method", "peak, MB", "before fitting, MB", "seconds", "NLL before", "after", "")
    for method in chosen or methods():
        command = [sys.executable, "-m", "benchmarks.memory", method, "--pixels", str(pixels)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shown.add_row(method, "failed", *[""] * 4, done.stderr.strip().splitlines()[-1])
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        shown.add_row(
            method,
            f"{found['peak'] / 1e6:.0f}",
            f"{found['held'] / 1e6:.0f}",
            f"{found['seconds']:.0f}",
            f"{found['before']:.5f}",
            f"{found['after']:.5f}",
            "" if found["peak"] < BOUND else "over the bound",
        )
        print(method, found, file=sys.stderr, flush=True)  # hours may pass before the table is whole
    console.print(shown)


VOLUME = (57, 181, 217, 181)
"""Classes and voxels of LPBA40's brains with a background, 0.8 GB in float16."""

_FORMATS = ("npy", "npz", "nii", "nii.gz")
_RUN = """
import re, sys, time
from pathlib import Path
from segcal.cli.app import app
from typer.main import get_command
start = time.perf_counter()
get_command(app).main(sys.argv[1:], prog_name="segcal", standalone_mode=False)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(time.perf_counter() - start, 1024 * int(peak), file=sys.stderr)
"""
"""Runs a command and prints its seconds and peak memory, from Linux: getrusage would begin with that of the parent."""


def volume(chosen: Sequence[str] = ()) -> None:
    """Print time and peak memory of `segcal fit`, `evaluate` and `apply` on one brain."""
    title = f"one volume of {VOLUME} in float16; bound {BOUND / 1e9:.0f} GB"
    shown = table(title, "command, files", "peak, MB", "seconds", "written, MB", "")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        _write_volumes(root)
        for method in chosen or ("ts", "cts", "ibts", "lts", "auto"):
            epochs = ["--epochs", "1"] if method in ("lts", "ibts", "auto") else []
            shown.add_row(f"fit {method}", *_ran(root / method, "fit", root / "npy", "--method", method, *epochs))
        for method in (method for method in chosen or ("ts", "lts") if (root / method).exists()):
            row = _ran(root / "results", "evaluate", root / "npy", "--calibrators", root / method)
            shown.add_row(f"evaluate {method}", *row)
            for kind in _FORMATS:
                row = _ran(root / "out", "apply", root / method, root / kind, "--dtype", "float16")
                shown.add_row(f"apply {method}, .{kind}", *row)
    console.print(shown)


def _write_volumes(root: Path) -> None:
    """Write the volume in each format: float16 logits, nnU-Net's probabilities, NIfTI in float32."""
    random = np.random.default_rng(0)
    classes, *space = VOLUME
    slab = (4 * random.standard_normal((classes, 1, *space[1:]), dtype=np.float32)).astype(np.float16)
    (root / "npy" / "logits").mkdir(parents=True)
    logits = np.lib.format.open_memmap(root / "npy/logits/a.npy", "w+", np.float16, VOLUME)
    for k in range(space[0]):
        logits[:, k] = np.roll(slab[:, 0], k, axis=-1)
    (root / "npy" / "labels").mkdir()
    np.save(root / "npy/labels/a.npy", np.stack([logits[:, k].argmax(0) for k in range(space[0])]).astype(np.uint8))
    (root / "npz").mkdir()
    np.savez_compressed(root / "npz/a.npz", probabilities=torch.from_numpy(np.asarray(logits)).softmax(0).numpy())
    import nibabel

    image = nibabel.Nifti1Image(logits.astype(np.float32).T, np.eye(4))  # type: ignore[no-untyped-call]
    for kind in ("nii", "nii.gz"):
        (root / kind / "logits").mkdir(parents=True)
        nibabel.save(image, root / kind / "logits" / f"a.{kind}")


def _ran(out: Path, *words: str | Path) -> tuple[str, str, str, str]:
    """Run a command of segcal in a process of its own; return the cells of its row."""
    command = [sys.executable, "-c", _RUN, *words, "--out", out]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        return "failed", "", "", done.stderr.strip().splitlines()[-1]
    seconds, peak = map(float, done.stderr.split()[-2:])
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    row = (f"{peak / 1e6:.0f}", f"{seconds:.0f}", f"{size / 1e6:.0f}", "" if peak < BOUND else "over the bound")
    print(*words[:1], out.name, *row, file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=methods())
    parser.add_argument("--pixels", type=int, default=PIXELS)
    asked = parser.parse_args()
    fit_one(asked.method, asked.pixels)
