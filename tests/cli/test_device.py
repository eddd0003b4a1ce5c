"""`--device` of the commands: it is checked before anything is done, and every device gives the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.commands import refuse, succeed_json

pytestmark = pytest.mark.usefixtures("calibrator")


def commands(data: Path, out: Path) -> list[list[object]]:
    ts = data.parent / "ts"
    return [
        ["apply", ts, data, "--out", out / "probs", "--temperature"],
        ["evaluate", data, "--calibrators", ts, "--patches", 2, "--floor"],
        ["compare", data, "--methods", "ts,isotonic", "--patches", 2],
        ["diagnose", data, "--maps", out / "maps"],
    ]


def test_a_device_that_does_not_exist_is_refused_at_once(data: Path, tmp_path: Path) -> None:
    for command in commands(data, tmp_path):
        assert "device 'nowhere' cannot be used" in refuse(*command, "--device", "nowhere")
    assert not (tmp_path / "probs").exists()
    assert not (tmp_path / "maps").exists()


@pytest.mark.parametrize("device", ["meta", "xla"])
def test_a_device_that_computes_nothing_is_refused_in_one_sentence(data: Path, tmp_path: Path, device: str) -> None:
    found = refuse(*commands(data, tmp_path)[0], "--device", device)
    assert f"device '{device}' cannot be used" in found
    assert len(found) < 200, "PyTorch's list of backends is left out"


def numbers(content: Any) -> list[float]:
    """Every number of a JSON document that does not measure time or memory."""
    if isinstance(content, dict):
        return [x for name, value in content.items() if name not in ("seconds", "memory") for x in numbers(value)]
    if isinstance(content, list):
        return [x for value in content for x in numbers(value)]
    return [float(content)] if isinstance(content, int | float) else []


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_numbers(data: Path, tmp_path: Path) -> None:
    found = []
    for device in ("cpu", "cuda"):
        shown = [succeed_json(*command, "--device", device) for command in commands(data, tmp_path / device)]
        found.append([numbers(one) for one in shown])
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-6)
    for path in (tmp_path / "cpu").rglob("*.npy"):
        other = tmp_path / "cuda" / path.relative_to(tmp_path / "cpu")
        np.testing.assert_allclose(np.load(other), np.load(path), rtol=1e-5, atol=1e-6)
