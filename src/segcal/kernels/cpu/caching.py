"""Compiled code on disk, kept where that is safe and possible; elsewhere functions are compiled in each process.

numba stores compiled functions in pickle files next to the source or in a folder of the user. Reading one runs whatever
it contains, so a folder that another user owns, or that everybody may write to, is not used. A damaged file is replaced
and a folder that cannot be written is done without: neither stops a calibration.
"""

from __future__ import annotations

import logging
import os
import stat
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache


def enable_caching(dispatcher: Any) -> None:
    """Let a numba dispatcher keep its machine code on disk."""
    try:
        found = _CarefulCache(dispatcher.py_func)  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError):  # "no locator available"
        _report("neither the folder of the package nor one of the user can be written")
        return
    if distrust := _distrust(Path(found.cache_path), Path(dispatcher.py_func.__code__.co_filename)):
        _report(distrust)
        return
    dispatcher._cache = found  # as dispatcher.enable_caching() does


class _CarefulCache(FunctionCache):
    """A cache whose failures cost time only."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored code for a signature; None if there is none, or if it cannot be read."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as error:  # a damaged pickle raises nearly anything
            self._give_up(error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code, if possible."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        try:
            self.flush()  # type: ignore[no-untyped-call]  # an empty index replaces a damaged one
        except Exception:
            self.disable()  # type: ignore[no-untyped-call]
            _report(f"{self.cache_path} cannot be used ({type(error).__name__})")


def _distrust(folder: Path, source: Path) -> str | None:
    """Return why files in a folder cannot be trusted, if they cannot.

    The owner of the source can run code here anyway, and so can root.
    """
    if not hasattr(os, "getuid"):  # Windows: the folder inherits the rights of the user's profile
        return None
    status, trusted = folder.stat(), {os.getuid(), 0}
    if source.exists():
        trusted.add(source.stat().st_uid)
    if status.st_uid not in trusted:
        return f"{folder} belongs to another user"
    return f"everybody may write to {folder}" if status.st_mode & stat.S_IWOTH else None


@cache
def _report(reason: str) -> None:
    logging.getLogger("segcal").warning(
        "compiled kernels are not kept on disk: %s. Each process compiles them again, which takes up to a minute; "
        "set NUMBA_CACHE_DIR to a folder of your own to avoid this.",
        reason,
    )
