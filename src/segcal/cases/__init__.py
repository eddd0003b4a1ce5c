"""The case stream: the only reader of cases."""

from segcal.cases.collections import as_collection, no_cases, rater_cases, subset
from segcal.cases.stream import CaseStream, StreamedCase

__all__ = ["CaseStream", "StreamedCase", "as_collection", "no_cases", "rater_cases", "subset"]
