"""Further passes that are run over images and put in the place of the first, and networks calibrated with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import segcal
from segcal.integrations.passes import DEFAULT, PassRunner
from segcal.types import InputError
from support.fits import choose_among_few

CLASSES = 3


class Local(nn.Module):
    """Logits that depend on single pixels, so that every mirrored pass is the same as the first."""

    def __init__(self, dims: int = 2) -> None:
        super().__init__()
        self.conv = (nn.Conv2d, nn.Conv3d)[dims - 2](1, CLASSES, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv(image)  # type: ignore[no-any-return]


class Sided(Local):
    """Looks at the neighbour on one side."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image.roll(1, -1))


def ran(wanted: Any, network: nn.Module, image: Tensor, size: Sequence[int] | None = None) -> Tensor:
    with torch.no_grad():
        found = PassRunner(wanted)(network, image, size or image.shape[2:])
    assert found is not None
    return found


@pytest.mark.parametrize(("dims", "wanted"), [(2, "mirror"), (2, "mirror:0,1"), (3, "mirror:0"), (3, "mirror:0,1,2")])
def test_mirrored_passes_lie_where_the_first_lies(dims: int, wanted: str) -> None:
    image, network = torch.rand(2, 1, *(8, 6, 10)[-dims:]), Local(dims)
    torch.testing.assert_close(ran(wanted, network, image)[:, 0], network(image).detach())


def test_mirroring_looks_from_the_other_side() -> None:
    image, network = torch.rand(1, 1, 4, 6), Sided()
    found = ran(True, network, image)[:, 0]
    torch.testing.assert_close(found, network.conv(image.roll(-1, -1)).detach())
    torch.testing.assert_close(ran("mirror:0", network, image)[:, 0], network(image).detach())


@pytest.mark.parametrize(
    ("length", "factor", "expected"), [(64, 0.75, 32), (64, 1, 64), (48, 0.75, 32), (90, 0.75, 68), (7, 2, 14)]
)
def test_a_rescaled_image_stays_divisible_and_its_logits_come_back(length: int, factor: float, expected: int) -> None:
    seen: list[tuple[int, ...]] = []

    class Seeing(Local):
        def forward(self, image: Tensor) -> Tensor:
            seen.append(tuple(image.shape[2:]))
            return super().forward(image)

    found = ran(f"scale:{factor}", Seeing(), torch.rand(1, 1, length, length))
    assert found.shape == (1, 1, CLASSES, length, length)
    assert seen == [(expected, expected)]


@pytest.mark.parametrize("dims", [2, 3])
def test_changes_are_made_one_after_the_other_and_undone(dims: int) -> None:
    image, sizes = torch.rand(2, 1, *(32, 48, 64)[-dims:]), list[tuple[int, ...]]()

    class Seeing(Sided):
        def forward(self, image: Tensor) -> Tensor:
            sizes.append(tuple(image.shape[2:]))
            return super().forward(image)

    network = Seeing(dims)
    found = ran("mirror+scale:2", network, image)[:, 0]
    assert sizes == [tuple(2 * length for length in image.shape[2:])]
    torch.testing.assert_close(found, ran("scale:2+mirror", network, image)[:, 0])
    torch.testing.assert_close(found.flip(-1), ran("scale:2", network, image.flip(-1))[:, 0])
    assert not torch.equal(found, ran("scale:2", network, image)[:, 0]), "a network that looks to one side"
    torch.testing.assert_close(ran(True, network, image), ran(DEFAULT[dims], network, image))


def test_dropout_is_random_between_passes_and_the_same_at_each_call() -> None:
    network = nn.Sequential(Local(), nn.Dropout2d(0.5)).eval()
    image = torch.rand(4, 1, 5, 5)
    state = torch.random.get_rng_state()
    found = ran("dropout:3", network, image)
    assert found.shape[1] == 3
    assert not torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(ran("dropout:3", network, image), found)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(module.training for module in network.modules())
    with pytest.raises(InputError, match="a network with dropout layers"):
        ran("dropout", Local(), image)


def test_networks_and_functions_are_passes() -> None:
    first, other, image = Local(), Local(), torch.rand(2, 1, 4, 4)
    found = ran([other, lambda network, image: {"out": 2 * network(image)}], first, image)
    torch.testing.assert_close(found[:, 0], other(image).detach())
    torch.testing.assert_close(found[:, 1], 2 * first(image).detach())
    runner = PassRunner([other])
    assert dict(runner.named_parameters()).keys() == {"networks.0.conv.weight", "networks.0.conv.bias"}
    assert PassRunner(None)(first, image, (4, 4)) is PassRunner(())(first, image, (4, 4)) is None


@pytest.mark.parametrize(
    "wanted",
    [
        "flip",
        "scale:0",
        "scale:x",
        "mirror:a",
        "dropout:many",
        "mirror+flip",
        "mirror+dropout",
        "mirror+",
        "mirror+mirror",
        3,
    ],
)
def test_unknown_passes_are_refused(wanted: Any) -> None:
    with pytest.raises(InputError, match="passes must be 'mirror'"):
        PassRunner(wanted)
    with pytest.raises(InputError, match="passes must be 'mirror'"):
        PassRunner([wanted])


def test_axes_that_an_image_lacks_are_refused() -> None:
    with pytest.raises(InputError, match="among the 2 of the image"):
        ran("mirror:2", Local(), torch.rand(1, 1, 4, 4))


class Noisy(nn.Module):
    """Knows the classes of an image apart from noise that a mirrored look has at other places."""

    def forward(self, image: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(1, CLASSES, *image.shape[2:], generator=generator)
        classes = torch.arange(CLASSES).view(1, -1, 1, 1)
        return 6.0 * (image.round() == classes) + 4 * noise


def batches(count: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        small = torch.randint(0, CLASSES, (1, 1, 4, 4), generator=generator).float()
        image = nn.functional.interpolate(small, scale_factor=6)
        found.append((image, image[:, 0].long()))
    return found


def test_a_network_is_calibrated_with_its_passes_and_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_among_few(monkeypatch)
    network = Noisy()
    calibrated = segcal.calibrate(network, batches(6), "pool", passes=True, progress=False).eval()
    assert calibrated.calibrator.uses_passes
    image, _ = batches(1, seed=1)[0]
    five = ["mirror", "scale:0.75", "scale:1.25", "mirror+scale:0.75", "mirror+scale:1.25"]  # what True stands for
    logits, passes = network(image), ran(five, network, image)
    torch.testing.assert_close(calibrated(image), calibrated.calibrator.predict_proba(logits, None, passes))
    assert torch.equal(calibrated(image).argmax(1), logits.argmax(1))
    again = segcal.CalibratedModel(network, calibrated.calibrator, five)
    torch.testing.assert_close(again(image), calibrated(image))


def test_a_method_without_passes_does_not_run_them() -> None:
    def never(network: nn.Module, image: Tensor) -> Tensor:
        raise AssertionError

    calibrated = segcal.calibrate(Noisy(), batches(4), "ts", passes=never, progress=False)
    image, _ = batches(1)[0]
    assert calibrated.passes(never, image, image.shape[2:]) is None


def test_cases_carry_their_passes_at_the_size_of_the_labels() -> None:
    class Coarse(Noisy):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward(image)[..., ::2, ::2]

    case = next(iter(segcal.predict_cases(Coarse(), batches(1), passes=["mirror", "scale:0.5"])))
    assert [tuple(scores.shape) for scores in case.each_pass] == [(CLASSES, 24, 24)] * 2
