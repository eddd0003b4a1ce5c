"""`python -m tests.campaign disk`: outputs on a disk that is full, at any point of the writing.

A small file system in memory is mounted for each trial where this process may do that; elsewhere, and in addition, the
size of files is limited. The command must refuse in one sentence with status 2, which announces finished cases that it
keeps, and the old output must still be there. With enough space, the same command must then succeed.
"""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.campaign.jobs import JOBS, Job, content_of, hidden, make_inputs, must, remove, unfinished, warm_up
from tests.campaign.kill import Kills
from tests.campaign.processes import finished
from tests.campaign.trees import Tree


def disk(seed: int, *, number: int | None, minutes: float | None) -> Kills:
    """Fill disks until there were enough of them or the time is over."""
    from tests.campaign.running import prepare

    began, rng, found = time.monotonic(), Random(seed), Kills()
    with tempfile.TemporaryDirectory(prefix="segcal-disk-") as folder:
        root = Path(folder)
        prepare()
        make_inputs(root, seed)
        warm_up(root)
        mounted, k = _can_mount(root), 0
        while (number is None or k < number) and (minutes is None or time.monotonic() - began < 60 * minutes):
            job = rng.choice(JOBS)
            if mounted and k % 4 != 3:
                _full_disk(rng, job, root, found)
            else:
                _limited_files(rng, job, root, found)
            k += 1
    return found


def _mount(at: Path, size: int) -> bool:
    at.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)]
    return (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def _enlarge(at: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(at)], check=True)


def _unmount(at: Path) -> None:
    subprocess.run(["umount", str(at)], check=True)


def _can_mount(root: Path) -> bool:
    if _mount(root / "disk", 1 << 16):
        _unmount(root / "disk")
        return True
    return False


def _on_disk(args: tuple[str, ...], job: Job) -> tuple[str, ...]:
    return tuple(f"disk/{arg}" if arg == job.output else arg for arg in args)


def _size_of(path: Path) -> int:
    files = [path] if path.is_file() else [inner for inner in path.rglob("*") if inner.is_file()]
    return sum(4096 * -(-file.stat().st_size // 4096) for file in files)


def _full_disk(rng: Random, job: Job, root: Path, found: Kills) -> None:
    must(job.args, root)
    new = _size_of(root / job.output)
    remove(root / job.output)
    must(job.before, root)
    old = _size_of(root / job.output)
    place = root / "disk"
    size = old + 4096 * rng.randrange(0, new // 4096 + 2)
    if not _mount(place, size):
        raise SystemExit("a file system could be mounted before, and cannot now")
    try:
        shutil.move(root / job.output, place / job.output)
        words = f"{job.name} on a disk of {size} bytes"
        _judge(job, _on_disk(job.args, job), place, "full disk", words, root, found, relieve=lambda: _enlarge(place))
    finally:
        _unmount(place)


def _limited_files(rng: Random, job: Job, root: Path, found: Kills) -> None:
    must(job.before, root)
    largest = max(len(content or b"") for content in content_of(root / job.output).values())
    limit = rng.randrange(0, 2 * largest)

    def confine() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    _judge(job, job.args, root, "limited size of files", f"{job.name}, files up to {limit} bytes", root, found, confine)
    for name in (job.output, *unfinished(root)):
        remove(root / name)


def _judge(
    job: Job,
    args: tuple[str, ...],
    place: Path,
    how: str,
    words: str,
    root: Path,
    found: Kills,
    confine: Callable[[], None] | None = None,
    relieve: Callable[[], None] = lambda: None,
) -> None:
    """Run a command where space is short, and judge what it says and leaves; then again after `relieve`."""
    old = content_of(place / job.output)
    status, stderr = finished(args, root, confine)
    complaint = _complaint(status, stderr, old, content_of(place / job.output), place)
    if status and complaint is None:
        relieve()
        again, words_again = finished(args, root)
        left = [*hidden(place), *unfinished(place)]
        if again or left or content_of(place / job.output) == old:
            complaint = f"with enough space: status {again}, left {left}: {words_again[-1500:]}"
    state = "defect" if complaint else "new output" if status == 0 else "refused, old output kept"
    found.counts[how, state] += 1
    if complaint:
        found.defects.append(f"{words}: {complaint}")


def _complaint(status: int, stderr: str, old: Tree, now: Tree, place: Path) -> str | None:
    """Return what is wrong with what a command said and left."""
    left, kept = hidden(place), unfinished(place)
    if status == 0:
        left += kept
        return f"left {left}" if left else None if now != old else "reported success and wrote nothing"
    lines = stderr.strip().splitlines()
    said = lines[0] if len(lines) == 1 and lines[0].startswith("segcal: ") else ""
    wrongs = (
        (bool(left), f"left {left}"),
        (status != 2 or not said, f"status {status} without one sentence: {stderr[-1500:]}"),
        (now != old, f"the old output is gone: {len(now)} of {len(old)} files"),
        ("None" in said, f"an empty word in the message: {said}"),
        (bool(kept) != ("kept in" in said), f"kept {kept}, and said: {said}"),
    )
    return next((complaint for wrong, complaint in wrongs if wrong), None)
