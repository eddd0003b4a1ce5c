"""Every accelerated operation, by its name: the plain form and the kernel for the CPU, without a dispatcher between."""

from __future__ import annotations

import importlib
import pkgutil
from types import SimpleNamespace

import segcal.functional
from segcal.kernels.dispatch import OPERATIONS

for module in pkgutil.iter_modules(segcal.functional.__path__):
    importlib.import_module(f"segcal.functional.{module.name}")

NAMES = sorted(OPERATIONS)
PLAIN = SimpleNamespace(**{operation.name: operation.plain for operation in OPERATIONS.values()})
CPU = SimpleNamespace(**{operation.name: operation.kernel("cpu") for operation in OPERATIONS.values()})
