"""The walk of one logit: how many modules three commands enter, how often they load the scores and check them."""

from __future__ import annotations

import json

import pytest

from support import walk
from support.program import printed_by

MODULES = {"fit": 48, "apply": 53, "evaluate": 93, "report": 46}
"""Numbers that are reached; aims are 25, 28 and 45."""

LOADS = {"fit": 1, "apply": 1, "evaluate": 2, "report": 0}  # a case is loaded again for its portrait


@pytest.fixture(scope="module")
def found() -> dict[str, walk.Walk]:
    printed = printed_by(walk.__file__, "--json", CUDA_VISIBLE_DEVICES="")
    return {name: walk.Walk(**one) for name, one in json.loads(printed.splitlines()[-1]).items()}


@pytest.mark.parametrize("command", walk.COMMANDS)
def test_commands_enter_few_modules_and_load_and_check_once(command: str, found: dict[str, walk.Walk]) -> None:
    one = found[command]
    assert len(one.modules) <= MODULES[command], one.modules
    assert one.loads <= LOADS[command]
    assert all(count <= one.loads for count in one.checks.values()), one.checks


def test_the_page_shows_the_present_walk(found: dict[str, walk.Walk]) -> None:
    page = walk.PAGE.read_text(encoding="utf-8")
    assert walk.written(page, found) == page, "run `python tests/support/walk.py`"
