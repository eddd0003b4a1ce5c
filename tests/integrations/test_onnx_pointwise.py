"""ONNX files of the methods that see one pixel at a time: mapped, mixed and binned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from segcal.calibrators import create
from segcal.integrations.onnx import export_onnx
from support.flat import noisy

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
