"""Help: short, quick, with an example; commands in the order of work; completion."""

from __future__ import annotations

import re

import pytest

import segcal
from segcal.cli.app import COMMANDS
from support.commands import run, succeed
from support.program import printed_by

EACH = [(name,) for name in COMMANDS if name != "nnunet"] + [("nnunet", "fit"), ("nnunet", "predict")]
LINES = 60


@pytest.mark.parametrize("command", EACH, ids=" ".join)
def test_help_fits_on_a_screen_and_has_an_example(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help", width=80).stdout
    assert len(shown.splitlines()) <= LINES
    assert re.search(rf"Example: segcal {' '.join(command)}", shown)
    assert "--json" in shown


def test_help_lists_every_command_in_the_order_of_work() -> None:
    shown = succeed("--help")
    names = re.findall(r"^\W (\w+)  +[A-Z]", shown.partition("Commands")[2], flags=re.MULTILINE)
    assert names == list(COMMANDS)
    assert "--install-completion" in shown


def test_version() -> None:
    assert succeed("--version") == f"segcal {segcal.__version__}\n"


def test_no_command_shows_help() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Usage:" in result.output


def test_completion_offers_methods() -> None:
    asked = {"_SEGCAL_COMPLETE": "complete_bash", "COMP_WORDS": "segcal fit DATA --method is", "COMP_CWORD": "4"}
    shown = printed_by("-c", "import sys; sys.argv = ['segcal']; from segcal.cli import main; main()", **asked)
    assert shown.split() == [name for name in segcal.methods() if name.startswith("is")]


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["--version"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    code = f"import sys; sys.argv = ['segcal', *{arguments}]\nfrom segcal.cli import main\n" + (
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    assert not end.code, end.code\n    print('loaded', 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert printed_by("-c", code).splitlines()[-1] == "loaded False False"
