"""Values computed from buffers: computed once, and again after every change of a buffer."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import Tensor

from segcal import create
from segcal.data.sample.scenes import simulate
from segcal.kernels.remembered import Remembered


def doubled(remembered: Remembered, source: Tensor, seen: list[int], option: int = 0) -> Tensor:
    def compute() -> Tensor:
        seen.append(option)
        return 2 * source

    return remembered.value((source,), option, compute)


def test_a_value_is_computed_once_until_something_changes() -> None:
    remembered, source, seen = Remembered(), torch.ones(2), list[int]()
    assert torch.equal(doubled(remembered, source, seen), doubled(remembered, source, seen))
    assert len(seen) == 1
    source.add_(1)
    assert doubled(remembered, source, seen).tolist() == [4.0, 4.0]
    assert doubled(remembered, source.clone(), seen).tolist() == [4.0, 4.0]
    doubled(remembered, source, seen, option=1)
    assert len(seen) == 4


def test_a_copy_remembers_nothing() -> None:
    remembered, source, seen = Remembered(), torch.ones(2), list[int]()
    doubled(remembered, source, seen)
    for other in (copy.deepcopy(remembered), pickle.loads(pickle.dumps(remembered))):
        doubled(other, source, seen)
    assert len(seen) == 3


def test_gradients_and_graphs_are_recorded_each_time() -> None:
    remembered, source, seen = Remembered(), torch.ones(2, requires_grad=True), list[int]()
    for _ in range(2):
        assert doubled(remembered, source, seen).requires_grad
    assert len(seen) == 2


def test_a_value_from_inference_mode_serves_outside() -> None:
    remembered, source = Remembered(), torch.ones(2)
    with torch.inference_mode():
        doubled(remembered, source, [])
    learned = torch.ones(2, requires_grad=True)
    (learned * doubled(remembered, source, [])).sum().backward()
    assert learned.grad is not None
    with torch.inference_mode():
        of_inference = torch.ones(2)  # does not count its changes
        assert doubled(remembered, of_inference, []).tolist() == [2.0, 2.0]
        of_inference.fill_(3.0)
        assert doubled(remembered, of_inference, []).tolist() == [6.0, 6.0]


def test_a_calibrator_follows_its_numbers() -> None:
    case = simulate(1, size=(12, 12), num_classes=3)[0].case
    ts, logits = create("ts", 3).fit([case]), torch.randn(1, 3, 4, 4)
    first = ts.predict_proba(logits)
    other = create("ts", 3)
    other.load_state_dict({**ts.state_dict(), "inverse_temperature": torch.tensor(0.25).double()})
    assert torch.allclose(other.predict_proba(logits), torch.softmax(logits / 4, dim=1), atol=1e-6)
    other.load_state_dict(ts.state_dict())
    assert torch.equal(other.predict_proba(logits), first)
    assert ts.temperature(logits.double()).dtype == torch.float64
    assert ts.temperature(logits).dtype == torch.float32
