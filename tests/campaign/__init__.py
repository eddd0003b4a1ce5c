"""Attacks on segcal: damaged input, kills, full disks, odd machines and mutants of its code (see `__main__`)."""
