"""Integrations whose package is missing say which extra installs it."""

from __future__ import annotations

import importlib
import sys

import pytest

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
