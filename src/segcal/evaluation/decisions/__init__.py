"""Decisions made with probabilities: thresholds with a guarantee, selective prediction, volumes with intervals."""

from segcal.evaluation.decisions.decide import decide, new_volumes
from segcal.evaluation.decisions.model import Decisions, decision_tables, volume_table

__all__ = ["Decisions", "decide", "decision_tables", "new_volumes", "volume_table"]
