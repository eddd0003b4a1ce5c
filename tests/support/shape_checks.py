"""Shapes and dtypes checked in the tests, through jaxtyping's import hook; kernels against their plain form's types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook, jaxtyped

CHECKED = ("segcal.functional", "segcal.calibrators", "segcal.metrics", "segcal.regions")


class DeclinedError(Exception):
    """A kernel declined its input, so there is no result to check."""


def install() -> None:
    """Check the modules of `CHECKED`, and all kernels; must come before segcal is imported."""
    install_import_hook(CHECKED, "support.shape_checks.check")
    check_kernels()


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check arguments and result of a function; jaxtyping passes one stub for the arguments and one for both.

    Outside `segcal.functional`, only tensors are checked, and only after the function returned: wrong arguments from
    users are its own to report, and `Self` cannot be resolved by a function alone.
    """
    if not function.__module__.startswith("segcal.functional"):
        if function.__annotations__.get("return") is Any:  # the arguments, before the call
            return function
        annotations = {name: hint if has_shape(hint) else Any for name, hint in function.__annotations__.items()}
        function.__annotations__ = annotations
    return beartype(function)


def has_shape(hint: Any) -> bool:
    """Return whether a type hint is, or contains, a tensor with shape and dtype."""
    return (inspect.isclass(hint) and issubclass(hint, AbstractArray)) or any(map(has_shape, get_args(hint)))


def check_kernels() -> None:
    """Check every kernel against the annotations of its plain form."""
    from segcal.kernels import dispatch

    load = dispatch.Operation.kernel

    def checked(operation: Any, engine: Any) -> Callable[..., Any] | None:
        kernel = load(operation, engine)
        if kernel is None:
            return None

        @wraps(operation.plain)
        def run(*args: Any, **kwargs: Any) -> Any:
            found = kernel(*args, **kwargs)
            if found is dispatch.DECLINED:
                raise DeclinedError
            return found

        # annotations are strings, to be resolved in the module of the plain form
        run.__signature__ = inspect.signature(inspect.unwrap(operation.plain), eval_str=True)  # type: ignore[attr-defined]
        run = jaxtyped(run, typechecker=beartype)

        def run_or_decline(*args: Any, **kwargs: Any) -> Any:
            try:
                return run(*args, **kwargs)
            except DeclinedError:
                return dispatch.DECLINED

        return run_or_decline

    dispatch.Operation.kernel = checked  # type: ignore[method-assign]
