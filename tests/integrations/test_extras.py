"""Integrations whose package is missing say which extra installs it."""

from __future__ import annotations

import importlib
import sys

import pytest

from segcal.integrations.extras import needs_extra
from segcal.types import InputError

MODULES = {
    "hugging_face": ("huggingface_hub", "hf"),
    "monai": ("monai", "monai"),
    "lightning": ("lightning", "lightning"),
}


@pytest.mark.parametrize("name", MODULES)
def test_missing_package_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, extra = MODULES[name]
    for loaded in [loaded for loaded in sys.modules if loaded == package or loaded.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"segcal.integrations.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"needs {package}.*pip install segcal\[{extra}\]"):
        importlib.import_module(f"segcal.integrations.{name}")


def test_the_error_is_one_of_input_too() -> None:
    with pytest.raises(InputError, match=r"needs no_such_package.*pip install segcal\[x\]"), needs_extra("x"):
        import no_such_package  # noqa: F401
