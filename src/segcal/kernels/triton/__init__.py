"""Kernels for CUDA in Triton, each the twin of a plain function of the same name in `segcal.functional`."""
