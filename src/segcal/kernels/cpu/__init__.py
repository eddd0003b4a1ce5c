"""The functions of `portable` compiled for the CPU: fused passes over pixels and regions, in float64 and int64.

A kernel works on a range of pixels and releases the GIL, so that a thread pool of PyTorch's size runs it; no parallel
runtime of numba's own is started beside PyTorch's.
"""

from segcal.kernels.cpu.compiling import may_compile
from segcal.kernels.cpu.division import scaled_logits, scaled_probabilities
from segcal.kernels.cpu.pixels import (
    describe,
    differs_along_axes,
    inside_box,
    likelihood,
    relabel,
    sum_is_finite,
)
from segcal.kernels.cpu.regions import count_between, count_cells, measure, quantile_edges, sums
from segcal.kernels.cpu.tree import tree_root

__all__ = [
    "count_between",
    "count_cells",
    "describe",
    "differs_along_axes",
    "inside_box",
    "likelihood",
    "may_compile",
    "measure",
    "quantile_edges",
    "relabel",
    "scaled_logits",
    "scaled_probabilities",
    "sum_is_finite",
    "sums",
    "tree_root",
]
