"""The same on a GPU as on a CPU: what is not covered by the contracts of the calibrators."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from experiments.camvid.fc_densenet import FCDenseNet
from segcal import CalibratedModel, CalibrationSuite, create, oracle_temperature
from segcal.functional import geometry, temperature
from segcal.training.loop import train
from segcal.training.recording import Recorder
from segcal.training.settings import Training
from segcal.types import InputError
from support.scenes import simulated

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def image(seed: int = 0, classes: int = 7, size: tuple[int, ...] = (61, 83)) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    logits = 4 * torch.randn(2, classes, *size)
    labels = torch.where(torch.rand(2, *size) < 0.7, logits.argmax(1), torch.randint(0, classes + 1, (2, *size)))
    return logits, labels


@pytest.mark.parametrize("form", ["tables", "equations", "marginal"])
@pytest.mark.parametrize("size", [(61, 83), (9, 14, 17)])
def test_the_suite_gives_the_same_numbers(form: str, size: tuple[int, ...]) -> None:
    logits, labels = image(size=size)
    suites = [CalibrationSuite(7, 7, form=form, per_image=True).to(device) for device in ("cpu", "cuda")]  # type: ignore[arg-type]
    for suite, device in zip(suites, ("cpu", "cuda"), strict=True):
        suite.update(logits.to(device), labels.to(device))
    for read in ("compute", "compute_images", "compute_classes", "compute_curves"):
        here, there = (getattr(suite, read)()["all"] for suite in suites)
        for name in here:
            assert there[name].device.type == "cuda"
            assert torch.allclose(here[name], there[name].cpu(), rtol=0, atol=1e-12, equal_nan=True), (read, name)


def test_boundaries_and_temperatures_agree() -> None:
    logits, labels = image()
    assert torch.equal(geometry.near_boundary(labels), geometry.near_boundary(labels.cuda()).cpu())
    for level in ("pixel", "image", "dataset"):
        here = oracle_temperature(logits, labels, level, ignore_index=7)  # type: ignore[arg-type]
        there = oracle_temperature(logits.cuda(), labels.cuda(), level, ignore_index=7).cpu()  # type: ignore[arg-type]
        assert torch.allclose(here, there, rtol=1e-9, equal_nan=True)
    excess = temperature.confidence_excess(logits[0].cuda(), labels[0].clamp(max=6).cuda())
    assert excess.device.type == "cuda"


def test_local_scaling_learns_on_a_gpu_what_it_learns_on_a_cpu() -> None:
    cases = simulated(4, size=(32, 32))
    here, there = (
        create("lts", 5, image_channels=1).fit(cases, epochs=5, learning_rate=1e-3, device=device)
        for device in ("cpu", "cuda")
    )
    assert there.fitted.device.type == "cpu", "the calibrator comes back to where it was"
    assert there.fit_report_.nll_after == pytest.approx(here.fit_report_.nll_after, abs=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_in_mixed_precision(precision: str) -> None:
    cases = simulated(4, size=(32, 32))
    fitted = create("lts", 5, image_channels=1).fit(
        cases, epochs=10, learning_rate=1e-3, device="cuda", precision=precision
    )
    assert fitted.fit_report_.nll_after < fitted.fit_report_.nll_before


def test_a_run_resumes(tmp_path: object) -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return (x - self.value).square().sum(), torch.tensor(x.numel(), device=x.device)

    data = [(torch.arange(8.0)[None],)]
    settings = {"learning_rate": 0.1, "spatial_dims": 1, "device": "cuda", "checkpoint": f"{tmp_path}/run"}
    whole, halves = Mean(), Mean()
    train(whole, data, Training(epochs=6, **{**settings, "checkpoint": None}))  # type: ignore[arg-type]

    class StopError(Exception):
        pass

    def stop(epoch: object) -> None:
        if epoch.number == 3:  # type: ignore[attr-defined]
            raise StopError

    with pytest.raises(StopError):
        train(halves, data, Training(epochs=6, watch=stop, **settings))  # type: ignore[arg-type]
    resumed = Mean()
    train(resumed, data, Training(epochs=6, **settings))  # type: ignore[arg-type]
    assert torch.equal(resumed.value, whole.value)


def test_a_calibrated_model_runs_there() -> None:
    cases = simulated(2, size=(24, 24))
    model = CalibratedModel(torch.nn.Conv2d(1, 5, 3, padding=1), create("ts", 5).fit(cases)).cuda()
    probs = model(torch.rand(1, 1, 24, 24, device="cuda"))
    assert torch.allclose(probs.sum(1), torch.ones_like(probs[:, 0]), atol=1e-5)


@pytest.mark.parametrize("method", ["ts", "cts", "lts", "ibts"])
def test_calibrators_refuse_nan_and_accept_impossible_classes(method: str) -> None:
    cases = simulated(3, size=(24, 24))
    settings = {"epochs": 2} if method in ("lts", "ibts") else {}
    here = create(method, 5).fit(cases, **settings)
    there = copy.deepcopy(here).cuda()
    logits = torch.stack([torch.as_tensor(case.logits) for case in cases])
    logits[:, 1, ::3] = -torch.inf
    # the temperature of ts does not depend on the logits
    for name in ("predict_proba", "forward", "temperature")[: 2 if method == "ts" else 3]:
        expected, found = getattr(here, name)(logits), getattr(there, name)(logits.cuda()).cpu()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        for value in (torch.nan, torch.inf):
            spoilt = logits.clone()
            spoilt[2, 3, 11, 12] = value
            with pytest.raises(InputError, match=r"at \(2, 3, 11, 12\)"):
                getattr(there, name)(spoilt.cuda())
        torch.testing.assert_close(getattr(there, name)(logits.cuda()).cpu(), found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's compiler uses what PyTorch deprecates
@pytest.mark.parametrize("compiled", [False, True])
def test_recorded_passes_are_the_networks_own(compiled: bool) -> None:
    network = FCDenseNet(5, growth=4, layers=(2, 2), bottleneck=2, first=8, dropout=0.0).cuda().train()
    plain, recorder = copy.deepcopy(network), Recorder(network, compiled=compiled)
    optimisers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (network, plain)]
    for step, size in enumerate((32, 48, 32, 48)):
        image = torch.randn(2, 3, size, size, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
        losses = []
        for call, optimiser in zip((recorder, plain), optimisers, strict=True):
            optimiser.zero_grad()
            loss = call(image).square().mean()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)
    assert len(recorder.recorded) == 2
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's compiler uses what PyTorch deprecates
@pytest.mark.parametrize("compiled", [False, True])
def test_recorded_dropout_is_another_each_time_and_follows_the_seed(compiled: bool) -> None:
    network = FCDenseNet(5, growth=4, layers=(2, 2), bottleneck=2, first=8, dropout=0.5).cuda().train()
    recorder, image = Recorder(network, compiled=compiled), torch.randn(2, 3, 32, 32, device="cuda")
    recorder(image)
    found = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        found.append((recorder(image).detach().clone(), recorder(image).detach().clone()))
    assert not torch.allclose(found[0][0], found[0][1])
    assert not torch.allclose(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][0], found[2][0], rtol=1e-4, atol=1e-4)
