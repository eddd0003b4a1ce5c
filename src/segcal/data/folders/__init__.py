"""Folders of cases: ours and those of other packages."""
