"""Pictures: labels as greyscale or palette PNG and lossless WebP, images in colour or grey."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile

from segcal.data.io.base import ArrayFile, Key, Opened, Shape, plain, readable, refuse_large
from segcal.types import Array, InputError

_FORMATS = ("PNG", "JPEG", "WEBP")
"""Formats that are read: Pillow knows some forty, and chooses by the content rather than by the name of a file."""

_LARGEST = 1 << 30
"""Bytes of the largest picture file: Pillow reads all of some formats before it looks at them."""

_LABEL_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
_GREY_STEPS = {"L;2": 255 // 3, "L;4": 255 // 15}
"""Factor by which Pillow scales the grey values of a PNG file to 0..255, by how its pixels are stored."""

_IMAGE_MODES = ("L", "LA", "RGB", "RGBA", "I", "I;16", "I;16B")


class Picture(ArrayFile):
    """A two-dimensional picture: one number per pixel for labels, values in 0..1 for images."""

    extensions = {"labels": (".png", ".webp"), "image": (".png", ".jpg", ".jpeg", ".webp")}  # noqa: RUF012

    def _open(self, key: Key, space: Shape | None, num_classes: int | None) -> Opened:
        """Read labels `[H, W]`, or an image `[C, H, W]` in 0..1."""
        with _opened(self.path) as picture:
            bands = len(Image.new(_image_mode(picture.mode), (1, 1)).getbands())
            space = (picture.height, picture.width)
        if key == "image":
            return Opened((bands, *space), lambda: read_image_picture(self.path))
        return Opened(space, lambda: read_label_picture(self.path))


def read_label_picture(path: Path) -> Array:
    """Return labels `[H, W]` from a greyscale picture, or the indices of one with a palette."""
    with _opened(path) as picture:
        if picture.format == "WEBP":
            return _labels_from_webp(path, np.asarray(picture.convert("RGB")))
        if picture.mode not in _LABEL_MODES:
            raise _not_labels(path, f"mode {picture.mode}")
        step = _GREY_STEPS.get(str(picture.tile[0].args), 1) if picture.tile else 1
        return plain(np.asarray(picture) // step, path)


def read_image_picture(path: Path) -> Array:
    """Return float32 `[C, H, W]` in 0..1 from a picture of 8 or 16 bits."""
    with _opened(path) as picture:
        picture.info.pop("transparency", None)  # of a palette, of which Pillow would warn
        pixels = np.asarray(picture.convert(_image_mode(picture.mode)))
    scale = np.float32(255 if pixels.dtype == np.uint8 else 65535)
    channels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return np.ascontiguousarray(channels, dtype=np.float32) / scale


@contextmanager
def _opened(path: Path) -> Iterator[ImageFile.ImageFile]:
    with readable(path):
        refuse_large(path.stat().st_size, path, _LARGEST, "pictures", "is it the right file?")
        with Image.open(path, formats=_FORMATS) as picture:
            yield picture


def _labels_from_webp(path: Path, pixels: Array) -> Array:
    # WebP has no greyscale mode: a grey picture comes back as three equal channels.
    if not _is_lossless_webp(path):
        raise InputError(
            f"label pictures must be stored without loss, got a lossy WebP at '{path}'; write it with lossless=True"
        )
    if not (pixels == pixels[..., :1]).all():
        raise _not_labels(path, "colours")
    return np.ascontiguousarray(pixels[..., 0])


def _is_lossless_webp(path: Path) -> bool:
    content, at = path.read_bytes(), 12  # RIFF, size, WEBP; then chunks of tag, size and content padded to even
    while at + 8 <= len(content):
        tag, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        if tag in (b"VP8L", b"VP8 "):
            return tag == b"VP8L"
        at += 8 + size + size % 2
    return False


def _not_labels(path: Path, got: str) -> InputError:
    return InputError(
        f"label pictures must be greyscale or have a palette, one number per pixel, got {got} in '{path}'; "
        "translate its colours to class numbers"
    )


def _image_mode(mode: str) -> str:
    if mode == "1":
        return "L"
    return mode if mode in _IMAGE_MODES else "RGB"
