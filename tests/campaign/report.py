"""Counts of a campaign as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.campaign.fuzz import Tally
from tests.campaign.kill import Kills
from tests.campaign.mutate import Noticed


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table with aligned columns.

    >>> print(table(["what", "tried"], [["fit", 12]]))
    | what | tried |
    |------|-------|
    | fit  |    12 |
    """
    cells = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    widths = [max(len(line[k]) for line in [list(headings), *cells]) for k in range(len(headings))]
    numeric = [all(isinstance(row[k], int) for row in rows) for k in range(len(headings))]

    def line(values: Sequence[str]) -> str:
        shown = [v.rjust(w) if n else v.ljust(w) for v, w, n in zip(values, widths, numeric, strict=True)]
        return f"| {' | '.join(shown)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(list(headings)), rule, *(line(row) for row in cells)])


def fuzz_table(tally: Tally) -> str:
    """Return counts by subject and by family of mutations."""
    kinds = ("right", "refused", "defect")
    by_subject: dict[str, Counter[str]] = {}
    by_family: dict[str, Counter[str]] = {}
    for (subject, family, kind), count in tally.counts.items():
        by_subject.setdefault(subject, Counter())[kind] += count
        by_family.setdefault(family, Counter())[kind] += count
    blocks = []
    for title, found in (("damaged", by_subject), ("by", by_family)):
        rows = [[name, sum(c.values()), *(c[kind] for kind in kinds)] for name, c in sorted(found.items())]
        rows.append(["all", tally.tried, *(sum(c[kind] for c in found.values()) for kind in kinds)])
        blocks.append(table([title, "tried", "right number", "one sentence", "defects"], rows))
    return "\n\n".join(blocks)


def defects(tally: Tally) -> str:
    """Return every cause with its count and its smallest examples."""
    lines = []
    for cause, count in tally.causes.most_common():
        lines.append(f"{count} x {cause}")
        lines += [f"    {line}" for example in tally.examples.get(cause, [])[:2] for line in example.splitlines()]
    return "\n".join(lines)


def kill_table(found: Kills, how: str) -> str:
    """Return counts by how a process was disturbed and what its output was afterwards."""
    states = [*sorted({state for _, state in found.counts} - {"defect"}), "defect"]
    rows: dict[str, Counter[str]] = {}
    for (way, state), count in found.counts.items():
        rows.setdefault(way, Counter())[state] += count
    lines = [[way, sum(c.values()), *(c[state] for state in states)] for way, c in sorted(rows.items())]
    total = [sum(line[k] for line in lines) for k in range(1, len(states) + 2)]  # type: ignore[misc]
    return table([how, "tried", *states], [*lines, ["all", *total]])


def mutation_table(found: Noticed) -> str:
    """Return counts by module."""
    kinds = ("killed", "hung", "survived", "equivalent")
    modules = sorted({module for module, _ in found.counts})
    rows = [[m, sum(found.counts[m, k] for k in kinds), *(found.counts[m, k] for k in kinds)] for m in modules]
    total = [sum(row[k] for row in rows) for k in range(1, len(kinds) + 2)]  # type: ignore[misc]
    return table(["module", "tried", *kinds], [*rows, ["all", *total]])
