"""Data sets of the experiments, read from the folders that their authors distribute."""
