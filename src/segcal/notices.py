"""The warnings of segcal, in a module that imports nothing, so that the commands can handle them from the start."""


class CalibrationWarning(UserWarning):
    """Data or settings that give an answer, but perhaps not to the question that was meant; says what to do."""

    __module__ = "segcal"  # as `segcal.types.public` does for other names
