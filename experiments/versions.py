"""Versions of the software and the device that produced the results."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch

from segcal.version import __version__


def versions() -> dict[str, Any]:
    """segcal, its libraries and the device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "segcal": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device,
    }
