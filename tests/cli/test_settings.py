"""The settings of the methods: read from signatures and docstrings, checked as they are typed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import segcal
from segcal.cli.options import FitOptions
from segcal.cli.settings import Setting, chosen_settings, settings_of
from segcal.types import InputError
from support.commands import refuse, run, succeed, succeed_json

FROM_DATA = {"num_classes", "spatial_dims", "image_channels", "ignore_index", "background"}


@pytest.mark.parametrize("method", segcal.methods())
def test_every_parameter_of_a_method_is_a_setting_with_a_meaning(method: str) -> None:
    found = settings_of(method)
    constructor = set(segcal.create(method, num_classes=3).settings()) - FROM_DATA
    assert {name for name, setting in found.items() if not setting.trains} == constructor
    for setting in found.values():
        assert setting.meaning
        listed = get_origin(setting.hint) is Literal  # the meaning says what each choice does
        assert all(str(choice) in setting.meaning for choice in get_args(setting.hint) if listed)
    training = segcal.create(method, num_classes=3).fit_settings - {"watch"}
    assert {name for name, setting in found.items() if setting.trains} == training


def test_settings_reach_constructor_or_fit() -> None:
    given = FitOptions(["positivity=exp", "bounds=1,2", "learning-rate=1e-3"], epochs=3, seed=1)
    found = chosen_settings(["ts", "lts"], given, device=None)
    assert found["ts"] == ({"bounds": (1.0, 2.0)}, {})
    assert found["lts"] == (
        {"positivity": "exp", "bounds": (1.0, 2.0)},
        {"epochs": 3, "learning_rate": 1e-3, "seed": 1},
    )


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "7", 7),
        (float | None, "1e-3", 1e-3),
        (float | None, "none", None),
        (bool, "True", True),
        (bool, "false", False),
        (Literal["a", "b"] | None, "b", "b"),
        (tuple[float, float], "1,2.5", (1.0, 2.5)),
        (tuple[int, ...], "3,4,5", (3, 4, 5)),
        (Sequence[str], "ts,ets", ("ts", "ets")),
        (str | Path | None, "a/b", "a/b"),
    ],
)
def test_values_have_the_type_of_the_parameter(hint: Any, text: str, value: object) -> None:
    found = Setting("x", hint, None, "", trains=False).read(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("hint", "text", "words"),
    [
        (int, "7.5", "a whole number"),
        (float | None, "x", "a number"),
        (bool, "yes", "true or false"),
        (Literal["a", "b", "c"], "d", "a, b or c"),
        (tuple[float, float], "1", "2 numbers with a comma between them"),
    ],
)
def test_values_of_another_type_are_refused(hint: Any, text: str, words: str) -> None:
    with pytest.raises(InputError, match=f"the setting 'x' must be {words}, got '{text}'"):
        Setting("x", hint, None, "", trains=False).read(text)


def test_unknown_settings_name_the_known_ones() -> None:
    with pytest.raises(InputError, match="'ts' has no setting 'bound'; the settings are bounds; did you mean 'bounds'"):
        chosen_settings(["ts"], FitOptions(["bound=1,2"]))
    with pytest.raises(InputError, match="none of ts, vector has a setting 'epochs'; the settings are bounds"):
        chosen_settings(["ts", "vector"], FitOptions(epochs=3))


def test_methods_are_listed_with_one_line_each() -> None:
    shown = run("methods", width=200).stdout.splitlines()
    assert [line.split()[0] for line in shown[1:-1]] == list(segcal.methods())
    found = succeed_json("methods")
    assert [entry["method"] for entry in found] == list(segcal.methods())
    assert all(entry["summary"] for entry in found)


def test_settings_of_a_method_are_shown() -> None:
    shown = run("methods", "lts", width=100).stdout
    for words in (
        "positivity   relu",
        "settings of training",
        "learning_rate",
        "Passes over the data. (a whole number)",
    ):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 100
    found = {entry["name"]: entry for entry in succeed_json("methods", "lts")["settings"]}
    assert found["bounds"]["default"] == [0.05, 100.0]
    assert found["positivity"]["values"] == "relu, softplus or exp"
    assert "settings of training" not in succeed("methods", "ts")
    assert "got 'lst'; did you mean 'lts'?" in refuse("methods", "lst")
