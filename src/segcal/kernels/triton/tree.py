"""The temperature tree on CUDA: one pass that standardises and pads, one that convolves and mixes.

The first pass writes log-probabilities in float32 with four more pixels on every side, reflected, so that the second
reads whole vectors without asking where an image ends. There, a thread holds the sums of seven or eight nodes of a few
neighbouring pixels and adds one tap of one class at a time: 8 multiply-adds for each value read, of which all but the
first come from the first-level cache. The sums are exact float32, unlike those of PyTorch's convolutions, which round
their inputs to TF32 by default.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.rows import RowProducts
from segcal.kernels.triton.softmax import PRECISIONS, TILE, WARPS, laid_flat, on_device, read, summarised, tile_shape

_REACH = 4
_PIXELS, _WARPS = 256, 2
_COLUMNS = (128, 64, 32)  # of a tile, whose other side is made of lines
_SMALLEST = tl.constexpr(SMALLEST_LOG_PROBABILITY)


class _Frame(NamedTuple):
    """Size of images, and of the same with room around them; one plane in 2D."""

    size: tuple[int, int, int]
    padded: tuple[int, int, int]
    columns: int

    @classmethod
    def of(cls, shape: torch.Size) -> _Frame:
        """Return the frame of `[*S]`; lines and columns are whole tiles, and lines start at whole vectors."""
        depth, height, width = (1, *shape)[-3:]
        columns = min(_COLUMNS, key=lambda n: (triton.cdiv(width, n) * n, -n))
        lines = _PIXELS // columns
        planes = depth + 2 * _REACH if len(shape) == 3 else 1
        wide = triton.cdiv(triton.cdiv(width, columns) * columns + 2 * _REACH, 16) * 16
        return cls((depth, height, width), (planes, triton.cdiv(height, lines) * lines + 2 * _REACH, wide), columns)


@triton.jit
def _place(at, length, MIRRORED: tl.constexpr):
    """Return the place to read for one up to 4 beyond an edge: its mirror image, or the edge itself."""
    if MIRRORED:
        at = tl.abs(at)
        found = tl.where(at >= length, 2 * (length - 1) - at, at)
    else:
        found = tl.minimum(tl.maximum(at, 0), length - 1)
    return found


@triton.jit
def _standardised(values, mean_ptr, deviation_ptr, c, L):
    mean = tl.load(mean_ptr + c, mask=c < L, other=0.0)
    deviation = tl.load(deviation_ptr + c, mask=c < L, other=1.0)
    return (tl.maximum(values, _SMALLEST) - mean[:, None]) / deviation[:, None]


@triton.jit
def _write(out_ptr, c, x, L, W, channel, values, EDGE, MIRRORED: tl.constexpr):
    """Write a part of a line, and where it reaches an edge, the four pixels beyond it."""
    to = out_ptr + c.to(tl.int64)[:, None] * channel
    there = (c < L)[:, None]
    tl.store(to + (x + 4)[None, :], values, mask=there & (x < W)[None, :])
    if EDGE:
        if MIRRORED:
            tl.store(to + (4 - x)[None, :], values, mask=there & ((x > 0) & (x < 5))[None, :])
            tl.store(to + (2 * W + 2 - x)[None, :], values, mask=there & ((x > W - 6) & (x < W - 1))[None, :])
        else:
            for k in tl.static_range(4):
                tl.store(to + (x + k)[None, :], values, mask=there & (x == 0)[None, :])
                tl.store(to + (x + 5 + k)[None, :], values, mask=there & (x == W - 1)[None, :])


@triton.jit
def _prepare(
    z_ptr, scale_ptr, mean_ptr, deviation_ptr, out_ptr, L, D, H, W, lines, parts, line, plane, channel, zb, zl, zn,
    MARGIN: tl.constexpr, MIRRORED: tl.constexpr, STANDARDISED: tl.constexpr, WHOLE: tl.constexpr,
    BL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write a part of a line of the tree's inputs; `MARGIN` is the number of planes before the first, 0 in 2D."""
    image, here = tl.program_id(1).to(tl.int64), tl.program_id(0) // parts
    start = tl.program_id(0) % parts * BN
    y, p, x = here % lines, here // lines, start + tl.arange(0, BN)
    edge = (start < 5) | (start + BN > W - 6)
    source = (_place(p - MARGIN, D, MIRRORED) * H + _place(y - 4, H, MIRRORED)) * W
    z_ptr += image * zb + source.to(tl.int64) * zn
    out_ptr += image * L * channel + p.to(tl.int64) * plane + y * line
    if STANDARDISED:
        scale = tl.load(scale_ptr).to(tl.float32)
    if WHOLE:
        c = tl.arange(0, BL)
        values = read(z_ptr, c, x, L, W, zl, zn)
        if STANDARDISED:
            values = (values - tl.max(values, axis=0)[None, :]) * scale
            values -= tl.log(tl.sum(tl.where((c < L)[:, None], tl.exp(values), 0.0), axis=0))[None, :]
            values = _standardised(values, mean_ptr, deviation_ptr, c, L)
        _write(out_ptr, c, x, L, W, channel, values, edge, MIRRORED)
    else:
        if STANDARDISED:
            top, total = summarised(z_ptr, x, tl.zeros([BN], tl.float32) + scale, L, W, zl, zn, BL, BN)
        for first in range(0, L, BL):
            c = first + tl.arange(0, BL)
            values = read(z_ptr, c, x, L, W, zl, zn)
            if STANDARDISED:
                values = (values - top[None, :]) * scale - tl.log(total)[None, :]
                values = _standardised(values, mean_ptr, deviation_ptr, c, L)
            _write(out_ptr, c, x, L, W, channel, values, edge, MIRRORED)


@triton.jit
def _mixed(gate, left, right):
    """Return a value between two, by the sigmoid of a gate."""
    return right + (left - right) / (1.0 + tl.exp(-gate))


@triton.jit
def _pair(at):
    """Read two float32 at once, as the halves of an integer: loads, not multiplications, are what takes time."""
    both = tl.load(at)
    return both.to(tl.int32).to(tl.float32, bitcast=True), (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _root(
    z_ptr, image_ptr, w_ptr, v_ptr, bias_ptr, out_ptr, L, C, D, H, W, across, line, plane, channel, offset, least,
    PLANES: tl.constexpr, WITH_IMAGE: tl.constexpr, RECTIFIED: tl.constexpr, BX: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    n, lines = tl.arange(0, BN), BN // BX
    tile, rows = tl.program_id(0), tl.cdiv(H, lines)
    x, y = tile % across * BX + n % BX, tile // across % rows * lines + n // BX
    p = tile // (across * rows)
    at = p.to(tl.int64) * plane + y * line + x
    zero = tl.zeros([BN], tl.float32)
    a, b, c, d, e, f, g, h, leaf = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for k in range(PLANES):
        for own in range(L):
            z = z_ptr + (image * L + own) * channel + k * 2 * plane + at
            w = w_ptr + (k * L + own) * 100
            for tap in tl.static_range(25):
                value = tl.load(z + (tap // 5) * 2 * line + (tap % 5) * 2)
                first, second = _pair(w + tap * 4)
                a += first * value
                b += second * value
                first, second = _pair(w + tap * 4 + 1)
                c += first * value
                d += second * value
                first, second = _pair(w + tap * 4 + 2)
                e += first * value
                f += second * value
                first, second = _pair(w + tap * 4 + 3)
                g += first * value
                if WITH_IMAGE:
                    h += second * value
        if WITH_IMAGE:
            for own in range(C):
                z = image_ptr + (image * C + own) * channel + k * 2 * plane + at
                v = v_ptr + (k * C + own) * 25
                for tap in tl.static_range(25):
                    leaf += tl.load(v + tap) * tl.load(z + (tap // 5) * 2 * line + (tap % 5) * 2)
    left = _mixed(e + tl.load(bias_ptr + 4), a + tl.load(bias_ptr), b + tl.load(bias_ptr + 1))
    right = _mixed(f + tl.load(bias_ptr + 5), c + tl.load(bias_ptr + 2), d + tl.load(bias_ptr + 3))
    value = _mixed(g + tl.load(bias_ptr + 6), left, right)
    if WITH_IMAGE:
        value = _mixed(h + tl.load(bias_ptr + 7), leaf + tl.load(bias_ptr + 8), value)
    value += offset
    if RECTIFIED:
        value = tl.maximum(value, 0.0) + least
    to = ((image * D + p) * H + y) * W + x
    tl.store(out_ptr + to, value, mask=(x < W) & (y < H))


def root_of_scores(
    logits: Tensor,
    standardisation: tuple[Tensor, Tensor, Tensor] | None,
    image: Tensor | None,
    of_logits: tuple[Tensor, Tensor],
    of_image: tuple[Tensor, Tensor] | None,
    offset: float,
    *,
    least: float | None = None,
) -> Tensor:
    """Twin of `segcal.functional.tree.root_of_scores`, for weights in float32."""
    weight, bias = of_logits
    images = [] if of_image is None or image is None else [image]
    if weight.dtype != torch.float32 or not logits.numel() or any(x.dtype not in PRECISIONS for x in (logits, *images)):
        return DECLINED
    size, classes = logits.shape[2:], logits.shape[1]
    if len(size) not in (2, 3) or math.prod(size) >= 1 << 30:
        return DECLINED
    frame, planes = _Frame.of(size), 5 if len(size) == 3 else 1
    taps = weight.detach().reshape(-1, classes, planes, 25).permute(2, 1, 3, 0)  # planes, classes, taps, nodes
    taps = torch.nn.functional.pad(taps, (0, 8 - taps.shape[-1])).contiguous()
    biases = torch.nn.functional.pad(bias.detach(), (0, 9 - len(bias)))
    own = inputs = _prepared(logits, standardisation, frame)
    channels, leaf_taps = 0, taps
    if of_image is not None and images:
        own, channels = _prepared(images[0], None, frame), images[0].shape[1]
        leaf_taps = of_image[0].detach().reshape(channels, planes, 25).transpose(0, 1).contiguous()
        biases[8:] = of_image[1].detach()
    found = torch.empty((len(logits), 1, *size), dtype=torch.float32, device=logits.device)
    across = triton.cdiv(frame.size[2], frame.columns)
    tiles = across * triton.cdiv(frame.size[1], _PIXELS // frame.columns) * frame.size[0]
    with on_device(logits):
        _root[(tiles, len(logits))](
            inputs, own, taps.view(torch.int64), leaf_taps, biases, found, classes, channels, *frame.size, across,
            *_strides(frame), float(offset), float(least or 0.0), PLANES=planes, WITH_IMAGE=bool(images),
            RECTIFIED=least is not None, BX=frame.columns, BN=_PIXELS, num_warps=_WARPS,
        )  # fmt: skip
    return found


def _strides(frame: _Frame) -> tuple[int, int, int]:
    """Return the distances of lines, planes and channels in the padded inputs."""
    planes, lines, columns = frame.padded
    return columns, lines * columns, planes * lines * columns


def _prepared(values: Tensor, standardisation: tuple[Tensor, Tensor, Tensor] | None, frame: _Frame) -> Tensor:
    """Return standardised log-probabilities, or the values themselves, in float32 with a margin."""
    z = laid_flat(values)
    images, channels, _ = z.shape
    found = torch.empty((images, channels, *frame.padded), dtype=torch.float32, device=values.device)
    numbers = (z, z, z) if standardisation is None else tuple(each.contiguous() for each in standardisation)
    rows, columns = tile_shape(channels)
    depth, height, width = frame.size
    planes, margin = (depth + 2 * _REACH, _REACH) if values.ndim == 5 else (1, 0)
    lines, parts = height + 2 * _REACH, triton.cdiv(width, columns)
    with on_device(values):
        _prepare[(planes * lines * parts, images)](
            z, *numbers, found, channels, *frame.size, lines, parts, *_strides(frame), *z.stride(),
            MARGIN=margin, MIRRORED=min(values.shape[2:]) > _REACH, STANDARDISED=standardisation is not None,
            WHOLE=channels <= TILE, BL=rows, BN=columns, num_warps=WARPS,
        )  # fmt: skip
    return found


def tree_root(
    logits: Tensor,
    image: Tensor | None,
    of_logits: tuple[Tensor, Tensor],
    of_image: tuple[Tensor, Tensor] | None,
    offset: float,
    *,
    least: float | None = None,
) -> Tensor:
    """Twin of `segcal.functional.tree.tree_root`, for weights in float32."""
    return root_of_scores(logits, None, image, of_logits, of_image, offset, least=least)


def convolve(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Twin of `segcal.functional.tree.convolve`, with the gradients of weight and bias, for float32."""
    learned = torch.is_grad_enabled() and values.requires_grad  # whose gradient is left to PyTorch
    if weight.dtype != torch.float32 or values.dtype not in PRECISIONS or learned or not values.numel():
        return DECLINED
    if torch.is_autocast_enabled("cuda"):
        return DECLINED
    found: Tensor = RowProducts.apply(values.float(), weight, bias)
    return found
