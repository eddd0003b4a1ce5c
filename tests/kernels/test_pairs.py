"""Every kernel for the CPU and its plain form give the same result: same structure, same dtypes, same numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from segcal.kernels.dispatch import DECLINED, OPERATIONS
from support.engines import NAMES
from support.kernel_inputs import CLOSE, EMPTY, INPUTS, NEED_PIXELS, SCENES, Scene, agree, calls_of, same

WITHOUT_CPU = ("counting.add_unchecked_batch", "pixels.likelihood_sums", "tree.root_of_scores")
"""Whose plain form is made of operations that have one, or which nothing on the CPU needs faster."""
PAIRS = [name for name in NAMES if name not in WITHOUT_CPU]


ROWS = [
    Scene((pixels,), dtype, classes)
    for pixels in (1, 255, 256, 257, 1000)
    for classes, dtype in enumerate(4 * (torch.float16, torch.bfloat16, torch.float32, torch.float64), start=1)
    if classes < 9 or classes == 13
]
"""Rows of pixels that end in and at a block, of every parity of the number of classes."""


@pytest.mark.parametrize("name", [name for name in PAIRS if not name.startswith("tree")])
def test_rows_of_any_length_and_any_number_of_classes_agree(name: str) -> None:
    for row in ROWS:
        agree(name, row, "cpu")


@pytest.mark.parametrize("scene", SCENES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_kernel_and_plain_form_agree(name: str, scene: Scene) -> None:
    if scene is EMPTY and name in NEED_PIXELS:
        pytest.skip("images without pixels are refused before")
    agree(name, scene, "cpu")


@pytest.mark.parametrize("scene", [Scene((150, 160)), Scene((20, 21, 22), classes=3)], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_the_thread_count_changes_no_bit(name: str, scene: Scene, set_threads: Callable[[int], None]) -> None:
    kernel = OPERATIONS[name].kernel("cpu")
    assert kernel is not None
    for args, kwargs in calls_of(name, scene):
        results = []
        for threads in (1, 2, 5):
            set_threads(threads)
            own = copy.deepcopy(args)
            results.append((kernel(*own, **kwargs), own))  # and the tables that are filled in place
        for other in results[1:]:
            same(other, results[0], {"rtol": 0.0, "atol": 0.0})


@pytest.mark.parametrize("name", PAIRS)
def test_no_kernel_declines_everything(name: str) -> None:
    args, kwargs = calls_of(name, SCENES[0])[0]
    assert OPERATIONS[name].kernel("cpu")(*args, **kwargs) is not DECLINED  # type: ignore[misc]


def test_every_operation_has_inputs() -> None:
    assert sorted(INPUTS) == NAMES
    assert [name for name in NAMES if OPERATIONS[name].kernel("cpu") is None] == sorted(WITHOUT_CPU)


def test_the_comparison_sees_a_difference() -> None:
    one = (torch.zeros(2), [1.0, 3])
    same(one, copy.deepcopy(one), CLOSE)
    for other in ((torch.zeros(2).double(), [1.0, 3]), (torch.ones(2), [1.0, 3]), (torch.zeros(2), [1.1, 3])):
        with pytest.raises(AssertionError):
            same(one, other, CLOSE)
