"""Commands run as a user would, in this process: what they print, or the one line with which they refuse."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from typer.testing import CliRunner, Result

from segcal.cli.app import app

typer.testing._get_command = cache(typer.testing._get_command)  # made of all options of all commands


def run(*arguments: object, width: int = 80) -> Result:
    """Return the result of a command in a terminal of some width."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(width)})


def done(*arguments: object) -> Result:
    """Return the result of a command that must succeed."""
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def succeed(*arguments: object) -> str:
    """Return what a command prints."""
    return done(*arguments).stdout


def succeed_json(*arguments: object) -> Any:
    """Return what a command prints with --json, in which every number must be finite."""
    return json.loads(succeed(*arguments, "--json"), parse_constant=pytest.fail)


def everything(folder: Path) -> set[str]:
    """Return the paths below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def refuse(*arguments: object) -> str:
    """Return the one sentence with which a command refuses, on standard error and with nothing on standard output."""
    result = run(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("segcal: ")
    return line
