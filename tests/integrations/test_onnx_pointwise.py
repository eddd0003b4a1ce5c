"""ONNX files of the methods that see one pixel at a time: mapped, mixed and binned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from segcal.calibrators import create
from segcal.integrations.export import export_onnx
from support.scenes import noisy

onnxruntime = pytest.importorskip("onnxruntime")
for package in ("onnx", "onnxscript"):
    pytest.importorskip(package)


@pytest.mark.parametrize("method", ["dirichlet", "ets", "bts", "svs", "cmsap", "cmsop"])
def test_the_file_does_what_the_calibrator_does(tmp_path: Path, method: str) -> None:
    calibrator = create(method, 4).fit(noisy(1, size=(12, 10)))
    assert export_onnx(calibrator, tmp_path / "file.onnx", size=(12, 10)) < 1e-5
    logits = 3 * torch.randn(2, 4, 7, 9, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(str(tmp_path / "file.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"logits": logits.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), calibrator.predict_proba(logits), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ts", {}),
        ("cmsap", {}),
        ("cmsop", {}),
        ("cts", {"features": False, "pairs": True, "sharpen": True}),
        ("lts", {"preset": "paper"}),
    ],
)
def test_a_class_that_is_impossible_is_so_in_the_file(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    settings = {"epochs": 1} if method == "lts" else {}
    calibrator = create(method, 4, **options).fit(noisy(2, size=(12, 10)), **settings)
    export_onnx(calibrator, tmp_path / "file.onnx", size=(12, 10))
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, 4, 7, 9, generator=generator)
    impossible = torch.rand(logits.shape, generator=generator) < 0.3
    impossible[:, 1] = False
    logits[impossible] = -torch.inf
    session = onnxruntime.InferenceSession(str(tmp_path / "file.onnx"), providers=["CPUExecutionProvider"])
    found = torch.from_numpy(session.run(None, {"logits": logits.numpy()})[0])
    torch.testing.assert_close(found, calibrator.predict_proba(logits), rtol=0, atol=1e-5)
    assert torch.equal(found.argmax(dim=1), logits.argmax(dim=1))
