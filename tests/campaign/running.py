"""Commands run inside this process, as fast as a test needs them: what they print, return and raise."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer.main
from nibabel import imageglobals

import segcal
from segcal.cli.app import app

SECONDS = 20.0
"""Computing time after which a command on a folder of a few kilobytes counts as hanging."""

WAITING = 6
"""How many times as long it may take on a machine that other work shares."""


_SILENCE = io.StringIO()


class TooLongError(BaseException):
    """Not an Exception, so that nothing that handles errors of files handles this."""


@dataclass(frozen=True)
class Ran:
    """What a command did.

    Args:
        status: Exit status.
        stdout: What it printed.
        stderr: What it printed on standard error, Python's warnings included.
        error: Traceback of what escaped, if something did.
        where: Kind and place of that exception, the same for the same cause.
    """

    status: int
    stdout: str
    stderr: str
    error: str | None = None
    where: str | None = None


@cache
def _command() -> Any:
    return typer.main.get_command(app)


def prepare() -> None:
    """Set this process up for many commands, in which one thread computes."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with limited memory a GPU cannot be used, and it rounds differently
    import torch

    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "200"
    _command()


def run(arguments: Sequence[str], folder: Path, seconds: float = SECONDS) -> Ran:
    """Run `segcal ARGUMENTS` in `folder`, for at most some seconds of computing."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape", newline="\n") for _ in range(2))
    status, error, where = 0, None, None
    with _at(folder), _printing_to(out, err), warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            with _limited(seconds):
                _command().main(list(arguments), prog_name="segcal")
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except TooLongError as stopped:
            status, error, where = 1, traceback.format_exc(), f"ran over {seconds:.0f} s in {_place(stopped)}"
        except BaseException as raised:
            status, error, where = 1, traceback.format_exc(), f"{type(raised).__name__} in {_place(raised)}"
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "surrogateescape"))  # type: ignore[attr-defined]
    return Ran(status, texts[0], texts[1], error, where)


@contextmanager
def _at(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _printing_to(out: io.TextIOWrapper, err: io.TextIOWrapper) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    handlers = [handler for handler in imageglobals.logger.handlers if isinstance(handler, logging.StreamHandler)]
    sys.stdout, sys.stderr = out, err
    for handler in handlers:  # nibabel keeps the standard error of its import
        handler.setStream(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for handler in handlers:
            handler.setStream(_SILENCE)  # the independent reader reads damaged headers too


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLongError

    limits = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, WAITING * seconds))
    before = [signal.signal(sent, stop) for _, sent, _ in limits]
    for timer, _, limit in limits:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (timer, sent, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(sent, handler)


def _place(error: BaseException) -> str:
    """Return the last function of segcal that an exception passed through."""
    root = str(Path(segcal.__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(root)]
    return f"{Path(frames[-1].filename).relative_to(root)}:{frames[-1].name}" if frames else "no function of segcal"
