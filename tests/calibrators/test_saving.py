"""Saved calibrators that were damaged, changed or made up are refused in one sentence, before memory is taken."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import segcal
from segcal.calibrators import Calibrator, saving
from segcal.files.guards import list_files
from segcal.types import InputError

METHODS = ("ts", "lts", "isotonic", "dirichlet", "cts", "auto")
OTHERS = ("matrix", "cmsap", "bts", "histogram")
MARKER, WEIGHTS = "segcal.json", "weights.safetensors"


REFUSED = "is not a saved calibrator|cannot be read|num_classes must be"


def case() -> segcal.Case:
    random = np.random.default_rng(0)
    logits = random.normal(size=(3, 12, 9)).astype(np.float32) * 2
    return segcal.Case("a", logits, (logits / 2 + random.gumbel(size=logits.shape)).argmax(0))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for method in (*METHODS, *OTHERS):
        settings = {"epochs": 1} if method == "lts" else {}
        segcal.create(method, 3, spatial_dims=2).fit([case()], **settings).save(folder / method)
    return folder


def damaged(kept: Path, method: str, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(kept / method, tmp_path / "copy"))


def configured(kept: Path, method: str, tmp_path: Path, **config: Any) -> Path:
    """A copy whose settings were changed by someone who can make up a checksum."""
    folder = damaged(kept, method, tmp_path)
    content = json.loads((folder / MARKER).read_text())
    content["config"].update(config)
    sign(folder, content)
    return folder


def sign(folder: Path, content: dict[str, Any] | None = None) -> None:
    """Write the right checksum of a changed folder, as anyone who makes one up can."""
    content = json.loads((folder / MARKER).read_text()) if content is None else content
    content["checksum"] = saving._checksum(content, folder / WEIGHTS)
    (folder / MARKER).write_text(json.dumps(content))
    list_files(folder)


@pytest.mark.parametrize("name", [MARKER, WEIGHTS])
def test_no_flipped_bit_goes_unnoticed(kept: Path, tmp_path: Path, name: str) -> None:
    folder = damaged(kept, "dirichlet", tmp_path)
    whole, random = (folder / name).read_bytes(), np.random.default_rng(1)
    for at in random.integers(0, len(whole), 60):
        changed = bytearray(whole)
        changed[at] ^= 1 << int(random.integers(8))
        (folder / name).write_bytes(changed)
        try:
            segcal.load(folder)
        except InputError:
            continue
        assert json.loads(changed) == json.loads(whole), "only white space may change"


def first_nan(values: dict[str, torch.Tensor]) -> None:
    name = next(name for name, value in values.items() if value.is_floating_point())
    values[name].view(-1)[0] = torch.nan


def set_to(name: str, number: float) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(values: dict[str, torch.Tensor]) -> None:
        values[name].fill_(number)

    return change


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        *((method, first_nan, "must be finite, got NaN or infinity in") for method in METHODS),
        ("dirichlet", set_to("bias", torch.inf), "must be finite, got NaN or infinity in 'bias'"),
        ("ts", set_to("fitted", 0), "must be fitted"),
        ("lts", set_to("input_deviation", 0), "'input_deviation' must be above 0"),
        ("lts", set_to("input_scale", 1e300), "'input_scale' must be above 0, at most 3.4"),
        ("cts", set_to("feature_scale", 0), "'feature_scale' must be above 0"),
        ("cmsap", set_to("matrices", -1), "'matrices' must not be negative"),
        ("auto", set_to("choice", 99), "'choice' must be one of the candidates|cannot be read"),
        ("isotonic", lambda values: values.update(left=values["left"][:, 1:].clone()), "do not belong together"),
        ("isotonic", lambda values: values.update(breaks=torch.zeros(3)), "'breaks' must have two axes"),
        ("isotonic", lambda values: values.update(breaks=values["breaks"].flip(1)), "'breaks' must ascend"),
        ("dirichlet", lambda values: values.update(bias=torch.zeros(4)), "cannot be read .*size mismatch"),
        ("dirichlet", lambda values: values.pop("bias"), "cannot be read .*Missing key"),
        ("dirichlet", lambda values: values.update(bias=values["bias"].long()), "'bias' must be torch.float64, got"),
        ("dirichlet", lambda values: values.update(bias=values["bias"].cfloat()), "'bias' must be torch.float64, got"),
    ],
)
def test_values_that_cannot_be_computed_with_are_refused(
    kept: Path, tmp_path: Path, method: str, change: Any, message: str
) -> None:
    folder = damaged(kept, method, tmp_path)
    values = load_file(folder / WEIGHTS)
    change(values)
    save_file(values, folder / WEIGHTS)
    sign(folder)
    with pytest.raises(InputError, match=rf"learned values of .*{message}|must be fitted"):
        segcal.load(folder)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (2.0, -1.0, 0.0), (torch.nan, 1.0, 0.0)])
def test_weights_of_an_ensemble_must_be_shares(weights: tuple[float, ...]) -> None:
    ensemble = segcal.create("ets", 3)
    ensemble.weights.copy_(torch.tensor(weights))
    assert ensemble._problem() == "'weights' must be at least 0 and sum to 1"


@pytest.mark.parametrize("number", [10**6, 10**12, 10**30, 2.5, "3", None, True, -1, [3]])
@pytest.mark.parametrize("method", ["matrix", "cmsap", "lts"])
def test_settings_that_ask_for_absurd_sizes_are_refused(kept: Path, tmp_path: Path, method: str, number: Any) -> None:
    """Before any memory is taken: the weights of a matrix for a million classes would need 8 TB."""
    with pytest.raises(InputError, match=REFUSED):
        segcal.load(configured(kept, method, tmp_path, num_classes=number))


def two_channels() -> segcal.Case:
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 12, 9)).astype(np.float32) * 2
    return segcal.Case("a", logits, (logits + random.logistic(size=logits.shape) > 0).astype(np.int64))


@pytest.mark.parametrize("channels", [3, 7, 10**6, 10**9, 10**30, True, 2.5, "2"])
def test_channels_that_the_file_does_not_have_are_refused_before_they_are_built(
    tmp_path: Path, channels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    segcal.create("ts", 2, activation="sigmoid").fit([two_channels()]).save(tmp_path / "ts")
    folder = configured(tmp_path, "ts", tmp_path, num_classes=channels)
    built: list[int] = []
    original = Calibrator.__init__

    @wraps(original)
    def counted(self: Calibrator, *given: Any, **named: Any) -> None:
        built.append(1)
        original(self, *given, **named)

    monkeypatch.setattr(Calibrator, "__init__", counted)
    with pytest.raises(InputError, match=rf"{REFUSED}|must be those of \d+ channels"):
        segcal.load(folder)
    assert len(built) < 10


@pytest.mark.parametrize("number", [10**5, 10**9, 10**18, -1, 2.5, "3"])
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("lts", "image_channels"),
        ("auto", "image_channels"),
        ("auto", "num_classes"),
        ("bts", "bins"),
        ("histogram", "bins"),
    ],
)
def test_other_sizes_are_refused_before_memory_is_taken(
    kept: Path, tmp_path: Path, method: str, name: str, number: Any
) -> None:
    with pytest.raises(InputError, match=rf"is not a saved calibrator|cannot be read|{name} must be"):
        segcal.load(configured(kept, method, tmp_path, **{name: number}))


def test_a_header_is_checked_before_its_values_are_read(kept: Path, tmp_path: Path) -> None:
    """Against a file with holes, which takes no disk but all of the memory."""
    folder = damaged(kept, "dirichlet", tmp_path)
    size = 1 << 33
    header = json.dumps({"bias": {"dtype": "F64", "shape": [size // 8], "data_offsets": [0, size]}}).encode()
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    with pytest.raises(InputError, match="cannot be read"):
        segcal.load(folder)
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(1 << 35)
    with pytest.raises(InputError, match="must have at most 16 GiB"):
        segcal.load(folder)


def test_the_candidates_of_auto_take_no_memory() -> None:
    """The pairs of 60,000 classes would need 29 GB."""
    assert segcal.create("auto", 60_000).num_classes == 60_000


@pytest.mark.parametrize(
    "change",
    [
        {"nll_before": "low"},
        {"warnings": "one"},
        {"warnings": [3]},
        {"names": None},
        {"converged": 1},
        {"pixels": True},
        {"details": []},
        {"further": 1},
    ],
    ids=str,
)
def test_a_report_of_other_types_is_refused(kept: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = damaged(kept, "ts", tmp_path)
    content = json.loads((folder / MARKER).read_text())
    content["report"].update(change)
    sign(folder, content)
    with pytest.raises(InputError, match="is not a saved calibrator"):
        segcal.load(folder)


def test_text_that_is_too_deep_or_too_long_is_refused(kept: Path, tmp_path: Path, monkeypatch: Any) -> None:
    folder = damaged(kept, "ts", tmp_path)
    (folder / MARKER).write_text("[" * 100_000)
    with pytest.raises(InputError, match="is not readable JSON"):
        segcal.load(folder)
    monkeypatch.setattr("segcal.files.reading._LARGEST", 1000)
    with pytest.raises(InputError, match=re.escape("segcal.json' must have at most 0 MiB")):
        segcal.load(folder)


@pytest.mark.parametrize("key", ["format", "method", "config", "report", "checksum"])
def test_a_marker_without_an_entry_is_refused(kept: Path, tmp_path: Path, key: str) -> None:
    folder = damaged(kept, "ts", tmp_path)
    content = json.loads((folder / MARKER).read_text())
    del content[key]
    if key == "checksum":
        (folder / MARKER).write_text(json.dumps(content))
    else:
        sign(folder, content)
    with pytest.raises(InputError, match="is not a saved calibrator"):
        segcal.load(folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 1, "results": {}}', '{"format": 1, "method": "ts"}'])
def test_other_folders_are_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match=r"segcal\.json' is missing"):
        segcal.load(tmp_path)
    (tmp_path / MARKER).write_text(content)
    with pytest.raises(InputError, match="is not a saved calibrator"):
        segcal.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2, "segcal": "9.9"}, "was saved by segcal 9.9, newer than this one; update segcal"),
        ({"format": "new"}, "is not a saved calibrator"),
        ({"method": "telepathy"}, "method must be one of"),
        ({"config": {"num_classes": 3, "warmth": 2}}, "has no setting 'warmth'"),
        ({"config": None}, "is not a saved calibrator"),
        ({"config": {}}, "is not a saved calibrator"),
        ({"report": {"cases": 3}}, "is not a saved calibrator"),
    ],
    ids=str,
)
def test_changed_entries_are_refused(kept: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = damaged(kept, "ts", tmp_path)
    sign(folder, {**json.loads((folder / MARKER).read_text()), **changes})
    with pytest.raises(InputError, match=message):
        segcal.load(folder)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-3])])
def test_cut_and_missing_values_are_refused(kept: Path, tmp_path: Path, damage: Any) -> None:
    folder = damaged(kept, "ts", tmp_path)
    damage(folder / WEIGHTS)
    with pytest.raises(InputError, match=r"the learned values of .* cannot be read"):
        segcal.load(folder)


@pytest.mark.parametrize("method", ["ts", "beta", "matrix"])
def test_absurdly_many_classes_are_refused_before_memory_is_taken(method: str) -> None:
    with pytest.raises(InputError, match="num_classes must be at most 65536"):
        segcal.create(method, 2**63)
