"""Tiles cover a volume once, and tiled prediction equals whole prediction where the margin is the network's reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from experiments.lpba40.tiling import predict_tiled, tiles_of
from segcal.types import InputError


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(0, 4),
)
def test_kept_boxes_cover_every_voxel_once(space: list[int], centre: int, margin: int) -> None:
    seen, patch = np.zeros(space, dtype=int), centre + 2 * margin
    for tile in tiles_of(space, patch=patch, centre=centre):
        seen[tile.kept] += 1
        for length, read, kept, inner in zip(space, tile.read, tile.kept, tile.inner, strict=True):
            assert read.stop - read.start == min(patch, length)
            assert (read.start + inner.start, read.start + inner.stop) == (kept.start, kept.stop)
            # what is kept lies `margin` inside what is read, except at the edge of the volume
            assert read.start == 0 or kept.start - read.start >= margin
            assert read.stop == length or read.stop - kept.stop >= margin
    assert (seen == 1).all()


def test_the_paper_s_tiles_of_an_axis_of_181() -> None:
    found = [(tile.read[0].start, tile.kept[0].start, tile.kept[0].stop) for tile in tiles_of((181,))]
    assert found == [(0, 0, 56), (40, 56, 96), (80, 96, 136), (109, 136, 181)]


def test_tiled_prediction_equals_whole_prediction(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv3d(2, 4, 3, padding=1)).eval()
    image = torch.randn(1, 17, 9, 21)
    out = np.lib.format.open_memmap(tmp_path / "logits.npy", "w+", dtype=np.float32, shape=(4, 17, 9, 21))
    predict_tiled(network, image.numpy(), out, patch=10, centre=6)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(np.array(out)), network(image[None])[0], rtol=1e-4, atol=1e-5)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="got 41 and 72"):
        list(tiles_of((100,), centre=41))
    with pytest.raises(InputError, match=r"shape \(L, 5, 5, 5\)"):
        predict_tiled(nn.Identity(), np.zeros((1, 5, 5, 5), np.float32), np.zeros((1, 5, 5, 4), np.float32))
