"""Help: short, quick, with an example; commands in the order of work; completion."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

import segcal
from segcal.cli import figure
from segcal.cli.app import COMMANDS, app
from segcal.report.figures import KINDS
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


def test_help_lists_the_figures() -> None:
    assert figure._KINDS == KINDS
    assert all(kind in succeed("figure", "--help") for kind in KINDS)


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


REPOSITORY = Path(__file__).parents[2]


def documented_commands() -> list[str]:
    """Command lines of the code blocks, without comments; lines that continue with a backslash are joined."""
    found = []
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in text.split("```")[1::2]:
            found += [line.strip() for line in block.splitlines() if line.lstrip("$ ").startswith("segcal ")]
    return sorted(set(found))


LINES_OF_DOCS = documented_commands()


def test_the_docs_have_commands() -> None:
    assert len(LINES_OF_DOCS) > 20


@pytest.mark.parametrize("line", LINES_OF_DOCS)
def test_commands_parse(line: str) -> None:
    words = shlex.split(line.lstrip("$ "), comments=True)[1:]
    command = typer.main.get_command(app)
    context = command.make_context("segcal", [], resilient_parsing=True)
    while hasattr(command, "get_command") and words:
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, name
    if "--help" not in words:
        command.make_context("segcal", list(words), parent=context)
