"""ONNX files and exported programs do what PyTorch does, at sizes they were not made with, or are not kept."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from segcal.calibrators import Calibrator, ContextualTemperatureScaling, create
from segcal.integrations.calibrate import CalibratedModel
from segcal.integrations.export import export_onnx, export_torch
from segcal.text import CalibrationWarning
from segcal.types import InputError
from support.fits import pool_of_passes
from support.scenes import noisy, several_passes, simulated

onnxruntime = pytest.importorskip("onnxruntime")
for package in ("onnx", "onnxscript"):
    pytest.importorskip(package)

CLASSES = 3
TRACED = {2: (16, 16), 3: (8, 8, 8)}
OTHERS = {2: (13, 22), 3: (9, 7, 12)}
KINDS = [("ts", 2, 0), ("lts", 2, 0), ("lts", 2, 1), ("ibts", 2, 1), ("lts", 3, 1)]
KINDS += [("isotonic", 2, 0), ("histogram", 3, 0), ("beta", 2, 0), ("cts", 2, 0), ("cts", 3, 0)]
POINTWISE = [(method, 2, 0) for method in ("dirichlet", "ets", "bts", "svs", "cmsap", "cmsop")]


@cache
def fitted(method: str, dims: int = 2, channels: int = 1) -> Calibrator:
    cases = simulated(2, num_classes=CLASSES, size=TRACED[dims])
    options = {"epochs": 2, "learning_rate": 1e-2} if method in ("lts", "ibts") else {}
    settings = {"spatial_dims": dims, "image_channels": channels}
    calibrator = create(method, CLASSES, **settings).fit(cases, **options)
    if isinstance(calibrator, ContextualTemperatureScaling):
        steep(calibrator)
    return calibrator


def steep(calibrator: ContextualTemperatureScaling) -> None:
    """Weights that make every feature and class count, whatever was learned."""
    many = len(calibrator.coefficients)
    calibrator.coefficients.copy_(torch.linspace(0.2, 0.4, many) * (-1) ** torch.arange(many))
    calibrator.class_offsets.copy_(torch.linspace(-0.5, 0.8, CLASSES))
    calibrator.intercept.fill_(0.7)


class Network(nn.Module):
    """Scores at half the size of the image, which has two channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, CLASSES, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(CLASSES)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        return {"out": 5 * self.norm(self.conv(image))}


def inputs_of(batch: int, dims: int, *channels: int) -> tuple[Tensor, ...]:
    """Blocks, so that there are predicted borders, near and far."""
    generator = torch.Generator().manual_seed(1)

    def blocks(many: int) -> Tensor:
        coarse = 3 * torch.randn(batch, many, *(-(-side // 5) for side in OTHERS[dims]), generator=generator)
        whole = coarse
        for axis, side in enumerate(OTHERS[dims], start=2):
            whole = whole.repeat_interleave(5, axis).narrow(axis, 0, side)
        return whole + 0.3 * torch.randn(whole.shape, generator=generator)

    return tuple(blocks(many) for many in channels if many)


def run_file(path: Path, **inputs: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in inputs.items()})[0])


def run_on_image(export: Any, path: Path, image: Tensor) -> Tensor:
    """What a file with a network returns, whichever way it was written."""
    if export is export_onnx:
        return run_file(path, image=image)
    with torch.no_grad():
        found: Tensor = torch.export.load(path).module()(image)
    return found


@pytest.mark.parametrize(("method", "dims", "channels"), [*KINDS, *POINTWISE])
def test_the_file_does_what_the_calibrator_does(tmp_path: Path, method: str, dims: int, channels: int) -> None:
    calibrator, path = fitted(method, dims, channels), tmp_path / "new" / "file.onnx"
    precision = {2: 1e-5, 3: 3e-5}[dims]  # of the compiled tree, which the calibrator itself uses
    assert export_onnx(calibrator, path, size=TRACED[dims]) < precision
    assert [entry.name for entry in path.parent.iterdir()] == ["file.onnx"]
    inputs = inputs_of(3, dims, CLASSES, channels)
    found = run_file(path, **dict(zip(("logits", "image"), inputs, strict=False)))
    with torch.no_grad():
        expected = calibrator.predict_proba(*inputs)
    assert torch.allclose(found, expected, rtol=0, atol=precision)
    assert not calibrator.preserves_labels or torch.equal(found.argmax(1), inputs[0].argmax(1))


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
    found = run_file(tmp_path / "file.onnx", logits=logits)
    torch.testing.assert_close(found, calibrator.predict_proba(logits), rtol=0, atol=1e-5)
    assert torch.equal(found.argmax(dim=1), logits.argmax(dim=1))


@pytest.mark.parametrize("export", [export_onnx, export_torch])
def test_network_and_calibrator_in_one_file(tmp_path: Path, export: Any) -> None:
    network, calibrator = Network().train(), fitted("ts")
    assert export(calibrator, tmp_path / "file", network=network, image_channels=2, size=(16, 16)) < 1e-5
    assert network.training  # the network is as it was
    (image,) = inputs_of(3, 2, 2)
    model = CalibratedModel(network, calibrator).eval()
    found = run_on_image(export, tmp_path / "file", image)
    with torch.no_grad():
        assert torch.allclose(found, model(image), rtol=0, atol=1e-5)
        assert (found.argmax(1) == model.logits(image).argmax(1)).float().mean() > 0.999  # scores differ by rounding


def test_a_file_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_onnx(fitted("ts"), tmp_path / "file.onnx", size=(16, 16))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("segcal.integrations.export.TOLERANCE", -1.0)
    with pytest.raises(InputError, match=r"differs from PyTorch by .*, more than -1\.0; it was not kept"):
        export_onnx(fitted("vector"), tmp_path / "file.onnx", size=(16, 16))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"needs {package}, which cannot be imported .*; pip install segcal\[onnx\]$"):
        export_onnx(fitted("ts"), tmp_path / "file.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("export", [export_onnx, export_torch])
@pytest.mark.parametrize(
    ("calibrator", "options", "words"),
    [
        (lambda: create("ts", CLASSES), {}, "has not been fitted"),
        (lambda: create("lts", CLASSES), {}, "has not been fitted"),
        (lambda: fitted("ts"), {"network": Network()}, "give image_channels"),
        (lambda: fitted("lts"), {"size": (8, 8, 8)}, r"size must have 2 numbers.*got \(8, 8, 8\)"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, export: Any, calibrator: Any, options: Any, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        export(calibrator(), tmp_path / "file", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("export", [export_onnx, export_torch])
@pytest.mark.parametrize(
    ("network", "channels", "words"),
    [
        (Network(), 3, r"must run on a float32 image of shape \(2, 3, 64, 64\), got '.*'; set image_channels and size"),
        (Network().half(), 2, r"got '.*'; .* export it in float32$"),
        (nn.Conv2d(2, CLASSES + 1, 1), 2, "logits must have shape"),
        (nn.Flatten(), 2, "the network must return logits"),
    ],
)
def test_a_network_that_does_not_run_is_named(
    tmp_path: Path, export: Any, network: nn.Module, channels: int, words: str
) -> None:
    """Not by the error of a tracer, which is pages long."""
    with pytest.raises(InputError, match=words) as raised:
        export(fitted("ts"), tmp_path / "file", network=network, image_channels=channels)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


class FixedSize(Network):
    """As transformers with learned positions: it runs at one size only."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, CLASSES, 8, 8))

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        return {"out": super().forward(image)["out"] + self.positions}


@pytest.mark.parametrize("export", [export_onnx, export_torch])
def test_a_network_of_one_size_is_exported_at_that_size(tmp_path: Path, export: Any) -> None:
    network, calibrator = FixedSize(), fitted("ts")
    with pytest.warns(CalibrationWarning, match=r"accepts images of size \(16, 16\) only") as caught:
        export(calibrator, tmp_path / "file", network=network, image_channels=2, size=(16, 16))
    assert Path(caught[0].filename) == Path(__file__)
    image = torch.randn(3, 2, 16, 16)
    with torch.no_grad():
        expected = CalibratedModel(network, calibrator).eval()(image)
    torch.testing.assert_close(run_on_image(export, tmp_path / "file", image), expected, rtol=0, atol=1e-5)


class Untraceable(Network):
    """Python that depends on values, which no tracer follows."""

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        return super().forward(image if float(image.sum()) > 0 else image + 1)


@pytest.mark.parametrize("export", [export_onnx, export_torch])
def test_what_cannot_be_traced_is_one_sentence(tmp_path: Path, export: Any) -> None:
    with pytest.raises(InputError, match="the network cannot be exported") as raised:
        export(fitted("ts"), tmp_path / "file", network=Untraceable(), image_channels=2, size=(16, 16))
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "dims", "channels"), [kind for kind in KINDS if kind not in (("cts", 3, 0), ("lts", 2, 0))]
)
def test_exported_program_in_a_file(tmp_path: Path, method: str, dims: int, channels: int) -> None:
    calibrator = fitted(method, dims, channels)
    assert export_torch(calibrator, tmp_path / "file.pt2", size=TRACED[dims]) < 1e-4
    inputs = inputs_of(3, dims, CLASSES, channels)
    found = torch.export.load(tmp_path / "file.pt2").module()(*inputs)
    with torch.no_grad():
        np.testing.assert_allclose(found, calibrator.predict_proba(*inputs), rtol=0, atol=1e-4)


@pytest.mark.parametrize("export", [export_onnx, export_torch])
def test_a_pool_is_exported_with_its_passes(export: Any, tmp_path: Path) -> None:
    pool, case = pool_of_passes(), several_passes(1, seed=1)[0]
    path = tmp_path / ("pool.onnx" if export is export_onnx else "pool.pt2")
    assert export(pool, path, size=(16, 16)) < 1e-4
    with pytest.raises(InputError, match="exported without its network"):
        export(pool, path, network=nn.Conv2d(1, 3, 1), image_channels=1)
    if export is export_onnx:
        session = onnxruntime.InferenceSession(str(path))
        assert [given.name for given in session.get_inputs()] == ["logits", "passes"]
        logits, passes = np.asarray(case.logits)[None], np.asarray(case.passes)[None]
        (found,) = session.run(None, {"logits": logits, "passes": passes})
        expected = pool.predict_proba(torch.from_numpy(logits), passes=torch.from_numpy(passes)).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)
        np.testing.assert_array_equal(found.argmax(1), logits.argmax(1))
