"""Splits of names into disjoint parts, the same on every machine, as plain data that JSON holds.

A split is a list of folds, a fold three lists of names. The paper's nested cross-validation on LPBA40 (appendix
"Implementation") is `nested_cross_validation` with its defaults: two networks, trained on 17 volumes, validated on 3
and tested on the other 20; for each, two calibrators, fitted on 10 of those 20, validated on the 3 and tested on the
other 10. Together the four cover all 40 volumes once, and nothing is tested on what it was fitted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from segcal.types import InputError


@dataclass(frozen=True)
class Fold:
    """Names to fit on, to choose on and to test on."""

    fit: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class NestedFold:
    """The fold of a network, and the folds of the calibrators that are fitted to its scores."""

    network: Fold
    calibration: tuple[Fold, ...]


def cross_validation(
    names: Sequence[str],
    folds: int = 5,
    *,
    validation: int = 0,
    groups: Mapping[str, str] | None = None,
    seed: int = 0,
) -> tuple[Fold, ...]:
    """Split names into k folds, each tested once.

    Groups are kept together: folds are balanced in names as far as groups allow, and `validation` is the least number
    of names that are set aside.

    Args:
        names: What to split.
        folds: k.
        validation: Names of each fold that are taken from what is fitted on, to choose on.
        groups: Group of each name, such as a patient; a name without one is a group of its own.
        seed: Random seed of the order.

    >>> tuple(len(fold.test) for fold in cross_validation(list("abcdefg"), 3))
    (3, 2, 2)
    """
    parts = _balanced(names, folds, groups, seed)
    found = []
    for k, test in enumerate(parts):
        rest = [name for other in (*parts[k + 1 :], *parts[:k]) for name in other]
        held = _whole_groups(rest, validation, groups)
        if validation and len(held) == len(rest):
            raise InputError(
                f"{len(rest)} names, of which {validation} are to validate on, leave none to fit on; use more names, "
                "smaller groups or less validation"
            )
        fit = tuple(name for name in rest if name not in held)
        found.append(Fold(fit, tuple(name for name in rest if name in held), tuple(test)))
    return tuple(found)


def nested_cross_validation(
    names: Sequence[str],
    *,
    folds: int = 2,
    inner_folds: int = 2,
    validation: int = 3,
    groups: Mapping[str, str] | None = None,
    seed: int = 0,
) -> tuple[NestedFold, ...]:
    """Split names for networks, and the test names of each network again for calibrators.

    Calibrators choose on the names that their network was validated on, never on names that it was trained on.

    Args:
        names: What to split.
        folds: Networks.
        inner_folds: Calibrators per network.
        validation: Names that a network and its calibrators are validated on.
        groups: Group of each name; a name without one is a group of its own.
        seed: Random seed of the order.
    """
    found = []
    for network in cross_validation(names, folds, validation=validation, groups=groups, seed=seed):
        inner = cross_validation(network.test, inner_folds, groups=groups, seed=seed)
        calibration = tuple(Fold(fold.fit, network.validation, fold.test) for fold in inner)
        found.append(NestedFold(network, calibration))
    return tuple(found)


def to_json(split: Sequence[NestedFold]) -> list[dict[str, Any]]:
    """Return a nested split as lists and dictionaries."""
    return [asdict(fold) for fold in split]


def from_json(content: Sequence[Mapping[str, Any]]) -> tuple[NestedFold, ...]:
    """Return the nested split that `to_json` wrote, checked for leaks."""
    try:
        split = tuple(NestedFold(_fold(each["network"]), tuple(map(_fold, each["calibration"]))) for each in content)
    except (KeyError, TypeError) as error:
        raise InputError("a nested split must list {network, calibration}, each with fit, validation, test") from error
    check_leaks(split)
    return split


def check_leaks(split: Sequence[NestedFold], groups: Mapping[str, str] | None = None) -> None:
    """Raise if a network or calibrator is tested on a name, or group, that it was fitted or chosen on."""
    for nested in split:
        for fold in (nested.network, *nested.calibration):
            _disjoint("fit, validation and test", groups, fold.fit, fold.validation, fold.test)
        for fold in nested.calibration:
            _disjoint("training of the network and calibration", groups, nested.network.fit, fold.fit + fold.test)


def shuffled_parts(names: Sequence[str], sizes: Sequence[int], *, seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """Return disjoint parts of the given sizes, drawn from the sorted names; the remaining names are in none.

    >>> shuffled_parts(["d", "c", "b", "a"], (2, 1))
    (('c', 'a'), ('b',))
    """
    if min(sizes, default=0) < 0:
        raise InputError(f"parts must have 0 names or more, got {', '.join(map(str, sizes))}")
    if sum(sizes) > len(names):
        raise InputError(f"parts of {', '.join(map(str, sizes))} need {sum(sizes)} names, got {len(names)}")
    ordered, ends = _shuffled(names, seed), np.cumsum([0, *sizes])
    return tuple(tuple(ordered[a:b]) for a, b in pairwise(ends))


def _shuffled(names: Sequence[str], seed: int) -> list[str]:
    if len(set(names)) < len(names):
        raise InputError("names must be unique to be split, got some twice; rename them")
    ordered = sorted(names)
    return [ordered[k] for k in np.random.default_rng(seed).permutation(len(ordered))]


def _balanced(names: Sequence[str], folds: int, groups: Mapping[str, str] | None, seed: int) -> list[list[str]]:
    """Deal whole groups to folds, the largest group first, each to the fold with the fewest names so far."""
    clusters = dict[str, list[str]]()
    for name in _shuffled(names, seed):
        clusters.setdefault(_group(name, groups), []).append(name)
    if not 2 <= folds <= len(clusters):
        raise InputError(f"folds must be 2 to {len(clusters)}, the number of groups (or names), got {folds}")
    parts: list[list[str]] = [[] for _ in range(folds)]
    for cluster in sorted(clusters.values(), key=len, reverse=True):
        min(parts, key=len).extend(cluster)
    return parts


def _whole_groups(names: Sequence[str], count: int, groups: Mapping[str, str] | None) -> set[str]:
    """Return the last names, in whole groups, until there are `count`."""
    held = set[str]()
    for name in reversed(names):
        if len(held) >= count:
            break
        held |= {other for other in names if _group(other, groups) == _group(name, groups)}
    return held


def _group(name: str, groups: Mapping[str, str] | None) -> str:
    """Return the group of a name; one without a group is marked so that it cannot be taken for one."""
    return f"group {groups[name]}" if groups and groups.get(name) else f"name {name}"


def _fold(content: Mapping[str, Sequence[str]]) -> Fold:
    return Fold(*(tuple(content[part]) for part in ("fit", "validation", "test")))


def _disjoint(what: str, groups: Mapping[str, str] | None, *parts: Sequence[str]) -> None:
    seen = set[str]()
    for part in parts:
        own = {_group(name, groups) for name in part}
        if both := seen & own:
            raise InputError(f"{what} must be disjoint, and share the {sorted(both)[0]}")
        seen |= own
