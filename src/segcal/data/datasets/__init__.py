"""Public data sets and simulated ones."""
