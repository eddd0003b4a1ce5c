"""Archives of measurements give back what the tables show."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from experiments.archive import pack, unpack
from segcal import evaluate
from segcal.evaluation.results import Results
from segcal.types import InputError
from support.slow_evaluation import PROTOCOL, make_cases, methods


def test_tables_come_back_to_the_digits_that_they_print(tmp_path: Path) -> None:
    results = evaluate(make_cases(), methods(), **PROTOCOL)
    results.save(tmp_path / "job" / "paper" / "results")
    (tmp_path / "job" / "calibrators").mkdir()
    (tmp_path / "job" / "calibrators" / "segcal.json").write_text("{}")
    pack(tmp_path / "job", tmp_path / "job.zip")
    unpack(tmp_path / "job.zip", tmp_path / "again")
    found = Results.load(tmp_path / "again" / "paper" / "results")
    assert found.methods == results.methods
    for method in results.methods:
        for region in ("all", "boundary", "local-max"):
            chosen = f"method == '{method}' and region == '{region}' and metric == 'ece'"
            ours, theirs = (frame.query(chosen)["value"].to_numpy() for frame in (results.frame, found.frame))
            np.testing.assert_allclose(theirs, ours, atol=0.51e-5)
        ours, theirs = (
            frame.query(f"method == '{method}' and metric == 'ace'")["value"].to_numpy()
            for frame in (results.patch_frame, found.patch_frame)
        )
        np.testing.assert_allclose(theirs, ours, atol=0.51e-4)
    assert not (tmp_path / "again" / "calibrators").exists()


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../escaped.json", "{}")
    with pytest.raises(InputError, match="points outside the folder"):
        unpack(tmp_path / "bad.zip", tmp_path / "out")
    assert not (tmp_path / "escaped.json").exists()
