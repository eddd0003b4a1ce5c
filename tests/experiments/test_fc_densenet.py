"""FC-DenseNet: the published sizes counted independently, any image size, and the precision of its logits."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from experiments.camvid.fc_densenet import FCDenseNet, fc_densenet
from segcal import InputError


def numbers_of(growth: int, layers: list[int], bottleneck: int, classes: int) -> tuple[int, int]:
    """Parameters, and statistics of batch normalisation, summed along the published description."""
    parameters = statistics = 0

    def normalise(maps: int) -> None:
        nonlocal parameters, statistics
        parameters, statistics = parameters + 2 * maps, statistics + 2 * maps

    def convolve(maps: int, made: int, area: int) -> None:
        nonlocal parameters
        parameters += maps * made * area + made

    def dense(maps: int, count: int) -> int:
        for _ in range(count):
            normalise(maps)
            convolve(maps, growth, 9)
            maps += growth
        return maps

    convolve(3, 48, 9)
    maps, skips = 48, []
    for count in layers:
        maps = dense(maps, count)
        skips.append(maps)
        normalise(maps)
        convolve(maps, maps, 1)
    dense(maps, bottleneck)
    made = bottleneck * growth
    for count, skip in zip(layers[::-1], skips[::-1], strict=True):
        convolve(made, made, 9)
        maps = dense(made + skip, count)
        made = count * growth
    convolve(maps, classes, 1)
    return parameters, statistics


PUBLISHED = {
    56: (12, [4] * 5, 4, 1_376_795, 1.4),  # 1.5 in the publication, which no count of its description gives
    67: (16, [5] * 5, 5, 3_463_243, 3.5),
    103: (16, [4, 5, 7, 10, 12], 15, 9_322_091, 9.4),
}


@pytest.mark.parametrize("depth", PUBLISHED)
def test_sizes_are_the_published_ones(depth: int) -> None:
    growth, layers, bottleneck, exact, millions = PUBLISHED[depth]
    network = fc_densenet(depth, 11)  # type: ignore[arg-type]
    parameters = sum(parameter.numel() for parameter in network.parameters())
    statistics = sum(value.numel() for name, value in network.named_buffers() if "running" in name)
    assert (parameters, statistics) == numbers_of(growth, layers, bottleneck, 11)
    assert parameters == exact
    assert round((parameters + statistics) / 1e6, 1) == millions


def test_103_has_the_maps_of_the_published_table() -> None:
    network = fc_densenet(103, 11)
    assert [block.layers[-1].norm.num_features + 16 for block in network.down] == [112, 192, 304, 464, 656]
    assert network.bottleneck.layers[-1].norm.num_features + 16 == 896
    # 576: the publication prints 578, which is not a sum of its parts
    assert [block.layers[-1].norm.num_features + 16 for block in network.up] == [1088, 816, 576, 384, 256]


def small() -> FCDenseNet:
    torch.manual_seed(0)
    return FCDenseNet(5, growth=4, layers=(2, 3), bottleneck=2, first=8)


@pytest.mark.parametrize("size", [(36, 48), (45, 61), (4, 7), (33, 32)])
def test_logits_have_the_size_of_the_image(size: tuple[int, int]) -> None:
    assert small().eval()(torch.rand(2, 3, *size)).shape == (2, 5, *size)


def test_the_real_network_takes_camvid() -> None:
    with torch.no_grad():
        assert fc_densenet(56, 11).eval()(torch.rand(1, 3, 90, 120)).shape == (1, 11, 90, 120)


@pytest.mark.parametrize("shape", [(1, 3, 3, 9), (3, 9, 9)])
def test_images_that_are_too_small_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="sides of at least 4"):
        small()(torch.rand(shape))


def test_an_unknown_depth_is_refused() -> None:
    with pytest.raises(InputError, match="56, 67, 103, got 57"):
        fc_densenet(57, 11)  # type: ignore[arg-type]


def test_memory_order_and_precision_change_little() -> None:
    network, image = small().eval(), torch.rand(2, 3, 20, 24)
    exact = network(image)
    swapped = deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(swapped(image.contiguous(memory_format=torch.channels_last)), exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = network(image)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().max() < 0.05 * exact.abs().max()
