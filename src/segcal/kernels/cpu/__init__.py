"""Kernels for the CPU, each the twin of a plain function of the same name in `segcal.functional`.

Most are compiled by numba: fused passes over pixels and regions, in float64 and int64. A compiled function works on a
range of pixels and releases the GIL, so that a few threads run it side by side (`compiling.run_all`);
numba's parallel runtime is never started next to PyTorch's.

Small operations use numpy on one thread: to wake PyTorch's threads takes longer than such an operation, and they then
spin for milliseconds.
"""
