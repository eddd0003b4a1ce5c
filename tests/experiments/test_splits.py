"""Cross-validation: every name tested once, groups kept together, nothing tested on what it was fitted on."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from experiments.datasets.splits import (
    check_leaks,
    cross_validation,
    from_json,
    nested_cross_validation,
    shuffled_parts,
    to_json,
)
from segcal.types import InputError

SUBJECTS = [f"S{k:02d}" for k in range(1, 41)]


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
    check_leaks(split)


def test_a_split_survives_json() -> None:
    split = nested_cross_validation(SUBJECTS, seed=3)
    assert from_json(json.loads(json.dumps(to_json(split)))) == split
    assert split != nested_cross_validation(SUBJECTS, seed=4)
    with pytest.raises(InputError, match="must list"):
        from_json([{"network": {}}])


def test_leaks_are_found() -> None:
    first, *rest = nested_cross_validation(SUBJECTS)
    inner = first.calibration[0]
    in_training = replace(inner, fit=(*inner.fit[1:], first.network.fit[0]))
    in_test = replace(inner, fit=(*inner.fit[1:], inner.test[0]))
    for leaky in (in_training, in_test):
        with pytest.raises(InputError, match="must be disjoint"):
            check_leaks([replace(first, calibration=(leaky,)), *rest])
    groups = {first.network.fit[0]: "p", first.network.test[0]: "p"}
    with pytest.raises(InputError, match="share the group p"):
        check_leaks([first], groups)


@given(
    st.lists(st.integers(0, 6), min_size=4, max_size=40),
    st.integers(2, 4),
    st.integers(0, 3),
    st.integers(0, 5),
)
def test_folds_test_every_name_once_and_keep_groups(members: list[int], folds: int, validation: int, seed: int) -> None:
    names = [f"case-{k}" for k in range(len(members))]
    groups = {name: f"patient-{member}" for name, member in zip(names, members, strict=True) if member}
    try:
        found = cross_validation(names, folds, validation=validation, groups=groups, seed=seed)
    except InputError:  # too few groups for so many folds, or none left to fit on: tested below
        assume(False)
    assert sorted(chain.from_iterable(fold.test for fold in found)) == sorted(names)
    for fold in found:
        assert sorted((*fold.fit, *fold.validation, *fold.test)) == sorted(names)
        assert len(fold.validation) >= validation
        owners = [{groups.get(name, name) for name in part} for part in (fold.fit, fold.validation, fold.test)]
        assert sum(map(len, owners)) == len(set.union(*owners)), "a group lies in two parts"
    assert found == cross_validation(names[::-1], folds, validation=validation, groups=groups, seed=seed)


def test_folds_without_groups_are_balanced() -> None:
    found = cross_validation([str(k) for k in range(17)], 4)
    assert sorted(len(fold.test) for fold in found) == [4, 4, 4, 5]


def test_impossible_splits_are_refused() -> None:
    with pytest.raises(InputError, match="folds must be 2 to 3"):
        cross_validation(["a", "b", "c"], 4)
    with pytest.raises(InputError, match="leave none to fit on"):
        cross_validation(["a", "b", "c"], 3, validation=2)
    with pytest.raises(InputError, match="unique"):
        cross_validation(["a", "a"], 2)
    with pytest.raises(InputError, match="need 3 names, got 2"):
        shuffled_parts(["a", "b"], (3,))
