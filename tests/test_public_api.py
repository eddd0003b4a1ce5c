"""The public names: imported on first use, called segcal.X, typed, with short reprs."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pickle
import re
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import segcal
from segcal.evaluation.protocol import Protocol, ProtocolSettings

NAMES = [name for name in segcal.__all__ if not name.startswith("_")]
CLASSES = [name for name in NAMES if isinstance(getattr(segcal, name), type)]


def type_checked_names() -> dict[str, str]:
    """The names that type checkers and editors see, with their modules."""
    (block,) = (
        node
        for node in ast.parse(Path(segcal.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {alias.name: str(node.module) for node in block.body for alias in node.names}  # type: ignore[attr-defined]


def test_type_checkers_see_the_names_of_the_package() -> None:
    homes = {name: f"segcal.{module}" for name, module in segcal._HOMES.items()}
    assert type_checked_names() == homes
    assert set(segcal.__all__) == {*homes, "__version__"} <= set(dir(segcal))


@pytest.mark.parametrize("name", NAMES)
def test_public_objects_call_themselves_segcal(name: str) -> None:
    thing = getattr(segcal, name)
    assert thing is getattr(importlib.import_module(f"segcal.{segcal._HOMES[name]}"), name)
    assert (thing.__module__, thing.__qualname__) == ("segcal", name)
    assert pickle.loads(pickle.dumps(thing)) is thing
    assert typing.get_type_hints(thing) is not None


def test_tracebacks_and_hints_name_segcal() -> None:
    with pytest.raises(segcal.InputError) as caught:
        segcal.create("nothing", 3)
    assert caught.exconly().startswith("segcal.InputError: method must be one of")
    assert repr(segcal.Case) == "<class 'segcal.Case'>"
    assert typing.get_type_hints(segcal.Case)["group"] == str | None


@pytest.mark.parametrize("name", CLASSES)
def test_examples_of_public_classes_run(name: str) -> None:
    """Doctest looks for a class in the module that it names, and finds none of these in its file."""
    module = importlib.import_module(f"segcal.{segcal._HOMES[name]}")
    for example in doctest.DocTestFinder().find(getattr(segcal, name), name, module=False, globs=dict(vars(module))):
        assert doctest.DocTestRunner().run(example).failed == 0


def test_submodules_are_imported_on_first_use() -> None:
    assert segcal.regions is importlib.import_module("segcal.regions")
    with pytest.raises(AttributeError, match="module 'segcal' has no attribute 'nothing'"):
        _ = segcal.nothing


# --------------------------------------------------------------------------------------------------------------------
# one set of keywords


def documented(function: Callable[..., object]) -> dict[str, str]:
    """The entries of a docstring's Args."""
    section = inspect.cleandoc(function.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (?=\w)", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, _, text in (entry.partition(":") for entry in entries)}


def test_keywords_are_those_of_the_protocol() -> None:
    assert typing.get_type_hints(ProtocolSettings) == typing.get_type_hints(Protocol)
    assert list(documented(Protocol)) == [field.name for field in fields(Protocol)]
    assert all(documented(Protocol).values())


@pytest.mark.parametrize("function", [segcal.evaluate, segcal.compare])
def test_every_parameter_is_documented(function: Callable[..., object]) -> None:
    docs = documented(function)
    assert list(docs) == list(inspect.signature(function).parameters)
    assert all(docs.values())


def test_a_protocol_or_its_settings() -> None:
    case = segcal.Case("a", np.zeros((2, 1, 2)), np.array([[0, 1]]))
    protocol = Protocol(num_classes=2, bins=3, repetitions=2)
    whole = segcal.evaluate([case], {"UC": None}, protocol)
    assert whole.settings == segcal.evaluate([case], {"UC": None}, num_classes=2, bins=3, repetitions=2).settings
    assert segcal.evaluate([case], {"UC": None}, protocol, bins=4).settings == {**whole.settings, "bins": 4}
    with pytest.raises(TypeError, match=r"there is no setting 'bin'; the settings are num_classes, .*mean 'bins'"):
        segcal.evaluate([case], {"UC": None}, num_classes=2, bin=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="num_classes is missing; give it, or a Protocol"):
        segcal.evaluate([case], {"UC": None})


def test_keywords_reach_the_protocol() -> None:
    """Every keyword changed at once is kept in the settings."""
    changed = {
        "activation": "softmax",
        "ignore_index": [9],
        "background": 0,
        "bins": 3,
        "form": "equations",
        "ace_edges": "image",
        "boundary_width": 1,
        "boundary_ball": True,
        "patch_size": 4,
        "patches": 2,
        "patch_margin": 1,
        "patch_sizes": [3],
        "patch_rule": "paper",
        "seed": 5,
        "repetitions": 7,
        "interval": "bca",
        "floor": True,
        "surfaces": True,
        "surface_tolerance": 2.0,
        "limits": True,
        "class_names": ["a", "b"],
    }
    assert set(changed) == {field.name for field in fields(Protocol)} - {"num_classes"}
    logits = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
    case = segcal.Case("a", logits, (logits[0] > 0).long())
    results = segcal.evaluate([case], {"UC": None}, num_classes=2, **changed)  # type: ignore[arg-type]
    assert {name: results.settings[name] for name in changed} == changed


# --------------------------------------------------------------------------------------------------------------------
# reprs


def test_a_case_shows_shapes_and_types() -> None:
    case = segcal.Case("a'b", np.zeros((3, 4, 5), np.float16), None, torch.zeros(1, 4, 5), (0.5, 1.0))
    assert (
        repr(case) == 'Case("a\'b", logits=float16[3, 4, 5], labels=None, image=float32[1, 4, 5], spacing=(0.5, 1.0))'
    )


def test_results_show_their_main_figures() -> None:
    """Two pixels at confidence 1/2, one correct: ECE 0, NLL log 2, Brier 1/2, accuracy 1/2, mIoU 1/4."""
    case = segcal.Case("a", np.zeros((2, 1, 2)), np.array([[0, 1]]))
    results = segcal.evaluate([case], {"UC": None, "other": None}, num_classes=2, repetitions=2)
    assert repr(results).splitlines() == [
        "Results of 1 case, region All, pooled over all pixels:",
        "       ECE(%)↓    NLL↓  Brier↓  Accuracy(%)↑  mIoU(%)↑",
        "UC        0.00  0.6931  0.5000         50.00     25.00",
        "other     0.00  0.6931  0.5000         50.00     25.00",
    ]
