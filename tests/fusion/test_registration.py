from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from experiments.multi_atlas.simulated import LABELS, simulated_volumes
from segcal.fusion import Pair, RegistrationSettings, Volume, read_warp, register, register_pairs
from segcal.fusion.registration import (
    RegistrationQuality,
    Warp,
    decoded,
    encoded,
    normalised,
    warp_path,
    write_warp,
)
from segcal.types import InputError
from support.atlas_volumes import read_volume_file

pytest.importorskip("SimpleITK")

SHAPE = (20, 24, 22)
QUICK = RegistrationSettings(affine_iterations=10, iterations=(15, 10))


def volume(name: str) -> Volume:
    return simulated_volumes(int(name) + 1, SHAPE, deformation=1.5)[int(name)]


def blank(name: str) -> Volume:
    """Volumes of which number 1 shows nothing but noise."""
    found = volume(name)
    return found if name != "1" else found._replace(image=np.random.default_rng(0).uniform(size=SHAPE))


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(
        np.mean([2 * ((one == k) & (other == k)).sum() / ((one == k).sum() + (other == k).sum()) for k in LABELS])
    )


def test_registration_brings_labels_together() -> None:
    target, atlas = volume("0"), volume("2")
    warp = register(target, atlas)
    assert warp.image.shape == warp.labels.shape == target.image.shape
    assert dice(warp.labels, target.labels) > dice(atlas.labels, target.labels) + 0.05
    assert warp.quality.deformable > warp.quality.affine >= warp.quality.centred
    assert warp.quality.problem is None


def test_a_shift_is_undone_in_mm() -> None:
    """An atlas of another shape, shifted by 2 voxels along the first axis, whose voxels are 2 mm long."""
    base = volume("0")
    spacing = (2.0, 1.0, 1.0)
    target = Volume(base.image[2:], base.labels[2:], spacing)
    atlas = Volume(base.image[:-2], base.labels[:-2], spacing)
    assert dice(register(target, atlas).labels, target.labels) > 0.97 > dice(atlas.labels, target.labels)


def test_pairs_are_resumed_and_remade_when_the_data_change(tmp_path: Path) -> None:
    pairs = [Pair("0", "1"), Pair("2", "1")]
    seen: list[tuple[int, int]] = []
    first = register_pairs(pairs, volume, tmp_path, QUICK, watch=lambda _, done, count: seen.append((done, count)))
    assert seen == [(1, 2), (2, 2)]
    assert all(outcome.made for outcome in first)
    again = register_pairs(pairs, volume, tmp_path, QUICK)
    assert not any(outcome.made for outcome in again)
    assert [outcome.quality for outcome in again] == [outcome.quality for outcome in first]
    other = register_pairs(pairs, volume, tmp_path, RegistrationSettings(affine_iterations=11, iterations=(15, 10)))
    assert all(outcome.made for outcome in other)
    path = warp_path(tmp_path, pairs[0])
    path.write_bytes(path.read_bytes()[:-120])  # the signature, and the end of the archive before it
    with pytest.raises(InputError, match=r"must be a readable \.npz file, got a damaged"):
        read_warp(tmp_path, pairs[0])
    with pytest.raises(InputError, match="register '9' to '1' first"):
        read_warp(tmp_path, Pair("9", "1"))


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    path = warp_path(tmp_path, Pair("0", "1"))
    path.parent.mkdir()
    np.savez(path, image=np.arange(3))
    mine = path.read_bytes()
    one, other = register_pairs([Pair("0", "1"), Pair("2", "1")], volume, tmp_path, QUICK)
    assert "segcal did not write it" in str(one.problem)
    assert other.made
    with pytest.raises(InputError, match="segcal did not write it"):
        write_warp(path, read_warp(tmp_path, Pair("2", "1")), "x")
    assert path.read_bytes() == mine


def test_failures_are_reported(tmp_path: Path) -> None:
    (outcome,) = register_pairs([Pair("1", "0")], blank, tmp_path, QUICK)
    assert str(outcome.problem).startswith("similarity")
    assert RegistrationQuality(0.5, 0.6, 0.9, 0.2).problem == "20.0 % of the voxels fold"
    assert RegistrationQuality(0.5, 0.6, float("nan"), 0.0).problem is not None
    with pytest.raises(InputError, match="one entry per resolution"):
        RegistrationSettings(shrink=(2, 1), iterations=(5,))
    with pytest.raises(InputError, match="more than one intensity"):
        normalised(np.ones((4, 4)))


def test_grey_levels_survive_the_way_through_a_file(tmp_path: Path) -> None:
    image = np.random.default_rng(0).uniform(size=(3, 4, 5))
    assert np.abs(decoded(encoded(image)) - image).max() <= 0.5 / 255 + 1e-6
    labels = np.full((3, 4, 5), 300)
    write_warp(warp_path(tmp_path, Pair("a", "b")), Warp(image, labels, RegistrationQuality(0, 0, 1, 0)), "x")
    assert (read_warp(tmp_path, Pair("a", "b")).labels == 300).all()


def test_several_processes_give_the_same(tmp_path: Path) -> None:
    pairs = [Pair("0", "1"), Pair("1", "0")]
    prepared = tmp_path / "volumes"
    prepared.mkdir()
    for name in ("0", "1"):
        np.savez(prepared / f"{name}.npz", **volume(name)._asdict())
    read = partial(read_volume_file, folder=prepared)
    one = register_pairs(pairs, read, tmp_path / "one", QUICK)
    two = register_pairs(pairs, read, tmp_path / "two", QUICK, processes=2)
    assert [outcome.quality for outcome in one] == [outcome.quality for outcome in two]
