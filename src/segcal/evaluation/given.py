"""Arguments of `segcal.evaluate` as users give them: methods by name or one calibrator, and its settings."""

from __future__ import annotations

from collections.abc import Mapping

from segcal.calibrators import Calibrator
from segcal.evaluation.mapping import Method
from segcal.evaluation.protocol import ProtocolSettings

UNCALIBRATED = "UC"


def methods_of(given: Mapping[str, Method] | Calibrator) -> Mapping[str, Method]:
    """Return methods by name; one calibrator is compared with the uncalibrated scores."""
    return {UNCALIBRATED: None, given.method.upper(): given} if isinstance(given, Calibrator) else given


def settings_of(given: Mapping[str, Method] | Calibrator, settings: ProtocolSettings) -> ProtocolSettings:
    """Return the settings, with those that one calibrator was built with where they are not given."""
    if not isinstance(given, Calibrator):
        return settings
    known: ProtocolSettings = {
        "num_classes": given.num_classes,
        "activation": given.activation,
        "ignore_index": given.ignore_index,
        "background": given.background,
    }
    return {**known, **settings}
