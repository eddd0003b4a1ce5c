"""Shapes and dtypes checked in the tests, through jaxtyping's import hook; kernels against their plain form's types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial, wraps
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, install_import_hook, jaxtyped

CHECKED = ("segcal.functional", "segcal.calibrators", "segcal.evidence", "segcal.regions")
as_type_errors = beartype(conf=BeartypeConf(violation_type=TypeCheckError))  # which segcal may catch, as it does others


class DeclinedError(Exception):
    """A kernel declined its input, so there is no result to check."""


def install() -> None:
    """Check the modules of `CHECKED`, and all kernels; must come before segcal is imported."""
    jaxtyping.jaxtyped = checked  # with which the hook decorates what it imports
    install_import_hook(CHECKED, "support.shape_checks.check")
    check_kernels()


def checked(function: Any = None, *, typechecker: Any) -> Any:
    """Decorate as `jaxtyped` does, in less time for each call: tests call these functions millions of times.

    Functions of `segcal.functional` are checked once, not before the call and once more after it. Other functions
    without a tensor in their signature have nothing to check.
    """
    if function is None:
        return partial(checked, typechecker=typechecker)
    if not inspect.isfunction(function):  # classes
        return jaxtyped(function, typechecker=typechecker)
    hints = {name: resolved(hint, function.__globals__) for name, hint in function.__annotations__.items()}
    has_shapes = any(map(has_shape, hints.values()))
    if not function.__module__.startswith("segcal.functional"):
        return jaxtyped(function, typechecker=typechecker) if has_shapes else function
    typed = beartyped(function, hints)
    return in_context(typed, function) if has_shapes else typed


def beartyped(function: Callable[..., Any], hints: dict[str, Any]) -> Callable[..., Any]:
    """Check the arguments and the result of a function against these hints."""
    written = function.__annotations__
    function.__annotations__ = hints
    typed: Callable[..., Any] = as_type_errors(function)
    function.__annotations__ = written
    return function if typed is function else wraps(function)(typed)  # the same if there is nothing to check


def in_context(typed: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Let names of dimensions have one size during each call of a function."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with jaxtyped("context"):
            return typed(*args, **kwargs)

    return run


def with_signature_of(function: Callable[..., Any], body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that has the parameters of one function and calls another."""
    signature = inspect.signature(function)
    bare = [value.replace(annotation=value.empty, default=value.empty) for value in signature.parameters.values()]
    listed = str(inspect.Signature(bare)).strip("()")
    passed = ", ".join(
        f"{value.name}={value.name}" if value.kind == value.KEYWORD_ONLY else value.name for value in bare
    )
    found = wraps(function)(eval(f"lambda {listed}: body({passed})", {"body": body}))
    found.__defaults__, found.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    del found.__wrapped__
    return found


def resolved(hint: Any, names: dict[str, Any]) -> Any:
    """Return the type that a hint says; Any where it cannot be known yet, as jaxtyping does."""
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"hint": hint}), names, include_extras=True)["hint"]
    except Exception:
        return Any


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

    def kernel(operation: Any, engine: Any) -> Callable[..., Any] | None:
        found = load(operation, engine)
        return None if found is None else checked_kernel(found, inspect.unwrap(operation.plain))

    @cache  # kernels are called a million times, and the code that checks one is compiled
    def checked_kernel(kernel: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            found = kernel(*args, **kwargs)
            if found is dispatch.DECLINED:
                raise DeclinedError
            return found

        hints = {name: resolved(hint, plain.__globals__) for name, hint in plain.__annotations__.items()}
        checked_run = in_context(beartyped(with_signature_of(plain, run), hints), plain)

        def run_or_decline(*args: Any, **kwargs: Any) -> Any:
            try:
                return checked_run(*args, **kwargs)
            except DeclinedError:
                return dispatch.DECLINED

        return run_or_decline

    dispatch.Operation.kernel = kernel  # type: ignore[method-assign]
