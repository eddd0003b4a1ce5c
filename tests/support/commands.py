"""Commands run as a user would, in this process: what they print, or the one line with which they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from segcal.cli.app import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def succeed_json(*arguments: object) -> Any:
    """Return what a command prints with --json, in which every number must be finite."""
    return json.loads(succeed(*arguments, "--json"), parse_constant=pytest.fail)


def refuse(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    (line,) = result.stderr.splitlines()
    assert line.startswith("segcal: ")
    return line
