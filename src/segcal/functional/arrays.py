"""Arrays of any origin as tensors: in memory, memory-mapped, or computed from what is indexed."""

from __future__ import annotations

import tempfile
import weakref
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from segcal.files import release_pages
from segcal.types import Array, InputError

_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}
_LARGEST = np.iinfo(np.int64).max
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_REAL = {torch.bool, *_WHOLE, torch.float16, torch.bfloat16, torch.float32, torch.float64}
_SHARED_FILE, _ALIGNMENT = 1 << 28, 64
"""Bytes of a temporary file that several arrays share, of which only those that are written take space on the disk."""


def to_tensor(values: Array | Tensor) -> Tensor:
    """Return an array as a tensor in native byte order: a copy of what is on disk, the same memory otherwise."""
    check_numbers(values)
    if isinstance(values, Tensor):
        return values.detach().resolve_neg()
    native = values.dtype.newbyteorder("=")
    wanted = np.dtype(_WIDER.get(native, native))
    if _is_shareable(values, wanted):
        return shared_tensor(values)
    read = np.array(values)
    if native == np.uint64 and read.size and read.max() > _LARGEST:
        raise InputError(f"whole numbers must be below 2^63, got {read.max()}; correct the labels")
    release_pages(values)
    return torch.from_numpy(read.astype(wanted, copy=False))


def check_numbers(values: object) -> None:
    """Raise unless values are an array, or a dense tensor, of real numbers of at most 64 bits."""
    dtype = getattr(values, "dtype", None)
    numbers = dtype.kind in "biuf" and dtype.itemsize <= 8 if isinstance(dtype, np.dtype) else dtype in _REAL
    got = type(values).__name__ if dtype is None else f"dtype {dtype}"
    if isinstance(values, Tensor) and (values.layout != torch.strided or values.is_meta):
        numbers, got = False, f"a tensor of layout {values.layout} on device {values.device}"
    if not numbers:
        raise InputError(
            f"arrays must hold real numbers of at most 64 bits, got {got}; give a dense array or tensor of such numbers"
        )


def to_array(values: Array | Tensor) -> Array:
    """Return values for NumPy, which lacks bfloat16 and gets float32 instead."""
    if not isinstance(values, Tensor):
        return values
    array: Array = (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
    return array


def _is_shareable(values: Array, wanted: np.dtype[Any]) -> bool:
    """Return whether a tensor can use the memory of an array."""
    plain = type(values) is np.ndarray and not is_mapped(values)
    return plain and values.dtype == wanted and min(values.strides, default=0) >= 0


def is_mapped(array: Any) -> bool:
    """Return whether an array, or what it is a view of, is a memory-mapped file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


class TemporaryArrays:
    """Copies of arrays in temporary files without a name, which end with the last array in them.

    Many arrays share a file, since each map of one holds it open, and a process may open about a thousand.
    """

    def __init__(self) -> None:
        self._map, self._used = np.empty(0, np.uint8), 0
        self._file: IO[bytes] | None = None

    def copy(self, array: Array) -> Array:
        """Return an array as a map of a file; one that is mapped stays as it is."""
        if is_mapped(array) or not array.size:
            return array
        if self._file is None or self._used + array.nbytes > self._map.size:
            self._file, self._used = tempfile.TemporaryFile(), 0  # noqa: SIM115  (open as long as it has room)
            self._file.truncate(max(array.nbytes, _SHARED_FILE))
            self._map = np.memmap(self._file, np.uint8, "r")
            weakref.finalize(self._map, self._file.close)
        self._file.seek(self._used)
        array.tofile(self._file)  # not through the map: on a full disk that would end the process
        self._file.flush()
        copied: Array = self._map[self._used : self._used + array.nbytes].view(array.dtype).reshape(array.shape)
        self._used += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return copied


def shared_tensor(array: Array) -> Tensor:
    """Return `array` as a tensor that shares its memory, which nobody here writes to."""
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writeable(array)))


class _Writeable:
    """A read-only array that claims to be writeable: PyTorch warns of others, and warnings belong to all threads."""

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def split_index(index: Any, ndim: int) -> tuple[Any, tuple[Any, ...]]:
    """Return the part of an index that is for the first axis (the classes), and the rest, for an array of `ndim` axes.

    Examples:
        >>> split_index((Ellipsis, 2), 3)
        (slice(None, None, None), (slice(None, None, None), 2))
    """
    keys = list(index) if isinstance(index, tuple) else [index]
    place = next((k for k, key in enumerate(keys) if key is Ellipsis), None)  # `in` would compare arrays with it
    if place is not None:
        keys[place : place + 1] = [slice(None)] * (ndim - len(keys) + 1)
    return keys[0], tuple(keys[1:])
