"""The case stream: the only reader of cases."""

from segcal.cases.collections import Subset, as_collection, no_cases, rater_cases
from segcal.cases.stream import CaseStream, StreamedCase

__all__ = ["CaseStream", "StreamedCase", "Subset", "as_collection", "no_cases", "rater_cases"]
