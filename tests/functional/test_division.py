"""Which kernels check the logits that they read, with a stub in place of those of a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from segcal.functional.division import kernels_refuse, was_noted

LOGITS = torch.zeros(1, 2, 3)


def test_no_kernel_of_the_cpu_notes_anything() -> None:
    assert kernels_refuse(LOGITS, LOGITS) is False
    assert was_noted(LOGITS) is False


@pytest.mark.parametrize("noted", [False, True])
def test_kernels_that_note_are_asked(noted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[torch.Tensor, ...]] = []

    def answer(*tensors: torch.Tensor) -> int:
        asked.append(tensors)
        return int(noted)

    notes = SimpleNamespace(can_note=answer, was_noted=answer)
    monkeypatch.setattr("segcal.functional.division.noting_kernels", lambda *_: notes)
    image = torch.ones(1, 1, 3)
    assert kernels_refuse(LOGITS, image) is noted
    assert was_noted(LOGITS) is noted
    assert [[id(tensor) for tensor in tensors] for tensors in asked] == [[id(LOGITS), id(image)], [id(LOGITS)]]
