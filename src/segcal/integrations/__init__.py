"""segcal inside other packages; each module imports only what it needs, and says how to install what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from segcal.types import InputError


class MissingPackageError(ImportError, InputError):
    """A package of an extra that is not installed; on the command line one sentence, like every InputError."""


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Import packages of the extra `name` inside this block; the error says how to install what is missing."""
    try:
        yield
    except ImportError as error:
        message = f"this integration needs {error.name}, which cannot be imported ({error}); pip install segcal[{name}]"
        raise MissingPackageError(message, name=error.name) from error
