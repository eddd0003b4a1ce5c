"""`make bench`: everything, or what is named: `python -m benchmarks metrics fitting`."""

from __future__ import annotations

import sys

import torch

from benchmarks import fitting, local, metrics, page
from benchmarks.timing import console

PARTS = {
    "metrics": (metrics.against_peers, metrics.exact_counts),
    "fitting": (fitting.temperature_scaling,),
    "local": (local.against_nine_convolutions, local.applying),
    "streaming": (metrics.streaming,),
    "page": (page.building,),
}


def main(names: list[str]) -> None:
    """Run the parts named, or all."""
    console.print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    )
    for name in names or PARTS:
        for part in PARTS[name]:
            console.print()
            part()


if __name__ == "__main__":
    main(sys.argv[1:])
