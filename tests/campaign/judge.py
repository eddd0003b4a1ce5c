"""Run a command on damaged files and judge what happened.

A mutant is handled if the numbers are right by an independent reader, or if it is refused in one sentence with exit
status 2. Everything else is a defect.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaign.artefacts import Artefact, Command
from tests.campaign.checks import Done, NotANumberError
from tests.campaign.reader import RegionsError
from tests.campaign.running import Ran, run
from tests.campaign.trees import Tree, become, read_tree

_PYTHON_WARNING = re.compile(r"^\S+:\d+: \w*Warning", re.MULTILINE)
_KEPT = re.compile(r"\d+ finished cases? (?:is|are) kept in '(out[^']*)'")


class DefectError(AssertionError):
    """A mutant that was handled wrongly."""


@dataclass(frozen=True, repr=False)
class Attack:
    """A command line on damaged files of an artefact; `odd` where the options are damaged instead of the files."""

    artefact: Artefact
    command: Command
    args: tuple[str, ...]
    tree: Tree
    odd: bool = False

    def __repr__(self) -> str:
        return f"{self.artefact}: segcal {' '.join(self.args)}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # asked for by hypothesis
        printer.text(repr(self))


class Arena:
    """A folder in which one attack after the other is tried; it knows what lies in it, so that little is rewritten."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, {}
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)

    def judge(self, attack: Attack) -> str:
        """Run the command of an attack; return "right" or "refused", or raise `DefectError`."""
        inputs = _inputs(attack.tree)
        try:
            ran, after, new = self._run(attack.args, inputs)
            verdict = judged(attack, ran, after, self.root)
            if verdict == "refused" and new:
                self._continue(attack)
            return verdict
        finally:
            become(self.root, read_tree(self.root), inputs)
            self.now = inputs

    def _run(self, args: tuple[str, ...], inputs: Tree) -> tuple[Ran, Tree, Tree]:
        """Run a command on inputs; return what it printed, all files afterwards and those that are new."""
        become(self.root, self.now, inputs)
        self.now = inputs
        ran, after = run(args, self.root), read_tree(self.root)
        return ran, after, {name: content for name, content in after.items() if name not in inputs}

    def _continue(self, attack: Attack) -> None:
        """Undo the damage; the same command must finish the work that was kept, and leave nothing else."""
        whole = Attack(attack.artefact, attack.command, attack.args, attack.artefact.tree, attack.odd)
        ran, after, new = self._run(whole.args, _inputs(whole.tree))
        if judged(whole, ran, after, self.root) != "right":
            raise DefectError(f"continued: refused\n{ran.stderr}")
        if left := sorted(name for name in new if not name.startswith(("out/", "checkpoints/"))):
            raise DefectError(f"continued: leftovers {left}")


def _inputs(tree: Tree) -> Tree:
    return {name: content for name, content in tree.items() if not name.startswith("expected/")}


def judged(attack: Attack, ran: Ran, after: Tree, root: Path) -> str:
    """Judge the files first, then what was printed, then the numbers."""
    inputs = _inputs(attack.tree)
    new = {name: content for name, content in after.items() if name not in inputs}
    if any(after.get(name) != content for name, content in inputs.items() if not _may_be_replaced(name, attack.args)):
        raise DefectError(f"input changed\n{ran.stderr}")
    if ran.error is not None:
        raise DefectError(f"traceback: {ran.where}\n{ran.error}")
    if any(part.startswith(".") for name in new for part in name.split("/")):
        raise DefectError(f"half-written: leftovers {sorted(new)}")
    if noise := _PYTHON_WARNING.search(ran.stderr):
        raise DefectError(f"Python warning: {noise[0].rpartition('/')[2]}\n{ran.stderr}")
    if ran.status == 0:
        _check_success(attack, ran, root)
        return "right"
    _check_refusal(ran, new)
    return "refused"


def _may_be_replaced(name: str, args: tuple[str, ...]) -> bool:
    """Return whether the command was told to write where this file is, and an earlier one of its kind is there.

    Checkpoints are added to a folder, in which older ones are removed.

    >>> fit = ("fit", "data", "--out", "out", "--out", "calibrator")
    >>> _may_be_replaced("calibrator/segcal.json", fit), _may_be_replaced("data/labels/a.npy", fit)
    (True, False)
    >>> _may_be_replaced("calibrator/segcal.json", ("fit", "data", "--out", "out"))
    False
    """
    if name.startswith("checkpoints/") and "checkpoint=checkpoints" in args:
        return True
    told = [args[k + 1] for k in range(len(args) - 1) if args[k] == "--out"]
    return args[0] == "fit" and told[-1:] == ["calibrator"] and name.startswith("calibrator/")


def _check_success(attack: Attack, ran: Ran, root: Path) -> None:
    """Compare with the independent reader; odd options change what is asked for, so only their form is judged."""
    try:
        wrong = attack.command.check(Done(attack.tree, ran.stdout, root, attack.artefact.tree))
    except NotANumberError as error:
        raise DefectError(f"NaN in JSON: {attack.args[0]}\n{ran.stdout[:2000]}") from error
    except RegionsError:  # as far as their form can be judged, the numbers are right
        return
    except Exception as error:
        wrong = f"output not as documented: {type(error).__name__}: {error}"
    if wrong and not (attack.odd and not wrong.startswith("NaN")):
        raise DefectError(f"{attack.args[0]}: {wrong}")


def _check_refusal(ran: Ran, new: Tree) -> None:
    """Ask for status 2, one sentence and no output except finished cases that the sentence announces."""
    if ran.status != 2:
        raise DefectError(f"exit status {ran.status}\n{ran.stderr}")
    lines = [line for line in ran.stderr.splitlines() if line.strip()]
    if not lines or not lines[-1].startswith("segcal: ") or sum(line.startswith("segcal: ") for line in lines) != 1:
        raise DefectError(f"status 2 without one sentence\n{ran.stderr}")
    if len(lines) > 1 and not lines[0].startswith("warning:"):
        raise DefectError(f"a refusal of several lines\n{ran.stderr}")
    kept = _KEPT.search(lines[-1])
    places = ("checkpoints/", *([] if kept is None else [f"{kept[1]}/"]))
    if strangers := sorted(name for name in new if not name.startswith(places)):
        raise DefectError(f"half-written: output of a refusal {strangers}")
