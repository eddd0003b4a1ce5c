"""Commands in README and docs: every line parses, so that options that do not exist are found."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer

from segcal.cli.app import app

ROOT = Path(__file__).parents[2]


def documented_commands() -> list[str]:
    """Command lines of the code blocks, without comments; lines that continue with a backslash are joined."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in text.split("```")[1::2]:
            found += [line.strip() for line in block.splitlines() if line.lstrip("$ ").startswith("segcal ")]
    return sorted(set(found))


COMMANDS = documented_commands()


def test_the_docs_have_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("line", COMMANDS)
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
