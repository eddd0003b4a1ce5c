"""Trace of three commands on one small image: modules entered, files loaded and checks made.

`python tests/support/walk.py` writes the trace into CONTRIBUTING.md; with `--json` it prints the trace.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

REPOSITORY = Path(__file__).parents[2]
ROOT = REPOSITORY / "src" / "segcal"
PAGE = REPOSITORY / "CONTRIBUTING.md"
START, END = "<!-- walk: written by tests/support/walk.py -->", "<!-- end of walk -->"
COMMANDS = {
    "fit": ("fit", "data", "--method", "ts", "--out", "ts"),
    "apply": ("apply", "ts", "data", "--out", "probs"),
    "evaluate": ("evaluate", "data", "--calibrators", "ts", "--out", "results"),
    "report": ("report", "results", "--out", "page.html"),
}
CHECKS = {"check_logits": "logits checked", "check_labels": "labels checked", "fingerprint": "fingerprints"}
FUNCTION = 0x1
"""Flag of code that is a function; bodies of classes and modules run when they are imported."""


@dataclass(frozen=True)
class Walk:
    """What one command did.

    Args:
        modules: Modules of segcal in which a function ran, in the order in which the main thread entered them.
        loads: Times that the scores of the image were loaded.
        checks: Calls by what was checked.
    """

    modules: list[str]
    loads: int
    checks: dict[str, int]


class Tracer:
    """Notes the functions of segcal that are called."""

    def __init__(self) -> None:
        self.main: dict[str, None] = {}
        self.others: set[str] = set()
        self.calls: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Note one call."""
        code = frame.f_code
        if event != "call" or not code.co_flags & FUNCTION or not code.co_filename.startswith(f"{ROOT}{os.sep}"):
            return
        module = str(Path(code.co_filename).relative_to(ROOT))
        self.calls[module, code.co_name] += 1
        if threading.current_thread() is threading.main_thread():
            self.main.setdefault(module)
        else:
            self.others.add(module)

    def found(self) -> Walk:
        """Return what was noted."""
        checks = dict.fromkeys(CHECKS.values(), 0)
        for (_, name), count in self.calls.items():
            if name in CHECKS:
                checks[CHECKS[name]] += count
        loads = sum(count for (module, name), count in self.calls.items() if (module, name) == LOAD)
        return Walk([*self.main, *sorted(self.others - self.main.keys())], loads, checks)


LOAD = ("data/folders/case_files.py", "_read_scores")
"""The function that loads the scores of a case from its file."""


def walk() -> dict[str, Walk]:
    """Return the trace of every command, each run once before so that nothing is imported or compiled."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _write_image(Path("data"))
            return {name: _traced(args) for name, args in COMMANDS.items()}
        finally:
            os.chdir(before)


def _write_image(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    logits = 2 * random.normal(size=(3, 80, 90)).astype(np.float32)
    labels = (logits + random.gumbel(size=logits.shape)).argmax(0).astype(np.uint8)
    for part in ("logits", "labels", "images"):
        (folder / part).mkdir(parents=True)
    np.save(folder / "logits" / "a.npy", logits)
    Image.fromarray(labels).save(folder / "labels" / "a.png")
    Image.fromarray(random.integers(0, 256, (80, 90, 3), dtype=np.uint8)).save(folder / "images" / "a.png")


def _run(args: tuple[str, ...]) -> None:
    import typer.main

    from segcal.cli.app import app

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        try:
            typer.main.get_command(app).main(list(args), prog_name="segcal")
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(said.getvalue()) from ended


def _traced(args: tuple[str, ...]) -> Walk:
    _run(args)
    made = Path(args[-1])
    shutil.rmtree(made) if made.is_dir() else made.unlink()
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        _run(args)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return tracer.found()


def section(found: dict[str, Walk]) -> str:
    """Return the part of CONTRIBUTING.md that the trace determines."""
    counted = [name for walk in list(found.values())[:1] for name in walk.checks]
    lines = [
        f"| command | modules entered | scores loaded | {' | '.join(counted)} |",
        f"|---|---|---|{'---|' * len(counted)}",
    ]
    for name, one in found.items():
        checks = " | ".join(str(one.checks[what]) for what in counted)
        lines.append(f"| `segcal {' '.join(COMMANDS[name])}` | {len(one.modules)} | {one.loads} | {checks} |")
    lines += ["", "The modules that `segcal evaluate` and `segcal report` enter, in this order:", ""]
    lines += ["| module | what it does |", "|---|---|"]
    both = dict.fromkeys([*found["evaluate"].modules, *found["report"].modules])
    lines += [f"| `{module}` | {_summary(ROOT / module)} |" for module in both]
    return "\n".join([START, *lines, END])


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def written(page: str, found: dict[str, Walk]) -> str:
    """Return the page with the section of this trace."""
    before, _, rest = page.partition(START)
    return before + section(found) + rest.partition(END)[2]


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "src"))
    traced = walk()
    if "--json" in sys.argv:
        print(json.dumps({name: asdict(one) for name, one in traced.items()}))
    else:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), traced), encoding="utf-8")
