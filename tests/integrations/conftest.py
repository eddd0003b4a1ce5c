"""Packages that integrations are tested with."""

from __future__ import annotations

from support.torchvision_operators import define_missing_operators

define_missing_operators()
