"""The options of `segcal fit` follow from the calibrators, and their cached table is up to date."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import segcal
from segcal.calibrators import Calibrator
from segcal.cli import derive_options
from segcal.cli.method_options import TABLE, MethodOptions, method_names, table
from segcal.types import InputError
from support.commands import run

FROM_DATA = {"num_classes", "spatial_dims", "image_channels", "ignore_index", "background"}
FROM_CASES = {"cases", "validation", "watch"}


def test_the_cached_table_is_up_to_date() -> None:
    stored = json.loads(TABLE.read_text(encoding="utf-8"))
    assert stored == derive_options.derive(), f"run: {derive_options.COMMAND}"


@pytest.mark.parametrize("method", segcal.methods())
def test_every_parameter_of_a_method_is_an_option(method: str) -> None:
    kind = type(segcal.create(method, num_classes=3))
    constructor = set(inspect.signature(kind).parameters) - FROM_DATA
    fit = set(inspect.signature(kind(3).fit).parameters) - FROM_CASES
    mine = [option for option in table()[1] if method in option.methods]
    assert {option.name for option in mine if option.place == "constructor"} == constructor
    assert {option.name for option in mine if option.place == "fit"} == fit


def test_help_shows_panels_by_method() -> None:
    shown = run("fit", "--help", width=300).stdout
    for panel in (
        "Local temperature scaling (",
        "Contextual temperature scaling (cts)",
        "Training (",
        "Data",
        "Output",
    ):
        assert f"─ {panel}" in shown
    for option in table()[1]:
        assert option.flag in shown
    compared = run("compare", "--help", width=300).stdout
    assert "─ Measuring" in compared
    assert compared.count("--bins") == 1, "measuring and histogram binning have an option of this name"


def test_options_reach_constructor_or_fit() -> None:
    given = MethodOptions.of({"epochs": 3, "positivity": "exp", "bounds": (1.0, 2.0), "candidates": None})
    assert given.checked(["lts"]).split("lts") == ({"positivity": "exp", "bounds": (1.0, 2.0)}, {"epochs": 3})
    assert given.checked(["ts", "lts"]).split("ts") == ({"bounds": (1.0, 2.0)}, {})
    with pytest.raises(InputError, match="'ts' has no --epochs, which is an option of"):
        given.checked(["ts"])
    assert MethodOptions.of({"candidates": ["ts,ets", "cts"]}).given == {"candidates": ["ts", "ets", "cts"]}


class Own(Calibrator):
    """A calibrator as a user might write it.

    Args:
        strength: How much,
            in total.
        shape: "round" or "flat".
    """

    method = "own"

    def __init__(
        self, num_classes: int, *, strength: float = 2.5, shape: Literal["round", "flat"] = "round", new: bool = True
    ) -> None: ...

    def fit(self, cases: Any, *, validation: Any = None) -> Any: ...

    def calibrate(self, logits: Any, image: Any = None) -> Any: ...


def test_a_new_parameter_becomes_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derive_options, "methods", lambda: ("own",))
    monkeypatch.setattr(derive_options, "create", lambda *_, **__: Own.__new__(Own))
    with pytest.raises(TypeError, match="'new' must be described under Args"):
        derive_options.derive()
    monkeypatch.setattr(Own, "__doc__", f"{Own.__doc__}    new: Whether it is.\n")
    by_name = {option["name"]: option for option in derive_options.derive()["options"]}
    assert by_name["strength"] == {
        "name": "strength",
        "place": "constructor",
        "kind": "float",
        "methods": ["own"],
        "panel": "Own (own)",
        "help": "How much, in total.",
        "default": "2.5",
        "choices": [],
        "on": False,
    }
    assert by_name["shape"]["choices"] == ["round", "flat"]
    assert by_name["new"]["on"]


def test_completion_offers_methods() -> None:
    environment = {"_SEGCAL_COMPLETE": "complete_bash", "COMP_WORDS": "segcal fit DATA --method is", "COMP_CWORD": "4"}
    source = str(Path(segcal.__file__).parents[1])
    code = "import sys; sys.argv = ['segcal']; from segcal.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": source, **environment},
        check=False,
    )
    assert done.stdout.split() == [name for name in method_names() if name.startswith("is")]


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["--version"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    code = f"import sys; sys.argv = ['segcal', *{arguments}]\nfrom segcal.cli import main\n" + (
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    assert not end.code, end.code\n    print('loaded', 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    source = str(Path(segcal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": source}, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["loaded False False"], done.stderr
