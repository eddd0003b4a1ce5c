"""Read the options of the calibration methods from their constructors and `fit` methods.

`python -m segcal.cli.derive_options` writes them to `method_options.json`, from which the help is made without torch.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from segcal.calibrators import Calibrator, create, methods
from segcal.cli.method_options import TABLE
from segcal.training.settings import Settings

_DATA = ("self", "num_classes", "spatial_dims", "image_channels", "ignore_index", "background")
_CASES = ("self", "cases", "validation", "watch")
SEVERAL = "Several methods"
COMMAND = "python -m segcal.cli.derive_options"


def derive() -> dict[str, Any]:
    """Return the content of the file: the title of each method, and each option with all that its help says."""
    kinds = {name: type(create(name, num_classes=2)) for name in methods()}
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for method, kind in kinds.items():
        for place, function, left_out in (("constructor", kind.__init__, _DATA), ("fit", kind.fit, _CASES)):
            for name, parameter in inspect.signature(function).parameters.items():
                if name not in left_out and parameter.kind is not parameter.VAR_KEYWORD:
                    entry = _described(kind, function, name, parameter.default)
                    found.setdefault((name, place), {})[method] = entry
    trained = [name for name in kinds if any(place == "fit" and name in by for (_, place), by in found.items())]
    options = [_merged(name, place, entries, kinds, trained) for (name, place), entries in found.items()]
    panels = list(dict.fromkeys(option["panel"] for option in options if option["place"] == "constructor"))
    options.sort(key=lambda option: panels.index(option["panel"]) if option["panel"] in panels else len(panels))
    return {"methods": {name: _title(kind) for name, kind in kinds.items()}, "options": options}


def _described(kind: type[Calibrator], function: Callable[..., Any], name: str, default: Any) -> dict[str, Any]:
    hint = get_type_hints(function)[name]
    type_name, choices = _type_of(hint, name)
    help_text = _documented(name, [function, *kind.__mro__, Settings])
    return {"kind": type_name, "choices": choices, "default": _words(default), "help": help_text, "on": default is True}


def _merged(
    name: str,
    place: str,
    entries: dict[str, dict[str, Any]],
    kinds: dict[str, type[Calibrator]],
    trained: Sequence[str],
) -> dict[str, Any]:
    """Return one option for all methods that have it; where they differ, the help says so method by method."""
    first = next(iter(entries.values()))
    types = {entry["kind"] for entry in entries.values()}
    if len(types) > 1:
        raise TypeError(f"'{name}' must have one type in all methods, got {', '.join(sorted(types))}; rename one")
    same = all(entry == first for entry in entries.values())
    training = f"Training ({', '.join(trained)})"
    panel = training if place == "fit" else _panel([kinds[method] for method in entries])
    text = first["help"]
    if not same and len({entry["help"] for entry in entries.values()}) > 1:
        text = " ".join(f"{method}: {entry['help']}" for method, entry in entries.items())
    elif panel == SEVERAL or (panel == training and list(entries) != list(trained)):
        text = f"{', '.join(entries)}: {text}"
    return {
        "name": name,
        "place": place,
        "kind": first["kind"],
        "methods": list(entries),
        "panel": panel,
        "help": text,
        "default": first["default"] if same else "",
        "choices": list(dict.fromkeys(choice for entry in entries.values() for choice in entry["choices"])),
        "on": all(entry["on"] for entry in entries.values()),
    }


def _panel(kinds: Sequence[type[Calibrator]]) -> str:
    """Return the title: that of the method, or of the one that the others inherit from, or one for unrelated ones."""
    names = ", ".join(kind.method for kind in kinds)
    base = next((kind for kind in kinds if all(issubclass(other, kind) for other in kinds)), None)
    return SEVERAL if base is None else f"{_title(base)} ({names})"


def _title(kind: type[Calibrator]) -> str:
    """Return the name of a class in words.

    >>> from segcal.calibrators import LocalTemperatureScaling
    >>> _title(LocalTemperatureScaling)
    'Local temperature scaling'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).capitalize()


def _type_of(hint: Any, name: str) -> tuple[str, list[str]]:
    """Return the type of an option and its choices."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = [part for part in get_args(hint) if part is not NoneType]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "str", [str(choice) for choice in arguments]
    if hint in (bool, int, float, str):
        return ("path" if name == "checkpoint" else hint.__name__), []
    if origin is tuple and arguments == (float, float):
        return "pair", []
    if inspect.isclass(origin) and issubclass(origin, Sequence) and arguments == (str,):
        return "list", []
    raise TypeError(f"'{name}' has a type that the command line does not know, {hint}; add it to {__name__}")


def _documented(name: str, places: Sequence[Any]) -> str:
    """Return what the first docstring that describes an argument says of it."""
    for place in places:
        if text := _arguments(inspect.cleandoc(place.__doc__ or "")).get(name):
            return text
    raise TypeError(f"'{name}' must be described under Args in the docstring of its class or of fit; add it there")


def _arguments(docstring: str) -> dict[str, str]:
    r"""Return the entries under `Args:` of a docstring.

    >>> _arguments("Sum.\n\nArgs:\n    a: One\n        and more.\n    b: Two.\n\nReturns:\n    c: Three.")
    {'a': 'One and more.', 'b': 'Two.'}
    """
    _, _, below = docstring.partition("Args:\n")
    block = re.split(r"\n(?=\S)", below)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}\S.*)*)", block, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in entries}


def _words(default: Any) -> str:
    if default is None or isinstance(default, bool):
        return ""
    return " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


def write(path: Path = TABLE) -> None:
    """Write the file."""
    path.write_text(json.dumps(derive(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
