"""The one place that decides which engine runs an operation: Triton on CUDA, numba on the CPU, plain PyTorch elsewhere.

`segcal.functional` states each operation in plain PyTorch, for every device, for gradients and for exported graphs.
Where a faster form pays (end to end, by `python -m benchmarks kernels`), the plain function is decorated with
`accelerated`, and its kernel has the same name and parameters: that of `functional/pixels.py` is in
`kernels/cpu/pixels.py` for the CPU and in `kernels/triton/pixels.py` for CUDA. Kernels are imported when they are first
needed, so that importing segcal does not start a compiler.

A kernel that cannot handle its input (a precision, an empty tensor) returns `DECLINED`; the plain form then runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from threading import RLock
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from segcal.types import InputError, public

P = ParamSpec("P")
R = TypeVar("R")
Engine = Literal["cpu", "triton"]

DECLINED = cast(Tensor, NotImplemented)
"""Returned by a kernel that leaves its input to the plain form."""

device_turn = RLock()
"""Lock held by a training step, recorded or not, and by a thread that waits for the whole GPU: CUDA ends the recording
of a graph with an error when anybody in the process waits for the device, and only one graph is recorded at a time."""

_plain_only: ContextVar[bool] = ContextVar("plain_only", default=False)
_LEAST = 5e-324


@dataclass(frozen=True)
class Operation:
    """An operation that has a plain form and may have kernels."""

    module: str
    name: str
    plain: Callable[..., Any]

    def kernel(self, engine: Engine) -> Callable[..., Any] | None:
        """Return the operation's kernel for an engine, if there is one."""
        module = _module(engine, self.module)
        return None if module is None else getattr(module, self.name, None)


OPERATIONS: dict[str, Operation] = {}
"""Every accelerated operation whose module has been imported, by `module.name`."""


def accelerated(plain: Callable[P, R]) -> Callable[P, R]:
    """Let kernels of the same module and name stand in for a function in plain PyTorch.

    The plain form stays available as `OPERATIONS["module.name"].plain`, and through `plain_only`.
    """
    operation = Operation(plain.__module__.rpartition(".")[2], plain.__name__, plain)
    OPERATIONS[f"{operation.module}.{operation.name}"] = operation

    @wraps(plain)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        engine = engine_for(*args, *kwargs.values())
        if engine is not None:
            kernel = operation.kernel(engine)
            if kernel is not None:
                found = kernel(*args, **kwargs)
                if found is not DECLINED:
                    return found  # type: ignore[no-any-return]
        return plain(*args, **kwargs)

    return run


def engine_for(*values: object) -> Engine | None:
    """Return the engine whose kernels may compute with these arguments; None for plain PyTorch.

    Plain PyTorch records gradients and graphs, and it is what tensors that intercept operators (`FakeTensor`,
    `DTensor`) need. Kernels see data, so all tensors must be on one device, which has an engine.

    Examples:
        >>> plain, learned = torch.ones(2), torch.ones(2, requires_grad=True)
        >>> engine_for(plain), engine_for(learned), engine_for(plain.to("meta"))
        ('cpu', None, None)
    """
    if _is_recording() or _plain_only.get():
        return None
    learning, device = torch.is_grad_enabled(), None
    for tensor in _tensors(values):
        kind = type(tensor)
        if (learning and tensor.requires_grad) or (kind not in _PLAIN_TENSORS and _intercepts_operators(kind)):
            return None
        own = tensor.device
        if device is None:
            device = own
        elif own != device and own.type != device.type:
            return None
    return None if device is None else _ENGINES.get(device.type)


def on_one_thread(values: Tensor) -> Any:
    """Return a tensor on the CPU as a NumPy array of the same memory, and every other as it is.

    NumPy works on the calling thread. Waking PyTorch's threads takes longer than a pass over the labels of an image,
    and they then spin for milliseconds on the cores that the kernels need.

    Examples:
        >>> on_one_thread(torch.ones(2)), on_one_thread(torch.ones(2, device="meta"))
        (array([1., 1.], dtype=float32), tensor(..., device='meta', size=(2,)))
    """
    return values.numpy(force=True) if engine_for(values) == "cpu" else values


def checking_kernels(*tensors: Tensor) -> Any:
    """Return the module in which kernels for these tensors flag logits that are not finite; None if they do not."""
    return _module("triton", "nonfinite") if engine_for(*tensors) == "triton" else None


@public
@contextmanager
def deferred_checks() -> Iterator[None]:
    """Refuse logits on a GPU that are not finite at the end of a `with` block, instead of at the end of each call.

    On a GPU `forward`, `predict_proba` and `temperature` wait for the device, because only then is it known whether the
    logits are refused. A small image is calibrated in less time than a call takes to start, so that the device is idle
    between calls. Inside the block calls of this thread do not wait, and the results of logits that are not finite are
    undefined until the block raises. On a CPU, and with methods that look at their logits first, calls raise at once.

    Examples:
        >>> import segcal
        >>> calibrator = segcal.create("ts", num_classes=3)
        >>> batches = [torch.randn(2, 3, 8, 8) for _ in range(4)]
        >>> _ = calibrator.fit([segcal.Case("a", batches[0][0], torch.zeros(8, 8, dtype=torch.int64))])
        >>> with segcal.deferred_checks():
        ...     results = [calibrator.predict_proba(batch) for batch in batches]
    """
    with _deferred_finite_checks() as found:
        yield
    if any(found):
        raise InputError(
            "logits must be finite, got NaN or infinity in a call of this block; make the calls outside of "
            "segcal.deferred_checks() to see in which one and where"
        )


def _deferred_finite_checks() -> AbstractContextManager[Sequence[bool]]:
    """Return `kernels.triton.nonfinite.deferred_finite_checks()`, or a block of no effect without a GPU."""
    module = _module("triton", "nonfinite") if torch.cuda.is_available() else None
    return nullcontext(()) if module is None else module.deferred_finite_checks()


def with_denormals(function: Callable[P, R]) -> Callable[P, R]:
    """Compute a function with denormal numbers, which `torch.set_flush_denormal(True)` of a caller turns into 0."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or _LEAST * 1.0 > 0:  # a flushed product is 0
            return function(*args, **kwargs)
        torch.set_flush_denormal(False)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_flush_denormal(True)

    return run


def has_values(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be looked at: not in a graph that is recorded, nor on "meta".

    Examples:
        >>> has_values(torch.ones(2)), has_values(torch.ones(2, device="meta"))
        (True, False)
    """
    if _is_recording() or tensor.is_meta or _intercepts_operators(type(tensor)):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _is_recording() -> bool:
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


_ENGINES: dict[str, Engine] = {"cpu": "cpu", "cuda": "triton"}


@contextmanager
def plain_only() -> Iterator[None]:
    """Run plain PyTorch instead of kernels inside a `with` block, to compare the two or to look for an error."""
    token = _plain_only.set(True)
    try:
        yield
    finally:
        _plain_only.reset(token)


def _tensors(values: Iterable[object]) -> list[Tensor]:
    """Return tensors, and those in tuples and lists of any depth."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(value)
    return found


_PLAIN_TENSORS = (Tensor, Parameter)


@cache
def _intercepts_operators(kind: type[Tensor]) -> bool:
    return kind not in _PLAIN_TENSORS and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


@cache
def _module(engine: Engine, name: str) -> Any:
    """Import the kernels of a functional module, if the engine has any."""
    if engine == "triton" and importlib.util.find_spec("triton") is None:
        return None  # PyTorch for CUDA brings it along on Linux only
    if engine == "cpu" and os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None  # Python would run the loops of the kernels itself
    path = f"segcal.kernels.{engine}.{name}"
    return importlib.import_module(path) if importlib.util.find_spec(path) else None
