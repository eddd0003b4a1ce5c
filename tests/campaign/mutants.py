"""One mutant: damage a subject, run a command on it, and judge what happened."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tests.campaign.arguments import odd_arguments
from tests.campaign.checks import Done, NotANumberError
from tests.campaign.kept import wrongly_kept
from tests.campaign.mutators import mutate_tree
from tests.campaign.reader import RegionsError
from tests.campaign.running import Ran, run
from tests.campaign.subjects import Command, Subject
from tests.campaign.trees import Tree, become, read_tree

ARGUMENTS = 0.08
"""Share of the mutants whose command line is odd instead of the files."""

_PYTHON_WARNING = re.compile(r"^\S+:\d+: \w*Warning", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A subject, what became of its files, and the command that reads them."""

    number: int
    subject: Subject
    command: Command
    tree: Tree
    args: tuple[str, ...]
    family: str


@dataclass(frozen=True)
class Verdict:
    """How a mutant was handled: "right" numbers, "refused" in one sentence, or a "defect" with its cause."""

    kind: str
    cause: str = ""
    detail: str = ""


def mutant(seed: int, number: int, subjects: list[Subject]) -> Mutant:
    """Return the mutant of a number, the same for the same seed."""
    rng = Random(f"{seed}-{number}")
    (subject,) = rng.choices(subjects, [subject.weight for subject in subjects])
    (command,) = rng.choices(subject.commands, [command.weight for command in subject.commands])
    if rng.random() < ARGUMENTS:
        return Mutant(number, subject, command, subject.tree, odd_arguments(rng, command.args), "arguments")
    tree, family = mutate_tree(rng, subject.tree, subject.prefix)
    return Mutant(number, subject, command, tree, command.args, family)


class Arena:
    """A folder in which one mutant after the other is tried; it knows what lies in it, so that little is rewritten."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, {}
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)

    def judge(self, tried: Mutant) -> Verdict:
        """Run the command of a mutant on its files and judge it."""
        inputs = _inputs(tried.tree)
        try:
            ran, after, new = self._run(tried.args, inputs)
            verdict = _judged(tried, ran, inputs, after, new, self.root)
            return self._continued(tried) if verdict.kind == "refused" and new else verdict
        finally:
            become(self.root, read_tree(self.root), inputs)
            self.now = inputs

    def _run(self, args: tuple[str, ...], inputs: Tree) -> tuple[Ran, Tree, Tree]:
        """Run a command on inputs; return what it printed, all files afterwards and those that are new."""
        become(self.root, self.now, inputs)
        self.now = inputs
        ran, after = run(args, self.root), read_tree(self.root)
        return ran, after, {name: content for name, content in after.items() if name not in inputs}

    def _continued(self, tried: Mutant) -> Verdict:
        """Undo the damage, and judge the same command, which must finish the work that was kept."""
        whole = replace(tried, tree=tried.subject.tree)
        inputs = _inputs(whole.tree)
        ran, after, new = self._run(whole.args, inputs)
        verdict = _judged(whole, ran, inputs, after, new, self.root)
        if verdict.kind != "right":
            return Verdict("defect", f"continued: {verdict.cause or 'refused'}", verdict.detail or ran.stderr)
        if left := sorted(name for name in new if not name.startswith("out/")):
            return Verdict("defect", "continued: leftovers", str(left))
        return Verdict("refused")


def _inputs(tree: Tree) -> Tree:
    return {name: content for name, content in tree.items() if not name.startswith("expected/")}


def _judged(tried: Mutant, ran: Ran, inputs: Tree, after: Tree, new: Tree, root: Path) -> Verdict:
    """Judge the files first, then what was printed, then the numbers."""
    if any(after.get(name) != content for name, content in inputs.items() if not _may_be_replaced(name, tried.args)):
        return Verdict("defect", "input changed", ran.stderr)
    if ran.error is not None:
        return Verdict("defect", f"traceback: {ran.where}", ran.error)
    if any(part.startswith(".") for name in new for part in name.split("/")):
        return Verdict("defect", "half-written: leftovers", str(sorted(new)))
    if noise := _PYTHON_WARNING.search(ran.stderr):
        return Verdict("defect", f"Python warning: {noise[0].rpartition('/')[2]}", ran.stderr)
    return _succeeded(tried, ran, root) if ran.status == 0 else _refused(ran, new)


def _may_be_replaced(name: str, args: tuple[str, ...]) -> bool:
    """Return whether the command was told to write where this file is, and an earlier one of its kind is there.

    >>> fit = ("fit", "data", "--out", "out", "--out", "calibrator")
    >>> _may_be_replaced("calibrator/segcal.json", fit), _may_be_replaced("data/labels/a.npy", fit)
    (True, False)
    >>> _may_be_replaced("calibrator/segcal.json", ("fit", "data", "--out", "out"))
    False
    """
    told = [args[k + 1] for k in range(len(args) - 1) if args[k] == "--out"]
    return args[0] == "fit" and told[-1:] == ["calibrator"] and name.startswith("calibrator/")


def _succeeded(tried: Mutant, ran: Ran, root: Path) -> Verdict:
    """Compare with the independent reader; odd options change what is asked for, so only their form is judged."""
    try:
        wrong = tried.command.check(Done(tried.tree, ran.stdout, root, tried.subject.tree))
    except NotANumberError:
        return Verdict("defect", f"NaN in JSON: {tried.args[0]}", ran.stdout[:2000])
    except RegionsError:  # as far as their form can be judged, the numbers are right
        return Verdict("right")
    except Exception as error:
        wrong = f"output not as documented: {type(error).__name__}: {error}"
    if not wrong or (tried.family == "arguments" and not wrong.startswith("NaN")):
        return Verdict("right")
    return Verdict("defect", f"{tried.args[0]}: {wrong.split(':')[0]}", wrong)


def _refused(ran: Ran, new: Tree) -> Verdict:
    """Ask for status 2, one sentence and no output except finished cases that the sentence announces."""
    if ran.status != 2:
        return Verdict("defect", f"exit status {ran.status}", ran.stderr)
    lines = [line for line in ran.stderr.splitlines() if line.strip()]
    if not lines or not lines[-1].startswith("segcal: ") or sum(line.startswith("segcal: ") for line in lines) != 1:
        return Verdict("defect", "status 2 without one sentence", ran.stderr)
    if len(lines) > 1 and not lines[0].startswith("warning:"):
        return Verdict("defect", "a refusal of several lines", ran.stderr)
    if new:
        try:
            wrong = wrongly_kept(lines[-1], new)
        except Exception as error:  # a damaged file among those that were kept
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            return Verdict("defect", "half-written: output of a refusal", wrong)
    return Verdict("refused")
