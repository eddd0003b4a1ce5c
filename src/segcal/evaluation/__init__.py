"""Cases and calibrators in, results out: the protocol, the run, pooled figures, comparison and diagnosis."""
