"""What is attacked: folders and saved files, the commands that read them, and how to tell whether they are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import settings

from segcal.calibrators import methods
from tests.campaign import checks, folders
from tests.campaign.running import run
from tests.campaign.trees import Tree, become, read_tree, write_tree


@dataclass(frozen=True)
class Command:
    """A command line and its check."""

    args: tuple[str, ...]
    check: checks.Check


@dataclass(frozen=True, repr=False)
class Artefact:
    """A whole working folder, the part of it that is damaged, and commands that read it, quick ones repeated."""

    name: str
    tree: Tree
    prefix: str
    commands: tuple[Command, ...]

    @property
    def signed(self) -> bool:
        """Whether the part that is damaged has checksums."""
        return f"{self.prefix}segcal.json" in self.tree

    def __repr__(self) -> str:
        return self.name

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # asked for by hypothesis
        printer.text(repr(self))


_APPLY = Command(("apply", "calibrator", "data", "--out", "out", "--json"), checks.check_apply)
_EVALUATE = ("evaluate", "data", "--json", "--patches", "2", "--patch-size", "4")
_TRAINED = {"lts": ("--epochs", "2"), "ibts": ("--epochs", "2")}
_CLOSED = ("vector", "isotonic", "histogram", "ets", "beta", "dirichlet", "matrix", "bts")


def _fit(method: str) -> Command:
    return Command(("fit", "data", "--method", method, "--out", "out", "--json"), checks.check_fit)


_OF_DATA = (
    *(_fit("ts"),) * 16,
    *(_APPLY,) * 16,
    *(Command(("diagnose", "data", "--json"), checks.check_diagnose),) * 4,
    *(_fit(method) for method in _CLOSED),
    Command((*_EVALUATE, "--out", "out"), checks.check_evaluate),
    Command(_EVALUATE, checks.check_evaluate),
)
_OF_PASSES = (*(_fit("pool"),) * 4, *(_APPLY,) * 4, Command(_EVALUATE, checks.check_evaluate))
_OF_RESULTS = (
    *(Command(("table", "results", "--json"), checks.check_table),) * 4,
    Command(("table", "results"), checks.check_text),
    Command(("table", "results", "--reference", "TS", "--test", "wilcoxon", "--floor"), checks.check_text),
    Command(("table", "results", "--average", "pixels", "--out", "out.csv"), checks.check_export),
    Command(("report", "results", "--out", "out.html"), checks.check_page),
)
_OF_RULES = (
    Command(("decide", "data", "--rules", "rules", "--json"), checks.check_form),
    Command(("report", "results", "--decisions", "rules", "--out", "out.html"), checks.check_page),
)
_RESUME = Command(
    ("fit", "data", "--method", "lts", "--epochs", "3", "--set", "checkpoint=checkpoints", "--out", "out", "--json"),
    checks.check_fit,
)
_FUSE = Command(("fuse", "data", "--method", "plurality", "--out", "out", "--json"), checks.check_fuse)


def artefacts(work: Path, chosen: Sequence[str]) -> dict[str, list[Artefact]]:
    """Return all artefacts by kind, made by segcal in the folder `work` with calibrators of the chosen methods."""
    rng = np.random.default_rng(0)
    data = {name: make(rng) for name, make in folders.FOLDERS.items()}
    work.mkdir(exist_ok=True)
    write_tree(work, placed := _placed(data["npy"], "data/"))
    saved = {method: _fitted(method, work) for method in chosen}
    found = {"calibrators": [_calibrator(method, {**placed, **saved[method]}, work) for method in chosen]}
    both = ("--calibrators", "made/ts", "made/vector")
    _must((*_EVALUATE, "--split", "fit", *both, "--floor", "--patch-sizes", "3", "--out", "made/results"), work)
    results = _placed(read_tree(work / "made" / "results"), "results/")
    found["results"] = [Artefact("results", results, "results/", _OF_RESULTS)]
    _must(("decide", "data", "--split", "fit", "--out", "made/rules"), work)
    rules = _placed(read_tree(work / "made" / "rules"), "rules/")
    found["decisions"] = [Artefact("decisions", {**placed, **results, **rules}, "rules/", _OF_RULES)]
    _must((*_RESUME.args, "--out", "made/resumed"), work)
    epochs = {name: content for name, content in read_tree(work / "checkpoints").items() if "000003" not in name}
    checkpoints = _placed(epochs, "checkpoints/")
    found["checkpoints"] = [Artefact("checkpoints", {**placed, **checkpoints}, "checkpoints/", (_RESUME,))]
    for name, tree in data.items():
        calibrator, commands = saved["ts"], _OF_DATA
        if name in ("channels", "passes"):  # which need calibrators of their own
            become(work, read_tree(work), _placed(tree, "data/"))
            calibrator = _fitted("pool" if name == "passes" else "ts", work, ())
            commands = _OF_PASSES if name == "passes" else _OF_DATA
        found[name] = [Artefact(f"data {name}", _placed(tree, "data/") | calibrator, "data/", commands)]
    found["atlases"] = [Artefact("atlases", _placed(folders.of_atlases(rng), "data/"), "data/", (_FUSE,))]
    become(work, read_tree(work), {})
    return found


@cache
def whole() -> dict[str, list[Artefact]]:
    """Return the artefacts, made once in this process: of all methods in a campaign, of three in the tests."""
    chosen = methods() if settings.get_current_profile_name() == "campaign" else ("ts", "vector", "histogram")
    with TemporaryDirectory(prefix="segcal-campaign-") as folder:
        found = artefacts(Path(folder), chosen)
        for artefact in (several[0] for several in found.values()):  # with time to compile
            become(Path(folder), read_tree(Path(folder)), artefact.tree)
            run(artefact.commands[0].args, Path(folder), seconds=600)
    return found


def _placed(tree: Tree, prefix: str) -> Tree:
    return {f"{prefix}{name}": content for name, content in tree.items()}


def _fitted(method: str, work: Path, options: Sequence[str] = ("--split", "fit")) -> Tree:
    out = f"made/{method}"
    _must(("fit", "data", "--method", method, *options, "--out", out, *_TRAINED.get(method, ())), work)
    return _placed(read_tree(work / out), "calibrator/")


def _calibrator(method: str, tree: Tree, work: Path) -> Artefact:
    """Return the artefact of a calibrator with what it writes while it is whole, below `expected/`."""
    _must(("apply", f"made/{method}", "data", "--out", "out", "--json"), work)
    written = {name: c for name, c in read_tree(work / "out").items() if name.endswith(".npy")}
    whole = tree | _placed(written, "expected/")
    return Artefact(f"calibrator {method}", whole, "calibrator/", (Command(_APPLY.args, checks.check_calibrator),))


def _must(args: Sequence[str], work: Path) -> None:
    ran = run(args, work, seconds=300)
    if ran.status:
        raise RuntimeError(f"segcal {' '.join(args)} failed before anything was damaged: {ran.stderr}{ran.error or ''}")
