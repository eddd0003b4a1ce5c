"""Shapes are checked while the tests run, so a wrong one fails wherever it occurs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("beartype")

from jaxtyping import Float, TypeCheckError

from segcal.functional.pixels import moved_labels
from segcal.kernels.dispatch import plain_only
from support.shape_checks import check, checked

THREE, FOUR = torch.zeros(3), torch.zeros(4)


def as_if_in(module: str, result: Tensor) -> Callable[..., Tensor]:
    """A function of one module of segcal, which returns what it is told to."""

    def function(values: Float[Tensor, " N"], others: Float[Tensor, " N"], *, count: int = 1) -> Float[Tensor, " N"]:
        return result

    function.__module__ = module
    found: Callable[..., Tensor] = checked(typechecker=check)(function)
    return found


@pytest.mark.parametrize(
    ("result", "arguments"),
    [(THREE, (THREE, FOUR)), (THREE, (THREE, THREE[None])), (THREE, (THREE, THREE.long())), (FOUR, (THREE, THREE))],
    ids=["sizes that differ", "another dimension", "integers", "result"],
)
@pytest.mark.parametrize("module", ["segcal.functional.any", "segcal.regions"])
def test_a_wrong_shape_is_found(module: str, result: Tensor, arguments: tuple[Tensor, Tensor]) -> None:
    assert as_if_in(module, THREE)(THREE, THREE) is THREE
    with pytest.raises(TypeCheckError, match="Tensor, 'N'"):
        as_if_in(module, result)(*arguments)


def test_each_call_has_its_own_sizes() -> None:
    def inner(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        return values

    def outer(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        inner_checked(torch.cat([values, values]))
        return values

    inner.__module__ = outer.__module__ = "segcal.functional.any"
    inner_checked, outer_checked = checked(inner, typechecker=check), checked(outer, typechecker=check)
    for values in (THREE, FOUR):
        assert outer_checked(values) is values


def test_other_types_are_checked_in_the_mathematics_only() -> None:
    count: Any = "one"
    assert as_if_in("segcal.regions", THREE)(THREE, THREE, count=count) is THREE
    with pytest.raises(TypeCheckError, match="not instance of int"):
        as_if_in("segcal.functional.any", THREE)(THREE, THREE, count=count)


def test_what_has_no_shape_is_left_alone_outside_the_mathematics() -> None:
    def function(count: int) -> int:
        return count

    function.__module__ = "segcal.calibrators.any"
    assert checked(function, typechecker=check) is function


def test_kernels_have_the_types_of_their_plain_form() -> None:
    logits, fewer = torch.zeros(3, 5), torch.zeros(3, 4)
    assert moved_labels(logits, logits) == 0
    with pytest.raises(TypeCheckError, match="logits"):
        moved_labels(logits, fewer)
    with plain_only(), pytest.raises(TypeCheckError, match="logits"):
        moved_labels(logits, fewer)
