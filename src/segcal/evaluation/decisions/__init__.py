"""Decisions made with probabilities: thresholds with a guarantee, selective prediction, volumes with intervals."""

from segcal.evaluation.decisions.decide import decide
from segcal.evaluation.decisions.model import Decisions
from segcal.evaluation.decisions.tables import decision_tables, volume_table
from segcal.evaluation.decisions.volumes import new_volumes

__all__ = ["Decisions", "decide", "decision_tables", "new_volumes", "volume_table"]
