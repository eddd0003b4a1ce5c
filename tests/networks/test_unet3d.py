"""The 3D U-Net: its published size, any volume size, and gradients everywhere."""

from __future__ import annotations

import pytest
import torch

from segcal.networks.unet3d import UNet3D
from segcal.types import InputError


def convolution(before: int, after: int, side: int) -> int:
    """Weights without bias, and the two of batch normalisation per channel."""
    return before * after * side**3 + 2 * after


def test_the_paper_s_network_has_the_channels_of_the_publication() -> None:
    encoder = [(1, 32), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512)]
    decoder = [(768, 256), (256, 256), (384, 128), (128, 128), (192, 64), (64, 64)]
    expected = sum(convolution(*pair, 3) for pair in encoder + decoder)
    expected += sum(convolution(width, width, 2) for width in (512, 256, 128))
    expected += 64 * 57 + 57
    assert sum(parameter.numel() for parameter in UNet3D(57).parameters()) == expected


@pytest.mark.parametrize("space", [(8, 8, 8), (9, 12, 7), (1, 5, 17)])
def test_logits_have_the_size_of_the_image(space: tuple[int, ...]) -> None:
    network = UNet3D(3, image_channels=2, width=2, levels=3)
    assert network(torch.randn(2, 2, *space)).shape == (2, 3, *space)


def test_every_parameter_receives_a_gradient() -> None:
    torch.manual_seed(0)
    network = UNet3D(3, width=2, levels=3)
    network(torch.randn(2, 1, 12, 12, 12)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())


def test_a_volume_s_logits_do_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    network, images = UNet3D(3, width=2, levels=3).eval(), torch.randn(3, 1, 8, 9, 10)
    alone = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(network(images), alone, rtol=1e-4, atol=1e-5)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="got 0, 1, 32 and 4"):
        UNet3D(0)
    with pytest.raises(InputError, match=r"shape \(B, C, D, H, W\)"):
        UNet3D(2, width=1)(torch.zeros(1, 1, 8, 8))
