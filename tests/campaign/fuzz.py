"""`python -m tests.campaign fuzz`: damaged files and command lines by the thousand, outside pytest.

What is drawn and how it is judged is that of `test_fuzz.py`. Here a defect does not end the run: defects are counted by
their cause, and the first attack of each is shown. Examples are drawn in rounds, each with a seed of its own and few
enough that hypothesis need not remember many; nothing checks shapes, which takes most of the time in the tests.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from segcal.files import outputs
from tests.campaign.artefacts import whole
from tests.campaign.folders import FOLDERS
from tests.campaign.judge import Arena, Attack, DefectError
from tests.campaign.kill import Kills
from tests.campaign.running import prepare
from tests.campaign.test_fuzz import attacks, limited, odd_attacks
from tests.campaign.trees import write_tree

ROUND = 500
MUTANTS = Path("mutants").absolute()
"""Where the files of the first attack of each cause are kept."""

KINDS = {"data": (10, tuple(FOLDERS)), "calibrators": (5, ("calibrators",)), "atlases": (1, ("atlases",))}
KINDS |= {"checkpoints": (2, ("checkpoints",)), "results": (3, ("results",)), "decisions": (2, ("decisions",))}
"""Kinds of artefacts, and how many of 24 rounds attack each; one more attacks command lines."""


def fuzz(first: int, *, number: int | None, minutes: float | None) -> Kills:
    """Judge mutants until there were enough or the time is over; return counts by (kind, verdict), and the defects."""
    began, found, causes = time.monotonic(), Kills(), Counter[str]()
    settings.register_profile("campaign", database=None, deadline=None)
    settings.load_profile("campaign")
    outputs.sync = lambda path: None  # nothing has to survive a power cut
    if Path("/dev/shm").is_dir():
        tempfile.tempdir = "/dev/shm"
    prepare()
    whole()
    rounds = [kind for kind, (share, _) in KINDS.items() for _ in range(share)] + ["command lines"]
    with tempfile.TemporaryDirectory(prefix="segcal-fuzz-") as folder, limited():
        arena, tried, k = Arena(Path(folder) / "arena"), 0, 0
        while (number is None or tried < number) and (minutes is None or time.monotonic() - began < 60 * minutes):
            # every kind comes again soon, so that a short run attacks all of them
            kind = rounds[k * 7 % len(rounds)]
            size = ROUND if number is None else min(ROUND, number - tried)
            _round(kind, arena, size, 1_000_003 * first + k, found, causes)
            tried, k = tried + size, k + 1
            verdicts = Counter[str]()
            for (_, verdict), many in found.counts.items():
                verdicts[verdict] += many
            shown = ", ".join(f"{many:,} {verdict}" for verdict, many in sorted(verdicts.items()))
            print(f"{tried:,} in {time.monotonic() - began:.0f} s: {shown}", file=sys.stderr, flush=True)
    return found


def _round(kind: str, arena: Arena, size: int, number: int, found: Kills, causes: Counter[str]) -> None:
    def judge(attack: Attack, how: str) -> None:
        try:
            found.counts[kind, arena.judge(attack)] += 1
        except DefectError as defect:
            found.counts[kind, "defect"] += 1
            cause = str(defect).splitlines()[0]
            causes[cause] += 1
            if causes[cause] == 1:
                words = f"{kind}, round {number}: segcal {' '.join(map(repr, attack.args))}\n{how}\n{defect}"
                found.defects.append(words)
                write_tree(MUTANTS / f"{number}-{causes.total()}", attack.tree)
                print(words, file=sys.stderr, flush=True)

    strategy: SearchStrategy[tuple[Attack, str]] = (
        odd_attacks().map(lambda attack: (attack, "options"))
        if kind == "command lines"
        else attacks(*KINDS[kind][1]).map(lambda drawn: (drawn[0], repr(drawn[1])))
    )
    drawn = settings(max_examples=size, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    seed(number)(drawn(given(strategy)(lambda pair: judge(*pair))))()
