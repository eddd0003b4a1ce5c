"""Parts of the campaign: `python -m tests.campaign fuzz|kill|disk|odd-machines --number N --seed S`.

- fuzz: damaged files and command lines, many in one process.
- kill: processes killed at random moments and while they replace their output.
- disk: outputs on a disk that is full.
- odd-machines: no home, no cache, read-only package, another user, other encodings, nonsense of a launcher.

The exit status is 1 if there was a defect. `make campaign` runs everything.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence


def main(arguments: list[str] | None = None) -> int:
    """Run one part of the campaign and print its table."""
    parser = argparse.ArgumentParser("python -m tests.campaign", description=__doc__.split("\n\n")[0])
    parser.add_argument("part", choices=("fuzz", "kill", "disk", "odd-machines"))
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--number", type=int, help="stop after so many mutants, kills or full disks")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # outputs are compared bit by bit, and a GPU rounds otherwise than a CPU
    if chosen.minutes is None and chosen.number is None:
        chosen.minutes = 1.0
    if chosen.part == "odd-machines":
        from tests.campaign.machines import odd_machines

        rows, defects = odd_machines(chosen.seed)
        print(table(["machine", "commands", "done", "refused", "defects"], rows))
    else:
        from tests.campaign.disk import disk
        from tests.campaign.fuzz import fuzz
        from tests.campaign.kill import kill

        attack, how = {"fuzz": (fuzz, "damaged"), "kill": (kill, "killed"), "disk": (disk, "space")}[chosen.part]
        found = attack(chosen.seed, number=chosen.number, minutes=chosen.minutes)
        defects = found.defects
        print(table(*counted(found.counts, how)))
    print(f"\nseed {chosen.seed}: {len(defects)} defects", *defects, sep="\n")
    return int(bool(defects))


def counted(counts: Counter[tuple[str, str]], how: str) -> tuple[list[str], list[list[object]]]:
    """Return headings and rows: counts by how a process was disturbed and what its output was afterwards."""
    states = [*sorted({state for _, state in counts} - {"defect"}), "defect"]
    rows: list[list[object]] = []
    for way in sorted({way for way, _ in counts}):
        row = [counts[way, state] for state in states]
        rows.append([way, sum(row), *row])
    return [how, "tried", *states], rows


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table with aligned columns.

    >>> print(table(["what", "tried"], [["fit", 12]]))
    | what | tried |
    |------|-------|
    | fit  | 12    |
    """
    lines = [list(headings), *([f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [f"| {' | '.join(c.ljust(w) for c, w in zip(line, widths, strict=True))} |" for line in lines]
    return "\n".join([shown[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *shown[1:]])


if __name__ == "__main__":
    sys.exit(main())
