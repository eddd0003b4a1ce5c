"""`python -m tests.campaign kill`: processes that die while they write.

Random kills come at any time, also while a process starts and imports; aimed ones come at one of the file-system calls
from the moment at which the output is replaced. Afterwards the output must be the old one or the new one, whole (or the
old one must lie beside its place, where the next run finds it), and the same command must succeed and leave nothing
behind.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import segcal
from tests.campaign.jobs import JOBS, PROGRAMS, Job, content_of, hidden, make_inputs, must, remove, unfinished, warm_up
from tests.campaign.processes import Child, start
from tests.campaign.trees import Tree

EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "open", "shutil.rmtree", "fcntl.flock")
"""Audit events of the interpreter, each raised just before the call."""

SIGNALS = ((signal.SIGKILL, 4), (signal.SIGTERM, 3), (signal.SIGINT, 3))
PROMPT = 0.5
"""Seconds within which a command that goes on to succeed after a signal must have been about to end anyway."""


@dataclass(frozen=True)
class Rehearsal:
    """What a job does when nobody disturbs it: its outputs, its duration and its calls, from replacing on `moment`."""

    old: Tree
    new: Tree
    seconds: float
    calls: int
    moment: int


@dataclass
class Kills:
    """What became of the killed processes, by (how, state)."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)


def kill(seed: int, *, number: int | None, minutes: float | None) -> Kills:
    """Kill processes until there were enough or the time is over; every third one is aimed."""
    from tests.campaign.running import prepare

    began, rng, found = time.monotonic(), Random(seed), Kills()
    with tempfile.TemporaryDirectory(prefix="segcal-kill-") as folder:
        root = Path(folder)
        prepare()
        make_inputs(root, seed)
        warm_up(root)
        rehearsals = {job: _rehearsed(job, root) for job in (*JOBS, *PROGRAMS)}
        cold, k = _starting_seconds(root), 0
        while (number is None or k < number) and (minutes is None or time.monotonic() - began < 60 * minutes):
            job = rng.choice((*JOBS, *PROGRAMS))
            if k % 8 == 7:
                job = rng.choice(JOBS)
                _once(rng, job, rehearsals[job], root, found, starting=cold)
            else:
                _once(rng, job, rehearsals[job], root, found, aimed=k % 3 == 2)
            k += 1
            if k % 50 == 0:
                print(f"{k} killed in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def _rehearsed(job: Job, root: Path) -> Rehearsal:
    must(job.before, root)
    old = content_of(root / job.output)
    calls = root / "calls"
    began = time.monotonic()
    child = start(job.args, root, lambda: _note_calls(calls))
    if child.wait():
        raise SystemExit(f"{job.name} failed before anything was killed: {child.stderr}")
    seconds = time.monotonic() - began
    lines = calls.read_text().splitlines()
    moment = next(k for k, line in enumerate(lines) if line.startswith("os.rename") and line.endswith(job.output))
    new = content_of(root / job.output)
    if old == new:
        raise SystemExit(f"{job.name}: the old and the new output are the same, so a kill would show nothing")
    calls.unlink()
    remove(root / job.output)
    first = max(0, moment - 2)
    return Rehearsal(old, new, seconds, len(lines), first)


def _is_counted(event: str, args: tuple[Any, ...]) -> bool:
    if event not in EVENTS:
        return False
    return event != "open" or (isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR)))


def _note_calls(path: Path) -> None:
    """Write down every counted call of this process; the last argument of a rename is its target."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def note(event: str, args: tuple[Any, ...]) -> None:
        if _is_counted(event, args):
            named = [str(arg) for arg in args if isinstance(arg, str | Path)]
            os.write(handle, f"{event} {named[-1] if named else ''}\n".encode("utf-8", "replace"))

    sys.addaudithook(note)


def _die_at(call: int) -> None:
    """Let this process be killed just before one of its calls."""
    left = [call]

    def count(event: str, args: tuple[Any, ...]) -> None:
        if _is_counted(event, args):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    sys.addaudithook(count)


def _start_python(args: tuple[str, ...]) -> None:
    """Replace this forked process by `python -m segcal`, which has yet to import everything."""
    variables = {**os.environ, "PYTHONPATH": str(Path(segcal.__file__).parents[1])}
    os.execve(sys.executable, [sys.executable, "-m", "segcal", *args], variables)


def _starting_seconds(root: Path) -> float:
    began = time.monotonic()
    start(("methods", "ts"), root, lambda: _start_python(("methods", "ts"))).wait()
    return 1.5 * (time.monotonic() - began)


def _once(
    rng: Random,
    job: Job,
    known: Rehearsal,
    root: Path,
    found: Kills,
    *,
    aimed: bool = False,
    starting: float | None = None,
) -> None:
    """Kill one process, perhaps at a call or within the seconds of its start, and look at what it left.

    Then look at the next run.
    """
    must(job.before, root)
    if aimed:
        call = rng.randrange(known.moment, known.calls)
        how = "aimed at replacing"
        child = start(job.args, root, lambda: _die_at(call))
        status, sent, ignored = child.wait(), signal.SIGKILL, False
        words = f"{job.name}, killed before call {call} of {known.calls}"
    else:
        (sent,) = rng.choices([s for s, _ in SIGNALS], [w for _, w in SIGNALS])
        delay = rng.uniform(0, starting or 1.1 * known.seconds)
        how = f"{'starting' if starting else 'random'}, {sent.name}"
        child = start(job.args, root, partial(_start_python, job.args) if starting else None)
        time.sleep(delay)
        running = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        os.kill(child.pid, sent)
        began = time.monotonic()
        status = child.wait()
        ignored = running and status == 0 and time.monotonic() - began > PROMPT
        words = f"{job.name}, {sent.name} after {delay:.3f} s of {known.seconds:.3f} s"
    state = "defect: the signal was ignored" if ignored else _state(job, known, root, child, status, sent)
    stderr = child.stderr
    complaint = state if state.startswith("defect") else _next_run(job, known, root)
    found.counts[how, "defect" if complaint else state] += 1
    if complaint:
        found.defects.append(f"{words}: {complaint}\n{stderr[-1500:]}")
    remove(root / job.output)
    for name in (*hidden(root), *unfinished(root)):
        remove(root / name)


def _state(job: Job, known: Rehearsal, root: Path, child: Child, status: int, sent: signal.Signals) -> str:
    """Return which output is there."""
    content, left = content_of(root / job.output), hidden(root)
    if sent != signal.SIGKILL and left and status >= 0:
        return f"defect: {sent.name} left {left}"
    if "Traceback" in child.stderr and status != -signal.SIGINT:  # as Python ends before segcal is imported
        return "defect: traceback"
    if content in (known.old, known.new):
        return "old output" if content == known.old else "new output"
    aside = [name for name in left if ".old-" in name]
    if not content and len(aside) == 1 and content_of(root / aside[0]) == known.old:
        return "old output set aside"
    return f"defect: the output has {len(content)} of {len(known.old)} old or {len(known.new)} new files"


def _next_run(job: Job, known: Rehearsal, root: Path) -> str | None:
    """Return a complaint unless the same command now succeeds, writes the same, and leaves nothing behind."""
    child = start(job.args, root)
    if status := child.wait():
        return f"the next run failed with {status}: {child.stderr.strip()}"
    if content_of(root / job.output) != known.new:
        return "the next run wrote something else"
    if left := [*hidden(root), *unfinished(root)]:
        return f"the next run left {left}"
    return None
