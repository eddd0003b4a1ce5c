"""How much memory a piece of work takes: the peak of this process's resident memory, as the kernel counts it.

Linux keeps a high-water mark of the resident memory, exact between two resets, so that no peak is missed as it would be
by looking every few milliseconds. Elsewhere nothing is measured, and the answer is None.
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
    """How far memory grew, in bytes; None until the block is left, and where the system does not tell."""

    peak: int | None = None


@contextmanager
def memory_growth() -> Iterator[Growth]:
    """Measure how far the resident memory of this process rises above where it was; blocks must not be nested.

    It counts all that the process holds: pages of files that are mapped into memory, and what is compiled on first use.

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
    """Return freed memory to the system: taken up again unseen, it would be missing from the next growth."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only the GNU library has it
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    lines = (_PROCESS / "status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
