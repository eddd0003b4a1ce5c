"""Evidence: the only thing that counts pixels. Metrics, curves, tables and thresholds are readings of it."""

from segcal.evidence.readings import read
from segcal.evidence.statistic import Evidence, Form, Histogram, Pixels, PixelStore, describe

__all__ = ["Evidence", "Form", "Histogram", "PixelStore", "Pixels", "describe", "read"]
