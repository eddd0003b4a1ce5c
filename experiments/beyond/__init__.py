"""Contextual temperature scaling and the automatic choice against TS, ETS and LTS, over several splits and sizes."""
