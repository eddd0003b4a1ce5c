"""Kernels for CUDA against their plain form: on a GPU, or without one in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from segcal.functional.probability import possible_logits
from segcal.kernels.dispatch import DECLINED, OPERATIONS, plain_only
from support.engines import NAMES
from support.kernel_inputs import EMPTY, INPUTS, NEED_PIXELS, SCENES, Scene, agree, calls_of, same

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and not torch.cuda.is_available()
pytest.importorskip("triton", reason="needs Triton")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, in the interpreter: lanes beyond an image are NaN
    pytest.mark.skipif(
        not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device or TRITON_INTERPRET=1"
    ),
]
nonfinite = pytest.importorskip("segcal.kernels.triton.nonfinite", reason="needs Triton")
found_nonfinite = nonfinite.found_nonfinite
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WITH_KERNEL = [name for name in NAMES if OPERATIONS[name].kernel("triton") is not None]
MORE = [
    Scene((9, 31), classes=21),
    Scene((9, 31), torch.bfloat16, classes=57),
    Scene((4, 5, 7), torch.float16, classes=70),
    Scene((7, 11), classes=150, strided=True),
    Scene((1, 1), classes=3),
]
QUICK = [Scene((7, 9)), Scene((7, 9), torch.bfloat16, classes=2), Scene((3, 4, 5), classes=3, strided=True), EMPTY]
"""In the interpreter, where every instruction takes a microsecond or more."""
PRECISION = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Of results that are rounded to the precision of the logits, after computations in another order."""


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default PyTorch rounds the inputs of convolutions on a GPU to TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def moved(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.to(DEVICE)  # keeps the strides
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(moved(value) for value in values))
    if isinstance(values, tuple | list):
        return type(values)(moved(value) for value in values)
    return {key: moved(value) for key, value in values.items()} if isinstance(values, dict) else values


@pytest.mark.parametrize("scene", QUICK if INTERPRETED else [*SCENES, *MORE], ids=str)
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_kernel_and_plain_form_agree(name: str, scene: Scene) -> None:
    if scene is EMPTY and name in NEED_PIXELS:
        pytest.skip("images without pixels are refused before")
    half = PRECISION.get(scene.dtype, 0.0) if name.startswith("division") else 0.0
    agree(name, scene, "triton", moved=moved, least=half)


@pytest.mark.parametrize("name", WITH_KERNEL)
def test_no_kernel_declines_everything(name: str) -> None:
    args, kwargs = moved(calls_of(name, SCENES[0])[0])
    assert OPERATIONS[name].kernel("triton")(*args, **kwargs) is not DECLINED  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("classes", [2, 5, 70])
@pytest.mark.parametrize("name", ["scaled_probabilities", "scaled_logits"])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 100.0])
def test_every_label_is_kept(name: str, temperature: float, classes: int, dtype: torch.dtype) -> None:
    """Logits that are next to each other, equal, tiny and huge."""
    generator = torch.Generator().manual_seed(classes)
    base = torch.randint(-1, 2, (1, 1, 300), generator=generator).to(dtype)
    near = torch.randint(0, 3, (1, classes, 300), generator=generator).to(dtype) * torch.finfo(dtype).eps
    logits = base + near * base.abs().clamp(min=1)
    logits[:, :, ::5] = (torch.randn(1, classes, 60, generator=generator) * 1e4).to(dtype)
    logits[:, :, 1::5] *= torch.finfo(dtype).max / 8
    heat = torch.full((1, 1, 300), temperature, dtype=dtype)
    kernel = OPERATIONS[f"division.{name}"].kernel("triton")
    assert kernel is not None
    scored = kernel(logits.to(DEVICE), heat.to(DEVICE)).cpu()
    assert scored.isfinite().all()
    assert torch.equal(scored.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("classes", [3, 70])
@pytest.mark.parametrize("name", ["scaled_probabilities", "scaled_logits"])
def test_nan_and_plus_infinity_are_declined(name: str, classes: int, value: float) -> None:
    kernel = OPERATIONS[f"division.{name}"].kernel("triton")
    assert kernel is not None
    logits, heat = torch.zeros(2, classes, 301, device=DEVICE), torch.ones(2, 1, 301, device=DEVICE)
    assert kernel(logits, heat) is not DECLINED
    for place in ((0, 0, 0), (1, classes - 1, 300), (1, 1, 217)):
        spoilt = logits.clone()
        spoilt[place] = value
        assert kernel(spoilt, heat) is DECLINED
    hopeless = logits.clone()
    hopeless[1, :, 300] = -torch.inf
    assert kernel(hopeless, heat) is DECLINED, "a pixel at which no class is possible"
    assert kernel(logits, heat) is not DECLINED, "the flag is lowered again"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_each_stream_is_waited_for() -> None:
    """Logits become NaN late in a stream that is not the default, and the call there finds it."""
    kernel = OPERATIONS["division.scaled_probabilities"].kernel("triton")
    assert kernel is not None
    heat, busy = torch.ones(1, 1, 4096, device=DEVICE), torch.ones(4096, 4096, device=DEVICE)
    logits = [torch.zeros(1, 3, 4096, device=DEVICE) for _ in range(3)]
    torch.cuda.synchronize()
    for own in logits:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                busy @ busy
            own[0, 1, 7] = torch.nan
            assert kernel(own, heat) is DECLINED
        assert kernel(torch.zeros_like(own), heat) is not DECLINED


READ_LOGITS = (
    "division.scaled_probabilities",
    "division.scaled_logits",
    "context.context_temperature",
    "tree.root_of_scores",
    "tree.tree_root",
)


@pytest.mark.parametrize("scene", [Scene((3, 9)), Scene((3, 5), torch.float16), Scene((3, 4), classes=70)], ids=str)
@pytest.mark.parametrize("name", READ_LOGITS)
def test_minus_infinity_is_an_impossible_class(name: str, scene: Scene) -> None:
    """The kernels replace it as the plain form is given it: by what stands for a probability of 0."""
    operation, kernel = OPERATIONS[name], OPERATIONS[name].kernel("triton")
    assert kernel is not None
    (logits, *args), kwargs = moved(calls_of(name, scene)[0])
    logits = logits.clone()
    logits[:, 1, ..., ::2] = -torch.inf
    logits[:, :-1, ..., 1] = -torch.inf
    half = PRECISION.get(scene.dtype, 0.0)
    tolerance = {key: max(value, half) for key, value in INPUTS[name][1].items()}
    possible = possible_logits(logits, logits.amax(dim=1, keepdim=True))
    with plain_only():
        expected = operation.plain(possible, *args, **kwargs)
    same(kernel(logits, *args, **kwargs), expected, tolerance)
    assert not found_nonfinite(logits)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("classes", [3, 70])
@pytest.mark.parametrize("name", ["context.context_temperature", "tree.root_of_scores", "tree.tree_root"])
def test_temperatures_flag_logits_that_are_not_finite(name: str, classes: int, value: float) -> None:
    kernel = OPERATIONS[name].kernel("triton")
    assert kernel is not None
    (logits, *args), kwargs = moved(calls_of(name, Scene((2, 9), classes=classes))[0])
    logits[1, -1, 1, 8] = value
    kernel(logits, *args, **kwargs)
    assert [found_nonfinite(logits), found_nonfinite(logits)] == [True, False]


def test_a_block_asks_once_at_its_end_about_the_calls_inside() -> None:
    kernel = OPERATIONS["division.scaled_probabilities"].kernel("triton")
    assert kernel is not None
    good, heat = torch.zeros(1, 3, 2, 5, device=DEVICE), torch.ones(1, 1, 2, 5, device=DEVICE)
    bad = good.clone()
    bad[0, 2, 1, 4] = torch.nan
    assert kernel(bad, heat) is DECLINED
    with nonfinite.deferred_finite_checks() as found:
        assert kernel(bad, heat)[0, :, 1, 4].isnan().all()
        with nonfinite.deferred_finite_checks() as inner:
            kernel(good, heat)
    assert (found, inner) == ([True], [])
    with nonfinite.deferred_finite_checks() as found:
        kernel(good, heat)
    assert found == [False]
    assert kernel(good, heat) is not DECLINED


def test_equal_logits_have_a_confidence_of_exactly_one_over_their_number() -> None:
    kernel = OPERATIONS["pixels.pixel_statistics"].kernel("triton")
    assert kernel is not None
    for classes in (1, 3, 10, 49, 100):
        logits = torch.full((classes, 5), 7.25, device=DEVICE)
        confidence, predicted, *_ = kernel(logits, torch.zeros(5, dtype=torch.int64, device=DEVICE))
        assert confidence.tolist() == [1 / classes] * 5
        assert predicted.tolist() == [0] * 5
