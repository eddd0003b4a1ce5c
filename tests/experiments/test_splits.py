"""Cross-validation: every name tested once, nothing tested on what it was fitted on."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.datasets.coco import SIZES
from experiments.datasets.splits import NestedFold, cross_validation, nested_cross_validation, shuffled_parts
from segcal.types import InputError

SUBJECTS = [f"S{k:02d}" for k in range(1, 41)]


def assert_no_leaks(split: tuple[NestedFold, ...]) -> None:
    """Nothing is tested on what it, or the network whose scores it calibrates, was fitted or chosen on."""
    for nested in split:
        for fold in (nested.network, *nested.calibration):
            assert len({*fold.fit, *fold.validation, *fold.test}) == len([*fold.fit, *fold.validation, *fold.test])
        for fold in nested.calibration:
            assert not {*nested.network.fit} & {*fold.fit, *fold.validation, *fold.test}


def test_the_paper_s_nested_cross_validation() -> None:
    split = nested_cross_validation(SUBJECTS)
    assert len(split) == 2
    for nested in split:
        network = nested.network
        assert [len(part) for part in (network.fit, network.validation, network.test)] == [17, 3, 20]
        for fold in nested.calibration:
            assert [len(part) for part in (fold.fit, fold.validation, fold.test)] == [10, 3, 10]
            assert fold.validation == network.validation
            assert set(fold.fit) | set(fold.test) == set(network.test)
    tested = list(chain.from_iterable(fold.test for nested in split for fold in nested.calibration))
    assert sorted(tested) == SUBJECTS
    assert_no_leaks(split)
    assert split != nested_cross_validation(SUBJECTS, seed=4)


@given(st.integers(4, 40), st.integers(1, 3), st.integers(0, 5))
def test_folds_test_every_name_once(count: int, validation: int, seed: int) -> None:
    names = [f"case-{k}" for k in range(count)]
    if count // 2 <= validation:
        with pytest.raises(InputError, match="leave none to fit on"):
            nested_cross_validation(names, validation=validation, seed=seed)
        return
    split = nested_cross_validation(names, validation=validation, seed=seed)
    assert_no_leaks(split)
    assert sorted(chain.from_iterable(nested.network.test for nested in split)) == sorted(names)
    assert {len(nested.network.validation) for nested in split} == {validation}
    assert split == nested_cross_validation(names[::-1], validation=validation, seed=seed)


def test_impossible_splits_are_refused() -> None:
    with pytest.raises(InputError, match="leave none to fit on"):
        cross_validation(["a", "b", "c"], validation=2)
    for unsplit in (lambda: cross_validation(["a", "a"]), lambda: shuffled_parts(["a", "a"], (1,))):
        with pytest.raises(InputError, match="unique"):
            unsplit()
    with pytest.raises(InputError, match="need 3 names, got 2"):
        shuffled_parts(["a", "b"], (3,))
    with pytest.raises(InputError, match="0 names or more, got 4, -2, 2"):
        shuffled_parts(["a", "b"], (4, -2, 2))


def test_parts_are_disjoint_and_do_not_depend_on_order() -> None:
    names = [f"{k:012d}" for k in range(5000)]
    parts = shuffled_parts(names, SIZES)
    assert tuple(map(len, parts)) == SIZES == (3500, 500, 1000)
    assert len({name for part in parts for name in part}) == 5000
    assert shuffled_parts(names[::-1], SIZES) == parts
    assert shuffled_parts(names, SIZES, seed=1) != parts
