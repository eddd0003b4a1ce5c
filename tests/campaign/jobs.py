"""Commands that write, each with inputs, an old output to replace and the new output that must appear whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.campaign import folders
from tests.campaign.processes import PYTHON, finished
from tests.campaign.running import run
from tests.campaign.trees import Tree, read_tree, write_tree

CASES = 24
COSTS = ("seconds", "memory", "checksum", "files")


@dataclass(frozen=True)
class Job:
    """A command that replaces `output`.

    Args:
        name: Of the command.
        args: Its command line.
        before: Command line that makes the old output.
        output: The file or folder that it writes.
    """

    name: str
    args: tuple[str, ...]
    before: tuple[str, ...]
    output: str


def _command(name: str, text: str, new: str, old: str, output: str = "out") -> Job:
    """Return a command whose line holds one of two variants at its {}."""
    made, before = ((*text.format(variant).split(), "--out", output) for variant in (new, old))
    return Job(name, made, before, output)


JOBS = (
    _command("apply", "apply {} data", "one", "two"),
    _command("apply, float16 and temperatures", "apply {}", "one data --temperature --dtype float16", "two data"),
    _command("fit", "fit data --method {}", "ts", "vector"),
    _command("evaluate", "evaluate small --patches {}", "2 --calibrators one", "3"),
    Job("diagnose", ("diagnose", "data", "--maps", "out"), ("diagnose", "small", "--maps", "out"), "out"),
    _command("compare", "compare small --patches 2 --methods {}", "ts,vector", "ts"),
    _command("decide", "decide {}", "data", "small"),
    _command("report", "report {}", "results", "others", "out.html"),
    _command("table", "table {}", "results", "others", "out.tex"),
    _command("fuse", "fuse atlases --method {}", "plurality", "majority"),
    _command("figure", "figure reliability {}", "results", "others", "out.png"),
    _command("export", "export {}", "one", "two", "out.onnx"),
    _command("nnunet fit", "nnunet fit folds --method {}", "ts", "vector"),
)


def _program(name: str, text: str, new: str, old: str) -> Job:
    """Return a program that uses segcal as a library, which has no handlers of signals."""
    start = "import torch, segcal\nfrom segcal.data.folders.folder import open_folder\n"
    return Job(f"{name} in Python", (PYTHON, start + text.format(new)), (PYTHON, start + text.format(old)), "out")


_SMALL = 'open_folder("small"), {{"TS": segcal.load("one")}}, num_classes=3, repetitions=50'
PROGRAMS = (
    _program("fit", 'segcal.create("{}", 3, spatial_dims=2).fit(open_folder("data")).save("out")', "ts", "vector"),
    _program("evaluate", f'segcal.evaluate({_SMALL}, patches={{}}).save("out")', "2", "3"),
    _program(
        "calibrate",
        "loader = [(torch.as_tensor(case.logits[:])[None], torch.as_tensor(case.labels)[None]) for case in "
        'open_folder("data")]\nsegcal.calibrate(torch.nn.Identity(), loader, "{}").calibrator.save("out")',
        "ts",
        "vector",
    ),
)
"""The same without the commands."""


def make_inputs(root: Path, seed: int) -> None:
    """Write what all jobs read into `root`."""
    rng = np.random.default_rng(seed)
    tree: Tree = {}
    for k, (name, (logits, labels)) in enumerate(
        folders.scores(rng, (24, 20), tuple(f"c{k:02}" for k in range(CASES))).items()
    ):
        for place in ("data", "small") if k < 3 else ("data",):
            tree[f"{place}/logits/{name}.npy"] = folders.npy(logits)
            tree[f"{place}/labels/{name}.png"] = folders.png(labels)
    tree |= {f"atlases/{name}": content for name, content in folders.of_atlases(rng).items()}
    tree |= {f"folds/{name}": content for name, content in folders.of_folds(rng).items()}
    write_tree(root, tree)
    for args in (
        ("fit", "data", "--method", "ts", "--out", "one"),
        ("fit", "data", "--method", "ts", "--out", "two", "--set", "bounds=3,9"),
        ("evaluate", "small", "--patches", "2", "--calibrators", "one", "--out", "results"),
        ("evaluate", "small", "--patches", "3", "--out", "others"),
    ):
        must(args, root)


def must(args: tuple[str, ...], root: Path) -> None:
    """Run a command that has no reason to fail."""
    status, words = finished(args, root)
    if status:
        raise SystemExit(f"segcal {' '.join(args)} failed before anything was attacked: {words}")


def content_of(path: Path) -> Tree:
    """Return an output without what differs between two equal runs: time and memory, and checksums of these."""
    if not path.exists():
        return {}
    found = read_tree(path) if path.is_dir() else {path.name: path.read_bytes()}
    return {name: _timeless(content) if name.endswith(".json") else content for name, content in found.items()}


def _timeless(content: bytes | None) -> bytes | None:
    try:
        return json.dumps(_without_costs(json.loads(content or b""))).encode()
    except ValueError:
        return content  # half-written, which the comparison shows


def _without_costs(value: object) -> object:
    if isinstance(value, list):
        return [_without_costs(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _without_costs(inner) for key, inner in value.items() if key not in COSTS}
    return value


def warm_up(root: Path) -> None:
    """Run every job once in this process, so that those forked from it have all imports and compiled code.

    There is time enough: a compiler or an import that is interrupted may be unusable afterwards.
    """
    for job in JOBS:
        ran = run(job.args, root, seconds=600)
        if ran.status:
            raise SystemExit(
                f"segcal {' '.join(job.args)} failed before anything was attacked: {ran.stderr}{ran.error}"
            )
        remove(root / job.output)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def hidden(folder: Path) -> list[str]:
    """Return what a killed process left behind: temporary names and locks."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def unfinished(folder: Path) -> list[str]:
    """Return the folders in which commands keep finished cases until their output is complete."""
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".unfinished"))
