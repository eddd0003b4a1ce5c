"""Memory-mapped files: their pages count as memory of the process until they are released."""

from __future__ import annotations

import mmap

_LARGE = 1 << 26
"""Size in bytes above which it is worthwhile to release the pages of a mapped file."""


def release_pages(array: object, *, least: int = _LARGE, unchanged: bool = False) -> None:
    """Release the memory of a large memory-mapped array; it is read from disk again if needed.

    The pages of a mapped file count as memory of the process, so that reading a volume once would keep all of it.

    Args:
        array: Any array; arrays that are not mapped are left alone.
        least: Size in bytes above which an array counts as large.
        unchanged: Whether nothing was written to an array that is copied on write; changes would be lost.
    """
    mapped = getattr(array, "_mmap", None)
    unchanged = unchanged or getattr(array, "mode", None) == "r"
    if isinstance(mapped, mmap.mmap) and unchanged and len(mapped) > least and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
