"""Memory use of a block of code: the growth of this process's peak resident memory, as the kernel counts it.

Linux keeps a high-water mark of the resident memory, which is exact between two resets; polling every few milliseconds
would miss peaks. On other systems nothing is measured, and the growth is None.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"


class Growth:
    """Growth of memory in bytes; None inside the block, and on systems that do not report it."""

    peak: int | None = None


@contextmanager
def memory_growth() -> Iterator[Growth]:
    """Measure how far the resident memory of this process rises inside the block; blocks must not be nested.

    It counts everything the process holds, including pages of memory-mapped files and code compiled on first use.

    Examples:
        >>> with memory_growth() as growth:
        ...     held = bytearray(50_000_000)
        >>> growth.peak is None or growth.peak > 45_000_000
        True
    """
    growth = Growth()
    _give_back()
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
        before = _status("VmRSS")
    try:
        yield growth
    finally:
        with suppress(OSError, NameError):
            growth.peak = max(0, _status("VmHWM") - before)


def _give_back() -> None:
    """Return freed memory to the system; reused without being counted, it would be missing from the next growth."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    lines = (_PROCESS / "status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
