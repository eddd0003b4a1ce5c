"""One file -> one array: .npy, .npz and pictures, by extension and never by content.

NIfTI has a geometry as well and lives in `segcal.data.io.nifti`. Whatever goes wrong inside a reader comes out
as one sentence that names the file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from segcal.types import Array, InputError

NIFTI = (".nii.gz", ".nii")
SCORES = (".npy", ".npz", *NIFTI)
LABELS = (".png", ".npy", ".npz", *NIFTI, ".webp")
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".npy", *NIFTI)
PICTURES = (".png", ".jpg", ".jpeg", ".webp")

_LABEL_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
_IMAGE_MODES = ("L", "LA", "RGB", "RGBA", "I", "I;16", "I;16B")


def extension_of(path: Path, among: Sequence[str]) -> str | None:
    """The extension of `path`, in small letters, if it is one of `among`.

    >>> extension_of(Path("a.b.NII.GZ"), SCORES)
    '.nii.gz'
    """
    return next((end for end in sorted(among, key=len, reverse=True) if path.name.lower().endswith(end)), None)


def is_nifti(path: Path) -> bool:
    """Whether the name of `path` says NIfTI."""
    return extension_of(path, NIFTI) is not None


def is_picture(path: Path) -> bool:
    """Whether the name of `path` says that it is a picture for the eye: PNG, JPEG, WebP."""
    return extension_of(path, PICTURES) is not None


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn any failure to read `path` into one sentence.

    Damaged bytes make zipfile, zlib, gzip, numpy, Pillow and nibabel raise almost anything, so all is caught.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise InputError(f"'{path}' must exist, and is gone; restore it or open the folder anew") from error
    except Exception as error:
        extension = extension_of(path, (*SCORES, *LABELS, *IMAGES))
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        if "pickle" in str(error) or "Python objects" in reason:
            raise InputError(
                f"'{path}' must hold a plain array of numbers, got pickled objects, which are never loaded "
                "as they can run code; save a numeric array with np.save or np.savez"
            ) from error
        raise InputError(
            f"'{path}' must be a readable {extension} file, got a damaged or incomplete one ({reason}); write it again"
        ) from error


def plain(array: Array, path: Path) -> Array:
    """`array` in the machine's byte order; raise unless it holds numbers of at most 64 bits."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise InputError(
            f"'{path}' must hold plain numbers of at most 64 bits, got {array.dtype}; convert it to float32 or int64"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def read_npy(path: Path) -> Array:
    """The array in `path`, memory-mapped, so that only what is looked at is read."""
    with readable(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            array.close()
            raise InputError(f"'{path}' must be a .npy file, got a .npz archive; rename it")
        return plain(array, path)


def read_npz(path: Path, key: str, rival: str | None = None) -> Array:
    """The array `key` of the archive, or its single one, decompressed once; raise if it is called `rival`."""
    with readable(path), path.open("rb") as file:  # numpy leaves a damaged archive open if it opened it
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"'{path}' must be a .npz archive, got a .npy file; rename it")
        with archive:
            return plain(archive[_key(path, archive.files, key, rival)], path)


def npy_shape(path: Path) -> tuple[int, ...]:
    """The shape that the header of a .npy file tells."""
    with readable(path), path.open("rb") as file:
        return _header_shape(file)


def npz_shape(path: Path, key: str, rival: str | None = None) -> tuple[int, ...]:
    """The shape that the header of one array in the archive tells; the rest is not decompressed."""
    with readable(path), zipfile.ZipFile(path) as archive:
        found = [name.removesuffix(".npy") for name in archive.namelist()]
        with archive.open(_key(path, found, key, rival) + ".npy") as file:
            return _header_shape(file)


def read_label_picture(path: Path) -> Array:
    """Labels `[H, W]` from a greyscale picture, or the indices of one with a palette."""
    with readable(path), Image.open(path) as picture:
        if picture.format == "WEBP":
            return _labels_from_webp(path, np.asarray(picture.convert("RGB")))
        if picture.mode not in _LABEL_MODES:
            raise _not_labels(path, f"mode {picture.mode}")
        return plain(np.asarray(picture), path)


def read_image_picture(path: Path) -> Array:
    """Float32 `[C, H, W]` in 0..1 from a picture of 8 or 16 bits."""
    with readable(path), Image.open(path) as picture:
        pixels = np.asarray(picture.convert(_image_mode(picture.mode)))
    scale = np.float32(255 if pixels.dtype == np.uint8 else 65535)
    channels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return np.ascontiguousarray(channels, dtype=np.float32) / scale


def picture_shape(path: Path) -> tuple[int, ...]:
    """`(C, H, W)` of a picture, from its header."""
    with readable(path), Image.open(path) as picture:
        bands = len(Image.new(_image_mode(picture.mode), (1, 1)).getbands())
        return (bands, picture.height, picture.width)


def whole_numbers(array: Array, path: Path) -> Array:
    """Labels as signed integers or uint8; floats are accepted where every value is a whole number."""
    if array.dtype.kind != "f":
        small = array.dtype.kind == "i" or array.dtype.itemsize == 1
        return (array.astype(np.uint8) if array.dtype.kind == "b" else array) if small else array.astype(np.int64)
    fractional = ~((array == np.trunc(array)) & (np.abs(array) < 2**53))
    if fractional.any():
        at = tuple(int(i) for i in np.argwhere(fractional)[0])
        raise InputError(
            f"labels must be whole numbers, got {array[at]} at {at} in '{path}'; "
            "write the labels as integers (and resample labels with nearest neighbours)"
        )
    return array.astype(np.int64)


def _header_shape(file: IO[bytes]) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)
    read: Callable[..., Any] = (
        np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    )
    shape: tuple[int, ...] = read(file)[0]
    return shape


def _key(path: Path, found: Sequence[str], key: str, rival: str | None) -> str:
    if key in found:
        return key
    if rival in found:
        raise InputError(
            f"'{path}' must hold an array '{key}' as the scores are declared to be {key}, got '{rival}'; "
            f'set scores = "{rival}"'
        )
    if len(found) != 1:
        raise InputError(
            f"'{path}' must hold an array '{key}' or a single array, got {sorted(found)}; save it as {key}=..."
        )
    return found[0]


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
    content, at = (
        path.read_bytes(),
        12,
    )  # RIFF, size, WEBP; then chunks of tag, size and content padded to even
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
