"""Files that lie in the place of checkpoints: whole ones of the same run are used, and nothing else is trusted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import segcal
from segcal.training.checkpoints import Checkpoints, TrainingState, _digest
from segcal.types import Case, InputError
from support.scenes import simulated

NOTHING = TrainingState(0, {}, {})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_a_pipe_in_place_of_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """To open it would wait for ever."""
    os.mkfifo(tmp_path / "epoch-000001.safetensors")
    state, (warning,) = Checkpoints(tmp_path, {}).newest(NOTHING)
    assert state is None
    assert "must be a regular file" in warning


def test_a_checkpoint_is_not_written_where_a_link_leads(tmp_path: Path) -> None:
    thesis, run = tmp_path / "thesis", tmp_path / "run"
    thesis.write_text("years of work")
    run.mkdir()
    (run / "segcal.json").write_text('{"checkpoints": "of a training run"}')
    (run / "epoch-000001.safetensors").symlink_to(thesis)
    with pytest.raises(InputError, match="is a link, and a checkpoint is to be written there"):
        Checkpoints(run, {}).save(NOTHING._replace(epoch=1))
    assert thesis.read_text() == "years of work"


def test_files_of_similar_names_are_no_checkpoints(tmp_path: Path) -> None:
    """Neither read, nor counted among those that are kept, nor removed."""
    fit(tmp_path, epochs=1)
    (first,) = tmp_path.glob("epoch-*")
    mine = [tmp_path / f"epoch-{name}.safetensors" for name in ("best", "000009-old", "9")]
    for path in mine:
        path.write_bytes(first.read_bytes())
    seen = list[int]()
    fit(tmp_path, watch=lambda epoch: seen.append(epoch.number), epochs=1)
    assert seen == []
    for epoch in range(2, 7):
        Checkpoints(tmp_path, {}).save(NOTHING._replace(epoch=epoch))
    assert all(path.exists() for path in mine)
    assert sorted(set(tmp_path.glob("epoch-*")) - set(mine)) == [
        tmp_path / f"epoch-00000{epoch}.safetensors" for epoch in (5, 6)
    ]


def fit(folder: Path, cases: list[Case] | None = None, method: str = "lts", **changes: Any) -> segcal.FitReport:
    settings = {"epochs": 3, "learning_rate": 1e-3, "checkpoint": folder, **changes}
    return segcal.create(method, num_classes=3).fit(cases or simulated(2, num_classes=3), **settings).fit_report_


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "ibts"}, "method=lts, and this one has ibts"),
        ({"cases": simulated(3, num_classes=3)[1:]}, "cases="),
        ({"validation": simulated(1, num_classes=3)}, "cases="),
        ({"learning_rate": 1e-2}, "learning_rate=0.001, and this one has 0.01"),
    ],
)
def test_checkpoints_of_another_method_or_of_other_cases_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    fit(tmp_path)
    with pytest.raises(InputError, match=f"is of a run with {words}"):
        fit(tmp_path, **changes)


def without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda values: values.pop(key)


def setting(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values.update({key: value})


FORGED: dict[str, tuple[Callable[[dict[str, Any]], None] | None, Callable[[dict[str, Tensor]], None] | None]] = {
    "no epochs": (without("epochs"), None),
    "text for an epoch": (setting("epochs", ["x"]), None),
    "no run": (without("run"), None),
    "list for the epoch": (setting("epoch", []), None),
    "negative epoch": (setting("epoch", -1), None),
    "huge loss": (setting("best_loss", 10**400), None),
    "text for the best loss": (setting("best_loss", "x"), None),
    "no weight": (None, without("weights/tree.of_logits.weight")),
    "another shape": (None, setting("weights/tree.of_logits.weight", torch.zeros(2, 7))),
    "another type": (None, setting("best/tree.of_logits.weight", torch.zeros(7, 3, 5, 5).int())),
    "one moment missing": (None, without("moments/0/exp_avg")),
    "another shape of a moment": (None, setting("moments/0/step", torch.zeros(2, 7))),
    "a moment of no parameter": (None, setting("moments/99/step", torch.zeros(()))),
    "a moment without a number": (None, setting("moments/x/step", torch.zeros(()))),
    "a step before the first": (None, setting("moments/0/step", torch.tensor(-1.0))),  # Adam divides by 1 - 0.9^0
    "a step that is no number": (None, setting("moments/0/step", torch.tensor(torch.nan))),
    "a strange part": (None, setting("thesis/0", torch.zeros(()))),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_checkpoint_with_a_right_checksum_and_wrong_content_is_passed_over(how: str, tmp_path: Path) -> None:
    fit(tmp_path)
    newest = max(tmp_path.glob("epoch-*"))
    with safe_open(newest, "pt") as content:
        notes = json.loads(content.metadata()["notes"])
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    for forge, values in zip(FORGED[how], (notes, tensors), strict=True):
        if forge is not None:
            forge(values)
    text = json.dumps(notes)
    save_file(tensors, newest, metadata={"notes": text, "sha256": _digest(tensors, text)})
    seen = list[int]()
    report = fit(tmp_path, watch=lambda epoch: seen.append(epoch.number))
    assert seen == [3]
    assert any("is damaged" in warning and "was passed over" in warning for warning in report.warnings)
