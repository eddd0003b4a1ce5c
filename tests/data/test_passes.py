"""Further passes in folders: beside the data, in folders of predictions, as archives of nnU-Net."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from segcal.apply import apply_to_folder
from segcal.calibrators import create
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.types import InputError
from support.scenes import several_passes


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_folder(tmp_path / "data", {"fit": several_passes(4)})
    return tmp_path / "data"


def test_passes_beside_the_data_are_read_when_they_are_asked_for(data: Path) -> None:
    folder = open_folder(data)
    assert sorted(path.name for path in (data / "passes").iterdir()) == ["000", "001"]
    for case, given in zip(folder, several_passes(4), strict=True):
        assert repr(case.passes) == "2 items"
        np.testing.assert_array_equal(np.stack(case.each_pass), given.passes)
    (data / "passes" / "001" / "case 1.npy").write_bytes(b"damaged")
    create("ts", 3).fit(folder)  # does not look at them
    with pytest.raises(InputError, match=r"001/case 1\.npy' must hold a plain array"):
        create("pool", 3).fit(folder)


def test_folders_of_predictions_are_passes_in_the_order_given(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (data / "passes" / "000").rename(other)
    folder = open_folder(data, passes=[data / "passes" / "001", other])
    np.testing.assert_array_equal(np.stack(folder[0].each_pass), np.asarray(several_passes(1)[0].passes)[::-1])
    write_folder(tmp_path / "whole", {"all": [replace(case, passes=None) for case in several_passes(4)]})
    found = open_folder(data, passes=[tmp_path / "whole"])[2].each_pass
    np.testing.assert_array_equal(found[0], several_passes(4)[2].logits)


def test_a_missing_pass_is_named(data: Path, tmp_path: Path) -> None:
    (data / "passes" / "001" / "case 2.npy").unlink()
    with pytest.raises(InputError, match=r"case 'case 2' must have one score file, got none at .*001"):
        open_folder(data)
    with pytest.raises(InputError, match=r"the passes folder .* does not exist"):
        open_folder(data, passes=[tmp_path / "nowhere"])


def test_passes_of_probabilities_become_logits(data: Path) -> None:
    def as_probabilities(path: Path) -> None:
        scores = np.load(path)
        np.save(path, np.exp(scores) / np.exp(scores).sum(0))

    for path in [*data.glob("logits/*.npy"), *data.glob("passes/*/*.npy")]:
        as_probabilities(path)
    case, given = open_folder(data, scores="probabilities")[0], several_passes(4)[0]
    for found, expected in zip(case.each_pass, np.asarray(given.passes), strict=True):
        apart = np.asarray(found)[1] - np.asarray(found)[0]
        np.testing.assert_allclose(apart, expected[1] - expected[0], atol=1e-4)


def test_the_identity_of_a_case_changes_with_its_passes(data: Path) -> None:
    before = open_folder(data).identities()
    path = data / "passes" / "000" / "case 0.npy"
    np.save(path, np.load(path).astype(np.float64))
    after = open_folder(data).identities()
    assert [name for name in before if before[name] != after[name]] == ["case 0"]


def test_a_pool_is_fitted_and_applied_on_a_folder(data: Path, tmp_path: Path) -> None:
    folder = open_folder(data)
    pool = create("pool", 3).fit(folder)
    assert pool.uses_passes
    written = apply_to_folder(pool, folder, out=tmp_path / "out", maps=["disagreement"])
    assert written is not None
    assert written["changed"] == 0
    for case in folder:
        probs = np.load(tmp_path / "out" / f"{case.name}.npy")
        np.testing.assert_array_equal(probs.argmax(0), np.asarray(case.logits).argmax(0))
        members = torch.softmax(torch.as_tensor(np.stack([case.logits, *case.each_pass])), dim=1).numpy()
        mean = members.mean(0)
        expected = -(mean * np.log(mean)).sum(0) + (members * np.log(members)).sum(1).mean(0)
        np.testing.assert_allclose(np.load(tmp_path / "out/disagreement" / f"{case.name}.npy"), expected, atol=1e-5)
