"""Every method under the contract, one-logit heads, and what building by name refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import segcal
from segcal.calibrators import check_method
from segcal.types import InputError
from support.contracts import CHECKS, CUDA_CHECKS, Check, Subject, subject
from support.program import printed_by

# arguments of fit that make a method of many steps quick enough to be checked
FIT_SETTINGS: dict[str, dict[str, Any]] = {method: {"epochs": 2} for method in ("lts", "ibts", "auto")}

SPATIAL = [method for method in segcal.methods() if "spatial_dims" in check_method(method).settings()]
SUBJECTS = [*((method, 2) for method in segcal.methods()), *((method, 3) for method in SPATIAL)]
pytestmark = pytest.mark.usefixtures("few_strengths")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda chosen: f"{chosen[0]}-{chosen[1]}d")
def under_test(request: pytest.FixtureRequest) -> Subject:
    method, dims = request.param
    return subject(method, dims, **FIT_SETTINGS.get(method, {}))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_contract(under_test: Subject, check: Check, tmp_path: Path) -> None:
    check(under_test, tmp_path)


@pytest.mark.parametrize("method", sorted({*segcal.methods()} - {*SPATIAL}))
def test_methods_of_single_pixels_take_volumes(method: str, tmp_path: Path) -> None:
    volumes = subject(method, 3)
    for check in (
        "shape_and_dtype_are_kept",
        "labels_are_kept",
        "slabs_give_what_the_whole_gives",
        "fit_returns_the_calibrator_and_a_report_that_is_true",
        "fitting_by_slabs_gives_what_fitting_on_the_whole_gives",
        "background_is_left_out_but_near_boundaries",
    ):
        CHECKS[check](volumes, tmp_path)


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("check", CUDA_CHECKS.values(), ids=CUDA_CHECKS.keys())
def test_contract_on_the_gpu(under_test: Subject, check: Check, tmp_path: Path) -> None:
    check(under_test, tmp_path)


def test_the_declared_types_are_those_that_are_built() -> None:
    """Type checkers know by the name of a method what `fit` takes and whether there is a temperature."""
    code = """
from types import SimpleNamespace
from typing import get_args, get_overloads, get_type_hints
import segcal.calibrators
signatures = get_overloads(SimpleNamespace(__module__="segcal.calibrators", __qualname__="create"))
assert len(signatures) == 4, len(signatures)
for signature in signatures:
    hints = get_type_hints(signature)
    for method in get_args(hints["method"]) or segcal.methods():
        assert isinstance(segcal.create(method, num_classes=3, spatial_dims=2), hints["return"]), method
"""
    printed_by("-c", code)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("telepathy", {}, "method must be one of ts"),
        ("ts", {"warmth": 2}, "'ts' has no setting 'warmth'; it has background, bounds"),
        ("ts", {"num_classes": 2.5}, "num_classes must be a whole number, got '2.5'"),
        ("ts", {"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ("ts", {"bounds": (2.0, 1.0)}, "bounds must be positive, finite and in order"),
        ("ts", {"bounds": (0.0, 1.0)}, "bounds must be positive, finite and in order"),
        ("ts", {"bounds": (1e-40, 1.0)}, r"bounds must lie in 1e-30..1e\+30"),
        ("cts", {"bounds": (1.0, 1e39)}, r"bounds must lie in 1e-30..1e\+30"),
        ("cts", {"spatial_dims": 4}, "spatial_dims must be one of 2, 3, got 4"),
        ("cts", {"loss": "ece"}, r"loss must be one of nll, nll\+brier, got 'ece'"),
        ("ets", {"loss": "ece"}, "loss must be one of cross_entropy, squared_error, got 'ece'"),
        ("bts", {"bins": 1}, "bins must be at least 2, got 1"),
        ("ats", {"threshold": 0.0}, "threshold must be above 0 and at most 1, got 0.0"),
        ("ats", {"threshold": float("nan")}, "threshold must be above 0 and at most 1"),
        ("histogram", {"bins": 0}, "bins must be at least 1, got 0"),
        ("histogram", {"equal": "size"}, "equal must be one of width, mass, got 'size'"),
        ("isotonic", {"scope": "each"}, "scope must be one of pooled, one-vs-rest, got"),
        ("matrix", {"off_diagonal_penalty": -1}, "penalty must be finite and at least 0"),
        ("matrix", {"bias_penalty": float("nan")}, "penalty must be finite and at least 0"),
        ("cmsap", {"bias_penalty": -1.0}, "bias_penalty must be finite and at least 0"),
        ("svs", {"penalty": float("inf")}, "penalty must be finite and at least 0, got inf"),
        ("lts", {"positivity": "abs"}, "positivity must be one of relu, softplus, exp, got"),
        ("lts", {"spatial_dims": 4}, "spatial_dims must be one of 2, 3, got 4"),
        ("lts", {"init": "ones"}, "init must be one of normal, zeros, got 'ones'"),
        ("lts", {"preset": "quick"}, "preset must be one of default, paper, got 'quick'"),
        ("lts", {"condition": "size"}, "condition must be one of None, class, confidence"),
        ("ibts", {"condition": "class"}, "one temperature for the whole image"),
    ],
)
def test_create_refuses(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        segcal.create(method, **{"num_classes": 3, **settings})
