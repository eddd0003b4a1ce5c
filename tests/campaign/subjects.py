"""What is attacked: input folders with the commands that read them, and how to tell whether they did it right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.campaign import checks, folders
from tests.campaign.running import run
from tests.campaign.trees import Tree, become, below, read_tree, write_tree


@dataclass(frozen=True)
class Command:
    """A command line and its check; `weight` says how often it is tried: quick ones more often."""

    args: tuple[str, ...]
    check: checks.Check
    weight: float = 1.0


@dataclass(frozen=True)
class Subject:
    """A working folder that is whole, the part of it that mutations damage, and commands that read it."""

    name: str
    tree: Tree
    prefix: str
    commands: tuple[Command, ...]
    weight: float = 1.0


_APPLY = Command(("apply", "calibrator", "data", "--out", "out", "--json"), checks.check_apply, 6)
_EVALUATE = ("evaluate", "data", "--json", "--patches", "2", "--patch-size", "4")
_TRAINED = {"lts": ("--epochs", "2"), "ibts": ("--epochs", "2")}


def _fit(method: str, weight: float) -> Command:
    options = ("fit", "data", "--method", method, "--out", "out", "--json", *_TRAINED.get(method, ()))
    return Command(options, checks.check_fit, weight)


_OF_DATA = (
    _fit("ts", 5),
    *(
        _fit(method, 0.08)
        for method in ("vector", "isotonic", "histogram", "ets", "beta", "dirichlet", "matrix", "bts")
    ),
    Command(("diagnose", "data", "--json"), checks.check_diagnose, 1),
    Command((*_EVALUATE, "--out", "out"), checks.check_evaluate, 0.25),
    Command(_EVALUATE, checks.check_evaluate, 0.25),
)
_OF_RESULTS = (
    Command(("table", "results", "--json"), checks.check_table, 4),
    Command(("table", "results"), checks.check_text, 1),
    Command(("table", "results", "--reference", "TS", "--test", "wilcoxon", "--floor"), checks.check_text, 1),
    Command(("table", "results", "--average", "pixels", "--out", "out.csv"), checks.check_export, 1),
    Command(("report", "results", "--out", "out.html"), checks.check_page, 1),
)


def subjects(seed: int, work: Path, methods: Sequence[str]) -> list[Subject]:
    """Return all subjects, made in the folder `work`: calibrators of the given methods, results, and data folders."""
    rng = np.random.default_rng(seed)
    data = {name: make(rng) for name, make in folders.FOLDERS.items()}
    found = _made_subjects(data["npy"], work, methods)
    scaling = below(next(s for s in found if s.name == "calibrator ts").tree, "calibrator/")
    for name, tree in data.items():
        placed = _placed(tree, "data/") | _placed(scaling, "calibrator/")
        found.append(Subject(f"data {name}", placed, "data/", (*_OF_DATA, _APPLY), 6))
    atlases = _placed(folders.of_atlases(rng), "data/")
    fuse = Command(("fuse", "data", "--method", "plurality", "--out", "out", "--json"), checks.check_fuse)
    found.append(Subject("atlases", atlases, "data/", (fuse,), 2))
    return found


def _placed(tree: Tree, prefix: str) -> Tree:
    return {f"{prefix}{name}": content for name, content in tree.items()}


def _calibrator(method: str, tree: Tree) -> Subject:
    args = ("apply", "calibrator", "data", "--out", "out", "--json")
    return Subject(f"calibrator {method}", tree, "calibrator/", (Command(args, checks.check_calibrator),))


def _made_subjects(data: Tree, work: Path, methods: Sequence[str]) -> list[Subject]:
    """Fit every method and measure results with portraits and floor; `work` is empty again afterwards."""
    placed = _placed(data, "data/")
    write_tree(work, placed)
    found = []
    for method in methods:
        out = f"made/{method}"
        _must(("fit", "data", "--method", method, "--split", "fit", "--out", out, *_TRAINED.get(method, ())), work)
        found.append(_calibrator(method, {**placed, **_placed(read_tree(work / out), "calibrator/")}))
    floor = ("--floor", "--patch-sizes", "3", "--out", "made/results")
    _must((*_EVALUATE, "--split", "fit", "--calibrators", "made/ts", "made/vector", *floor), work)
    results = _placed(read_tree(work / "made" / "results"), "results/")
    become(work, read_tree(work), {})
    return [*found, Subject("results", results, "results/", _OF_RESULTS, 3)]


def _must(args: Sequence[str], work: Path) -> None:
    ran = run(args, work, seconds=300)
    if ran.status:
        raise RuntimeError(f"segcal {' '.join(args)} failed before anything was damaged: {ran.stderr}{ran.error or ''}")


def with_expected(subject: Subject, work: Path) -> Subject:
    """Return a subject of a calibrator with what it writes while it is whole, below `expected/`."""
    if subject.prefix != "calibrator/":
        return subject
    write_tree(work, subject.tree)
    _must(subject.commands[0].args, work)
    written = {name: c for name, c in read_tree(work / "out").items() if name.endswith(".npy")}
    become(work, read_tree(work), {})
    expected = _placed(written, "expected/")
    return Subject(subject.name, {**subject.tree, **expected}, subject.prefix, subject.commands, subject.weight)
