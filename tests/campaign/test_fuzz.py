"""Damaged folders, saved files and command lines: a right number or one sentence, nothing else.

`make test` tries a few mutants of each artefact, the same ones every time; `make campaign` tries many thousands, of all
methods, with a new seed each time (`--hypothesis-profile campaign`).
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

pytest.importorskip("nibabel")

from tests.campaign.arguments import odd_arguments
from tests.campaign.artefacts import whole
from tests.campaign.damage import Damaged, damaged
from tests.campaign.damage.forging import forged
from tests.campaign.folders import FOLDERS
from tests.campaign.judge import Arena, Attack

ADDRESS_SPACE = 4 << 30
"""Bytes that a mutant may take beyond what the process has."""

FILE_SIZE = 256 << 20

CAMPAIGN = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """The folder of the attacks, with limits to memory and to the size of files."""
    whole()
    with limited():
        yield Arena(tmp_path_factory.mktemp("campaign") / "arena")


@contextmanager
def limited() -> Iterator[None]:
    """Limit the memory that this process may take from here on, and the size of the files that it writes."""
    before = [(kind, resource.getrlimit(kind)) for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for (kind, (_, hard)), limit in zip(before, (used + ADDRESS_SPACE, FILE_SIZE), strict=True):
        resource.setrlimit(kind, (limit, hard))
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGXFSZ, ignored)
        for kind, limits in before:
            resource.setrlimit(kind, limits)


@st.composite
def attacks(draw: DrawFn, *kinds: str) -> tuple[Attack, Damaged]:
    """Return a strategy of attacks on artefacts of some kinds."""
    artefact = draw(st.sampled_from(whole()[draw(st.sampled_from(kinds))]))
    command = draw(st.sampled_from(artefact.commands))
    damage = draw(damaged(artefact.tree, artefact.prefix))
    if artefact.signed and draw(st.booleans()):
        damage = Damaged(forged(damage.tree, artefact.prefix), f"{damage.how}, forged", artefact.tree)
    return Attack(artefact, command, command.args, damage.tree), damage


def judge(arena: Arena, attack: Attack, how: str) -> None:
    note(f"segcal {' '.join(map(repr, attack.args))}")
    event(f"{attack.artefact}, {how}: {arena.judge(attack)}")


@pytest.mark.parametrize(
    "kinds", [tuple(FOLDERS), ("calibrators", "atlases"), ("checkpoints",), ("results",), ("decisions",)], ids=", ".join
)
@CAMPAIGN
@given(data=st.data())
def test_damage_gives_a_right_number_or_one_sentence(arena: Arena, kinds: tuple[str, ...], data: st.DataObject) -> None:
    attack, damage = data.draw(attacks(*kinds))
    judge(arena, attack, damage.how)


@st.composite
def odd_attacks(draw: DrawFn) -> Attack:
    """Return a strategy of odd command lines on whole files."""
    artefact = draw(st.sampled_from([artefact for several in whole().values() for artefact in several]))
    command = draw(st.sampled_from(artefact.commands))
    return Attack(artefact, command, draw(odd_arguments(command.args)), artefact.tree, odd=True)


@CAMPAIGN
@given(attack=odd_attacks())
def test_odd_command_lines_give_a_right_number_or_one_sentence(arena: Arena, attack: Attack) -> None:
    judge(arena, attack, "options")
