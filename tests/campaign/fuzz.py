"""`python -m tests.campaign fuzz`: thousands of damaged folders, calibrators, results and command lines."""

from __future__ import annotations

import multiprocessing
import os
import queue
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.minimise import described, minimised
from tests.campaign.mutants import Arena, Mutant, Verdict, mutant
from tests.campaign.running import prepare, run
from tests.campaign.subjects import Subject, subjects, with_expected
from tests.campaign.trees import become, read_tree

ADDRESS_SPACE = 4 << 30
"""Bytes that a mutant may take beyond what the process has."""

FILE_SIZE = 256 << 20
SILENT = 600.0
"""Seconds without a word after which a worker is killed and its mutant counted as a hang."""

AGAIN = "again"
"""Reported by a worker that wants to be replaced."""

SHOWN = 1
"""Defects of one cause that each worker minimises and prints."""


@dataclass
class Tally:
    """What became of the mutants."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        """All mutants."""
        return sum(self.counts.values())

    @property
    def defects(self) -> int:
        """Mutants that were handled wrongly."""
        return sum(self.causes.values())

    def add(self, subject: str, family: str, verdict: Verdict, example: str | None) -> None:
        """Count one mutant."""
        self.counts[subject.partition(" ")[0], family, verdict.kind] += 1
        if verdict.kind == "defect":
            self.causes[verdict.cause] += 1
        if example is not None:
            self.examples.setdefault(verdict.cause, []).append(example)


def fuzz(
    seed: int,
    *,
    mutants: int | None,
    minutes: float | None,
    workers: int,
    methods: Sequence[str],
    first: int = 0,
) -> Tally:
    """Try mutants until there are enough of them or the time is over."""
    prepare()
    began, tally = time.monotonic(), Tally()
    with tempfile.TemporaryDirectory(prefix="segcal-campaign-", dir=_memory()) as folder:
        made = _made(seed, Path(folder), methods)
        end = began + 60 * minutes if minutes is not None else None
        team = _Team(seed, made, Path(folder), workers, first, None if mutants is None else first + mutants, end)
        team.collect(tally)
    tally.seconds = time.monotonic() - began
    return tally


def _memory() -> str | None:
    """Return a file system in memory, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _made(seed: int, folder: Path, methods: Sequence[str]) -> list[Subject]:
    """Return the subjects, made in a process of its own: this one must not have started threads when it forks."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def make() -> None:
        work = folder / "making"
        work.mkdir()
        sending.send([with_expected(subject, work) for subject in subjects(seed, work, methods)])

    process = context.Process(target=make)
    process.start()
    sending.close()
    try:
        found: list[Subject] = receiving.recv()
    except EOFError:
        raise SystemExit("the material of the campaign could not be made; see the error above") from None
    process.join()
    return found


class _Team:
    """Worker processes; each tries every n-th mutant and reports verdicts. One that dies or hangs is replaced."""

    def __init__(
        self,
        seed: int,
        made: list[Subject],
        folder: Path,
        workers: int,
        first: int,
        stop: int | None,
        end: float | None,
    ) -> None:
        self.context = multiprocessing.get_context("fork")
        self.seed, self.made, self.folder, self.stop, self.end = seed, made, folder, stop, end
        self.step, self.first = workers, first
        self.reports: Any = self.context.Queue()
        self.processes: dict[int, Any] = {}
        self.at = {k: first + k for k in range(workers)}
        self.heard = dict.fromkeys(range(workers), time.monotonic())

    def collect(self, tally: Tally) -> None:
        """Start the workers and count what they report until all are done."""
        for k in self.at:
            self._start(k)
        while self.processes:
            try:
                k, number, subject, family, verdict, example = self.reports.get(timeout=1)
            except queue.Empty:
                self._look_after(tally)
                continue
            self.heard[k] = time.monotonic()
            if verdict is None:
                self.processes.pop(k).join()
                if subject == AGAIN:
                    self._start(k)
                continue
            self.at[k] = number + self.step
            tally.add(subject, family, verdict, example)

    def _start(self, k: int) -> None:
        self.heard[k] = time.monotonic() + 60  # the first command loads compiled code
        process = self.context.Process(target=self._work, args=(k, self.at[k]))
        process.start()
        self.processes[k] = process

    def _look_after(self, tally: Tally) -> None:
        for k, process in list(self.processes.items()):
            silent = time.monotonic() - self.heard[k] > SILENT
            if process.is_alive() and not silent:
                continue
            if not process.is_alive() and process.exitcode == 0:
                self.processes.pop(k)
                continue
            cause = "hang" if process.is_alive() else f"process died ({process.exitcode})"
            process.kill()
            process.join()
            tried = mutant(self.seed, self.at[k], self.made)
            verdict = Verdict("defect", f"{cause}: {tried.args[0]}", "")
            tally.add(tried.subject.name, tried.family, verdict, _example(tried, verdict))
            self.at[k] += self.step
            self._start(k)

    def _work(self, k: int, start: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _limit()
        arena, seen, number = Arena(self.folder / f"worker-{k}"), Counter[str](), start
        _warm_up(self.made, self.folder / f"worker-{k}-warm")
        while (self.stop is None or number < self.stop) and (self.end is None or time.monotonic() < self.end):
            tried = mutant(self.seed, number, self.made)
            verdict = arena.judge(tried)
            example = None
            if verdict.kind == "defect":
                seen[verdict.cause] += 1
                if seen[verdict.cause] <= SHOWN:
                    small = minimised(tried, lambda other, cause=verdict.cause: arena.judge(other).cause == cause)
                    example = _example(small, arena.judge(small))
            self.reports.put((k, number, tried.subject.name, tried.family, verdict, example))
            number += self.step
            if "ran over" in verdict.cause:  # what was interrupted, a compiler say, may be unusable in this process
                self.reports.put((k, number, AGAIN, "", None, None))
                return
        self.reports.put((k, number, "", "", None, None))


def _warm_up(made: list[Subject], folder: Path) -> None:
    """Run each kind of command once on whole files, with time to compile, so that limits are for the mutants alone."""
    folder.mkdir(exist_ok=True)
    for subject in made:
        become(folder, read_tree(folder), subject.tree)
        run(subject.commands[0].args, folder, seconds=600)


def _limit() -> None:
    """Limit memory and the size of files, so that a mutant cannot take the machine down."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, used + ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _example(found: Mutant, verdict: Verdict) -> str:
    lines = [f"mutant {found.number} ({found.subject.name}): segcal {' '.join(map(repr, found.args))}"]
    lines += [f"  {line}" for line in described(found)]
    lines += [f"  | {line}" for line in verdict.detail.splitlines()[-12:]]
    return "\n".join(lines)
