"""One module decides which engine runs, when logits on a GPU are refused, and that labels have denormal numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import segcal
from segcal import InputError, create
from segcal.calibrators import Calibrator, TemperatureScaling
from segcal.calibrators.shared.tree import TemperatureTree
from segcal.data.sample.scenes import simulate
from segcal.functional.division import scaled_probabilities
from segcal.functional.pixels import likelihood_sums
from segcal.kernels import dispatch
from segcal.kernels.dispatch import (
    DECLINED,
    OPERATIONS,
    accelerated,
    engine_for,
    plain_only,
)
from support.engines import NAMES, PLAIN

ROOT = Path(segcal.__file__).parent


class Labelled(Tensor):
    """A tensor with metadata, like MONAI's: it does not intercept operators."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An operation that says which form ran; its kernel declines negative numbers."""
    monkeypatch.setattr(dispatch, "OPERATIONS", {})

    def kernel(x: Tensor, factor: float = 1.0) -> Any:
        return DECLINED if x.numel() and float(x.reshape(-1)[0]) < 0 else "kernel"

    monkeypatch.setattr(dispatch.Operation, "kernel", lambda self, engine: kernel if engine == "cpu" else None)

    @accelerated
    def function(x: Tensor, factor: float = 1.0) -> str:
        return "plain"

    return function


def test_kernels_run_on_data(example: Any) -> None:
    x = torch.ones(3)
    assert example(x) == example(x, factor=2.0) == example(x=x) == "kernel"
    assert example(torch.nn.Parameter(x, requires_grad=False)) == "kernel"
    assert example(x.as_subclass(Labelled)) == "kernel"
    with torch.no_grad():
        assert example(x.clone().requires_grad_()) == "kernel"


def test_everything_else_is_left_to_pytorch(example: Any) -> None:
    x = torch.ones(3)
    assert example(x.clone().requires_grad_()) == "plain"
    assert example(-x) == "plain", "the kernel declined"
    assert example(x.to("meta")) == "plain"
    with plain_only():
        assert example(x) == "plain"
    assert example(x) == "kernel"
    with FakeTensorMode() as mode:
        assert example(mode.from_tensor(x)) == "plain"


def test_a_tensor_that_is_negated_only_when_it_is_read_is_read_as_it_is() -> None:
    parts = torch.randn(2, 3, 8, 8, 2)
    lazy, plain = torch.view_as_complex(parts).conj().imag, -parts[..., 1]
    assert lazy.is_neg()
    calibrator = create("ts", 3)
    calibrator.inverse_temperature.fill_(0.5)
    calibrator.fitted.fill_(True)
    torch.testing.assert_close(calibrator.predict_proba(lazy), calibrator.predict_proba(plain), rtol=0, atol=0)


def test_tensors_of_two_devices_have_no_engine() -> None:
    here, there = torch.ones(2), torch.ones(2, device="meta")
    assert engine_for(here, there) is None
    assert engine_for((here, there)) is None
    assert engine_for(here, [(here, torch.ones(2, requires_grad=True))]) is None
    assert engine_for([here], 3, "x", None) == "cpu"
    assert engine_for(1, 2.0) is None


def test_a_compiled_or_traced_graph_holds_operations_and_not_their_result() -> None:
    module = torch.nn.Softmax(dim=1)
    module.forward = scaled_probabilities  # type: ignore[method-assign, assignment]
    one, other = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    heat = torch.ones(1, 1, 4)
    exported = torch.export.export(module, (one, heat)).module()
    torch.testing.assert_close(exported(other, heat), scaled_probabilities(other, heat))


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize("engine", ["cpu", "triton"])
def test_a_tree_is_trained_in_plain_pytorch_on_every_device(
    engine: Any, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inputs need no gradient, but its parameters do, which are passed in tuples."""
    ran = []

    def kernel(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        ran.append(engine)
        return logits[:, :1] * 0

    monkeypatch.setattr(dispatch, "OPERATIONS", {})
    monkeypatch.setattr(dispatch, "_ENGINES", {"cpu": engine})
    real = dispatch.Operation.kernel

    def found(operation: dispatch.Operation, asked: Any) -> Any:
        if operation.name != "root_of_scores":
            return real(operation, asked)
        return kernel if available else None

    monkeypatch.setattr(dispatch.Operation, "kernel", found)
    monkeypatch.setattr("segcal.functional.tree.tree_root", PLAIN.tree_root)
    monkeypatch.setattr("segcal.functional.tree_training.weight_gradient", PLAIN.weight_gradient)
    monkeypatch.setattr("segcal.calibrators.shared.tree.root_of_scores", accelerated(PLAIN.root_of_scores))
    tree, logits = TemperatureTree(3, 2, 1), torch.randn(1, 3, 9, 9)
    tree(logits, torch.randn(1, 1, 9, 9)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in tree.parameters())
    assert ran == []
    with torch.no_grad():
        tree(logits, torch.randn(1, 1, 9, 9))
    assert len(ran) == available, "only where no gradient is needed"


def test_every_operation_has_a_kernel_of_the_same_name() -> None:
    without = []
    for name in NAMES:
        module, _, function = name.partition(".")
        texts = [ROOT / "kernels" / engine / f"{module}.py" for engine in ("cpu", "triton")]
        if not any(f"\ndef {function}(" in text.read_text(encoding="utf-8") for text in texts if text.exists()):
            without.append(name)
    assert without == []


def test_shapes_are_checked_whichever_form_runs() -> None:
    pytest.importorskip("beartype")
    wrong: tuple[Any, ...] = (torch.zeros(3, 9), torch.zeros(8, dtype=torch.int64), 1.0)
    for run in (likelihood_sums, OPERATIONS["pixels.likelihood_sums"].plain):
        with pytest.raises(Exception, match="labels"):
            run(*wrong)


DECISIONS = re.compile(r"\.device\.type|\.is_cuda|\.is_cpu|may_compile")


def test_nothing_else_asks_where_a_tensor_is() -> None:
    """Except the case stream and training, which choose where cases are kept and where a model is trained."""
    allowed = {
        ROOT / "kernels" / "dispatch.py",
        ROOT / "cases" / "stream.py",
        ROOT / "calibrators" / "shared" / "local_training.py",
        *(ROOT / "training").glob("*.py"),
    }
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted(ROOT.rglob("*.py"))
        if path not in allowed
        for line in path.read_text(encoding="utf-8").splitlines()
        if DECISIONS.search(line)
    ]
    assert found == []
    assert DECISIONS.search((ROOT / "kernels" / "dispatch.py").read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------------------------------------------------
# blocks that refuse logits at their end: with a stub in place of a GPU, on a CPU, and on a GPU


LOGITS = torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(1))
NAN = LOGITS.clone()
NAN[1, 2, 3, 4] = torch.nan


def fitted(method: str) -> Calibrator:
    calibrator = segcal.create(method, num_classes=3)
    labels = torch.arange(42).reshape(6, 7) % 3
    return calibrator.fit([segcal.Case("a", LOGITS[0].numpy(), labels.numpy())])


def test_on_a_cpu_a_call_raises_at_once() -> None:
    calibrator = fitted("ts")
    with segcal.deferred_checks(), pytest.raises(InputError, match=r"nan at \(1, 2, 3, 4\)"):
        calibrator.predict_proba(NAN)


@pytest.mark.parametrize("noted", [True, False])
def test_the_end_raises_if_a_kernel_has_noted_something(noted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.kernels.dispatch._deferred_finite_checks", lambda: nullcontext([noted]))
    refusal = pytest.raises(InputError, match="in a call of this block") if noted else nullcontext()
    with refusal, segcal.deferred_checks():
        pass


def test_an_error_inside_is_not_hidden_by_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.kernels.dispatch._deferred_finite_checks", lambda: nullcontext([True]))
    with pytest.raises(KeyError), segcal.deferred_checks():
        raise KeyError("x")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["ts", "cts", "lts", "vector"])
def test_on_a_gpu_results_are_the_same_and_the_block_refuses(method: str) -> None:
    calibrator = fitted(method).cuda()
    wanted = calibrator.predict_proba(LOGITS.cuda())
    with segcal.deferred_checks():
        found = [calibrator.predict_proba(LOGITS.cuda()) for _ in range(3)]
    assert all(torch.equal(each, wanted) for each in found)
    with pytest.raises(InputError, match="finite"), segcal.deferred_checks():
        _ = [calibrator.predict_proba(each.cuda()) for each in (NAN, LOGITS)]
    assert torch.equal(calibrator.predict_proba(LOGITS.cuda()), wanted)
    with pytest.raises(InputError, match=r"nan at \(1, 2, 3, 4\)"):
        calibrator.predict_proba(NAN.cuda())


# ---------------------------------------------------------------------------------------------------------------------
# labels with and without `torch.set_flush_denormal(True)`, for logits near the smallest number


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.fixture(autouse=True)
def _numbers_are_not_flushed() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


def scaled_by(temperature: float) -> TemperatureScaling:
    ts = TemperatureScaling(4)
    ts.inverse_temperature.fill_(1 / temperature)
    ts.fitted.fill_(True)
    return ts


def labels_of(scores: Tensor) -> Tensor:
    return scores.max(dim=1).indices


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("temperature", [0.05, 1.7, 100.0])
@pytest.mark.parametrize("scale", [1000.0, 10.0, 1.0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_labels_are_kept_when_denormal_numbers_are_flushed(
    dtype: torch.dtype, scale: float, temperature: float, threads: int, set_threads: Callable[[int], None]
) -> None:
    set_threads(threads)
    ts, generator = scaled_by(temperature), torch.Generator().manual_seed(0)
    logits = (torch.randn(1, 4, 64, 80, generator=generator).double() * scale * torch.finfo(dtype).tiny).to(dtype)
    exact = labels_of(logits)
    for gradients in (False, True):  # kernels, plain PyTorch
        assert torch.set_flush_denormal(True)
        with torch.set_grad_enabled(gradients):
            given = logits.clone().requires_grad_(gradients)
            found = [ts(given).detach(), ts.predict_proba(given).detach()]
        assert 5e-324 * 1.0 == 0, "the setting of the caller is as before"
        flushed = [labels_of(scores) for scores in found]
        torch.set_flush_denormal(False)
        for scores, seen in zip(found, flushed, strict=True):
            assert torch.equal(labels_of(scores), exact)
            if dtype != torch.float16:  # and to a reader that flushes them, too
                normal = (logits.abs() >= torch.finfo(dtype).tiny).all(dim=1)
                assert torch.equal(seen[normal], exact[normal])


@pytest.mark.parametrize("method", ["cts", "bts", "isotonic", "cmsap", "ets"])
def test_other_methods_keep_labels_of_tiny_logits(method: str) -> None:
    calibrator = create(method, 3).fit([simulate(1, size=(24, 24), num_classes=3)[0].case])
    logits = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(1)) * 1e-38
    exact = labels_of(logits)
    torch.set_flush_denormal(True)
    with torch.no_grad():
        found = [calibrator(logits), calibrator.predict_proba(logits)]
    torch.set_flush_denormal(False)
    assert [torch.equal(labels_of(scores), exact) for scores in found] == [True, True]
