"""Every method under the contract, and what building and loading by name refuse."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_overloads, get_type_hints

import pytest
import torch

import segcal
from segcal.calibrators import Calibrator
from segcal.types import InputError
from support.contracts import CHECKS, CUDA_CHECKS, Check, Subject, check_calibrator, fitted_or_refused, subject

# arguments of fit that make a method of many steps quick enough to be checked
FIT_SETTINGS: dict[str, dict[str, Any]] = {method: {"epochs": 2} for method in ("lts", "ibts", "auto")}

SUBJECTS = [(method, dims) for method in segcal.methods() for dims in (2, 3)]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda chosen: f"{chosen[0]}-{chosen[1]}d")
def under_test(request: pytest.FixtureRequest) -> Subject:
    method, dims = request.param
    return subject(method, dims, **FIT_SETTINGS.get(method, {}))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_contract(under_test: Subject, check: Check, tmp_path: Path) -> None:
    check(under_test, tmp_path)


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("check", CUDA_CHECKS.values(), ids=CUDA_CHECKS.keys())
def test_contract_on_the_gpu(under_test: Subject, check: Check, tmp_path: Path) -> None:
    check(under_test, tmp_path)


def test_all_checks_run_at_once(tmp_path: Path) -> None:
    ours = subject("ts", 2)
    check_calibrator(ours.make, ours.cases, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(CHECKS)


def test_methods_are_named() -> None:
    assert "ts" in segcal.methods()
    for method in segcal.methods():
        assert segcal.create(method, num_classes=3, spatial_dims=2, image_channels=1).method == method


def test_the_declared_types_are_those_that_are_built() -> None:
    """Type checkers know by the name of a method what `fit` takes and whether there is a temperature."""
    signatures = get_overloads(SimpleNamespace(__module__="segcal.calibrators", __qualname__="create"))
    assert len(signatures) == 4
    for signature in signatures:
        hints = get_type_hints(signature)
        for method in get_args(hints["method"]) or segcal.methods():
            assert isinstance(segcal.create(method, num_classes=3, spatial_dims=2), hints["return"])


@pytest.mark.parametrize("method", segcal.methods())
def test_a_single_class_is_certain_or_refused(method: str) -> None:
    """With num_classes=1 there is one right answer."""
    logits, labels = torch.randn(1, 6, 7, generator=torch.Generator().manual_seed(0)), torch.zeros(6, 7).long()
    unfitted, case = segcal.create(method, num_classes=1), segcal.Case("a", logits, labels)
    calibrator = fitted_or_refused(lambda: unfitted.fit([case], **FIT_SETTINGS.get(method, {})))
    if calibrator is not None:
        assert torch.equal(calibrator.predict_proba(logits[None]), torch.ones(1, 1, 6, 7))
        assert calibrator.fit_report_.nll_after == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "telepathy", "num_classes": 3}, "method must be one of ts"),
        ({"method": "ts", "num_classes": 3, "warmth": 2}, "'ts' has no setting 'warmth'; it has background, bounds"),
        ({"method": "ts", "num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"method": "ts", "num_classes": 3, "bounds": (2.0, 1.0)}, "bounds must be positive, finite and in order"),
        ({"method": "ts", "num_classes": 3, "bounds": (0.0, 1.0)}, "bounds must be positive, finite and in order"),
    ],
)
def test_create_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        segcal.create(**arguments)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    subject("ts", 2).fitted.save(tmp_path / "saved")
    return tmp_path / "saved"


def test_load_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"segcal\.json' is missing"):
        segcal.load(tmp_path / "nothing")


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 1, "results": {}}', '{"format": 1, "method": "ts"}'])
def test_load_refuses_what_is_no_calibrator(tmp_path: Path, content: str) -> None:
    (tmp_path / "segcal.json").write_text(content)
    with pytest.raises(InputError, match="is not a saved calibrator"):
        segcal.load(tmp_path)


def test_load_refuses_broken_json(saved: Path) -> None:
    (saved / "segcal.json").write_text('{"format": 1,')
    with pytest.raises(InputError, match="is not readable JSON"):
        segcal.load(saved)


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
def test_load_refuses_changed_settings(saved: Path, changes: dict[str, Any], message: str) -> None:
    marker = saved / "segcal.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), **changes}))
    with pytest.raises(InputError, match=message):
        segcal.load(saved)


def _cut(weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:-3])


def _of_another_method(weights: Path) -> None:
    from safetensors.torch import save_file

    save_file({"elsewhere": torch.zeros(3)}, weights)


@pytest.mark.parametrize("damage", [_cut, _of_another_method, Path.unlink, lambda path: path.write_bytes(b"")])
def test_load_refuses_damaged_values(saved: Path, damage: Any) -> None:
    damage(saved / "weights.safetensors")
    with pytest.raises(InputError, match=r"the learned values of .* cannot be read"):
        segcal.load(saved)


def test_a_calibrator_of_whole_images_must_say_how_it_goes_by_slabs() -> None:
    class WholeImage(Calibrator):
        context = None
        preserves_labels = False

        def fit(self, cases: Any, *, validation: Any = None) -> Any: ...

        def calibrate(self, logits: Any, image: Any = None) -> Any: ...

    with pytest.raises(NotImplementedError, match="WholeImage"):
        next(iter(WholeImage(3).calibrate_case(subject("ts", 2).cases[0])))
