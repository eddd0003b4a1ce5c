"""The same numbers as `segcal.functional`, faster."""
