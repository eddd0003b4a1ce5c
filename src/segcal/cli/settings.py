"""Calibrators with their settings, which are read from signatures and docstrings, and given as `--set KEY=VALUE`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from segcal.calibrators import Calibrator, create
from segcal.cli.options import FitOptions, meaning_of
from segcal.data.folders.folder import Folder
from segcal.text import suggestion
from segcal.training.processes import choose_device
from segcal.training.settings import Training
from segcal.types import InputError

_DATA = ("num_classes", "spatial_dims", "image_channels", "ignore_index", "background")
_PRESET = ("epochs", "learning_rate", "batch_size")  # settings of training that a method decides
_SIMPLE: dict[Any, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    int: ("a whole number", int),
    float: ("a number", float),
    NoneType: ("none", lambda text: {"none": None}[text.lower()]),
}
"""Simple types in words, and what reads a value of one; it raises ValueError or KeyError for any other text."""


@dataclass(frozen=True)
class Setting:
    """One setting of a method.

    Attributes:
        name: Name of the parameter.
        hint: Its type.
        default: Its default; None where the method decides.
        meaning: Its description in a docstring.
        trains: Whether it is a parameter of `fit` instead of the constructor.
    """

    name: str
    hint: Any
    default: Any
    meaning: str
    trains: bool

    @property
    def values(self) -> str:
        """The values that it takes, in words."""
        return " or ".join(_kind(each)[0] for each in self._kinds if each is not NoneType)

    @property
    def described(self) -> str:
        """The meaning, with the values where they are of a simple type."""
        simple = self.values in (words for words, _ in _SIMPLE.values())
        return f"{self.meaning} ({self.values})" if simple else self.meaning

    @property
    def shown_default(self) -> str:
        """The default as it is typed; "" where the method decides."""
        if isinstance(self.default, list | tuple):
            return ",".join(map(str, self.default))
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return "" if self.default is None else str(self.default)

    def read(self, text: str) -> Any:
        """Return the value that a text stands for."""
        for each in sorted(self._kinds, key=lambda each: each is not NoneType):
            with suppress(KeyError, ValueError):
                return _kind(each)[1](text.strip())
        raise InputError(f"the setting '{self.name}' must be {self.values}, got '{text}'")

    @property
    def _kinds(self) -> tuple[Any, ...]:
        return get_args(self.hint) if get_origin(self.hint) in (Union, UnionType) else (self.hint,)


def settings_of(method: str) -> dict[str, Setting]:
    """Return the settings of a method by name: those of its constructor, then those of `fit`."""
    kind = type(create(method, num_classes=2))
    described = _descriptions([Training, *reversed(kind.__mro__)])
    found = {
        name: Setting(name, parameter.annotation, parameter.default, described.get(name, ""), False)
        for name, parameter in kind.settings().items()
        if name not in _DATA
    }
    hints = get_type_hints(Training)
    for name in (field.name for field in fields(Training) if field.name in kind.fit_settings - {"watch"}):
        default = None if name in _PRESET else getattr(Training, name)
        found[name] = Setting(name, hints[name], default, described.get(name, ""), True)
    return found


Chosen: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""Arguments of the constructor of a method, and of its `fit`."""


def chosen_settings(methods: Sequence[str], options: FitOptions, **ignorable: Any) -> dict[str, Chosen]:
    """Return the arguments of the constructor and of `fit` of each method.

    Args:
        methods: Names of the methods; each gets the settings that it has.
        options: What was given; at least one of the methods must have each setting.
        ignorable: Values by name that methods without such a setting ignore, since their result does not depend on it.
    """
    known = {method: settings_of(method) for method in methods}
    given: dict[str, Any] = {} if options.epochs is None else {"epochs": options.epochs}
    given |= dict(map(_pair, options.settings or ()))
    for name in given:
        if not any(name in own for own in known.values()):
            raise InputError(_unknown(name, known))
    shared = {"seed": options.seed, **ignorable}
    given = {**{name: value for name, value in shared.items() if value is not None}, **given}

    def read(own: Mapping[str, Setting], trains: bool) -> dict[str, Any]:
        mine = {name: value for name, value in given.items() if name in own and own[name].trains is trains}
        return {name: own[name].read(str(value)) for name, value in mine.items()}

    return {method: (read(own, False), read(own, True)) for method, own in known.items()}


def unfitted(
    chosen: Mapping[str, Chosen], folder: Folder, *, logits_only: bool, device: str
) -> dict[str, tuple[Calibrator, dict[str, Any]]]:
    """Return a calibrator of each method for the data of a folder, where it is fitted, and the arguments of its `fit`.

    Args:
        chosen: Result of `chosen_settings`.
        folder: The data.
        logits_only: Whether methods that can look at the image must not.
        device: Where to fit.
    """
    place, about = choose_device(device), meaning_of(folder)
    del about["class_names"]
    about |= {"spatial_dims": folder.spatial_dims, "image_channels": 0 if logits_only else folder.image_channels}
    found = {}
    for method, (constructor, training) in chosen.items():
        calibrator = create(method, **about, **constructor)
        found[method] = calibrator if "device" in calibrator.fit_settings else calibrator.to(place), training
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set needs KEY=VALUE, got '{text}'")
    return name.strip().replace("-", "_"), value


def _unknown(name: str, known: Mapping[str, Mapping[str, Setting]]) -> str:
    names = list(dict.fromkeys(key for own in known.values() for key in own))
    whose = f"'{next(iter(known))}' has no" if len(known) == 1 else f"none of {', '.join(known)} has a"
    have = f"the settings are {', '.join(names)}" if names else "there are no settings"
    return f"{whose} setting '{name}'; {have}{suggestion(name, names)}"


def _descriptions(kinds: Sequence[type]) -> dict[str, str]:
    r"""Return the entries under `Args:` in the docstrings of classes; later ones replace earlier ones.

    Examples:
        >>> class Sum: "Sum.\n\n    Args:\n        a: One\n            and more.\n        b: Two."
        >>> _descriptions([Sum])
        {'a': 'One and more.', 'b': 'Two.'}
    """
    found: dict[str, str] = {}
    for kind in kinds:
        _, _, below = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")
        block = re.split(r"\n(?=\S)", below)[0]
        entries = re.findall(r"^    (\w+): (.*(?:\n {5,}\S.*)*)", block, flags=re.MULTILINE)
        found |= {name: re.sub(r"\s+", " ", text) for name, text in entries}
    return found


def _kind(hint: Any) -> tuple[str, Callable[[str], Any]]:
    """Return the values of a type in words, and what reads one, as in `_SIMPLE`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None:
        return _SIMPLE.get(hint, ("text", hint))
    if origin is Literal:
        choices = {str(choice): choice for choice in arguments}
        return " or ".join(", ".join(choices).rsplit(", ", 1)), choices.__getitem__
    fixed = origin is tuple and Ellipsis not in arguments

    def read(text: str) -> tuple[Any, ...]:
        parts = [part for part in text.split(",") if part]
        kinds = arguments if fixed else [arguments[0]] * len(parts)
        return tuple(_kind(each)[1](part) for each, part in zip(kinds, parts, strict=True))

    return f"{len(arguments)} numbers with a comma between them" if fixed else "several with commas between them", read
