"""The operations of `segcal.functional`, faster: numba on the CPU, Triton on CUDA; `dispatch` chooses."""
