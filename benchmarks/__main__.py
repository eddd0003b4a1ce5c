"""`make bench`: all but memory and volume, or what is named: `python -m benchmarks metrics fitting`.

`python -m benchmarks gpu` needs a CUDA device. `python -m benchmarks memory` fits every method on 500 million pixels,
which takes hours; `--pixels` and `--methods` ask for less. `python -m benchmarks volume` calibrates one 57-class brain
in every file format, with 6 GB of temporary files. `python -m benchmarks shared` divides 2,000 images between
processes, with 25 GB of temporary files; `--images` asks for less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch

from benchmarks import (
    fitting,
    fusion,
    gpu,
    kernels,
    local,
    memory,
    metrics,
    page,
    shared,
    surfaces,
)
from benchmarks.timing import console

PARTS: dict[str, tuple[Callable[[], None], ...]] = {
    "metrics": (metrics.against_peers, metrics.exact_counts),
    "fitting": (fitting.against_peers,),
    "local": (local.against_nine_convolutions, local.applying),
    "streaming": (metrics.streaming,),
    "kernels": (kernels.paying,),
    "page": (page.building,),
    "surfaces": (surfaces.against_peers,),
    "fusion": (fusion.against_a_loop_and_antspyx,),
}


def main() -> None:
    """Run the parts named, or all but memory and volume."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=", ".join([*PARTS, "memory", "volume", "shared", "gpu"])
    )
    parser.add_argument("--pixels", type=int, default=memory.PIXELS, help="memory: how many to fit on")
    parser.add_argument("--images", type=int, default=shared.IMAGES, help="shared: how many to divide")
    of = "memory, volume, fitting: separated by commas; all if not given"
    parser.add_argument("--methods", default="", help=of)
    asked = parser.parse_args()
    chosen = [name for name in asked.methods.split(",") if name]
    known: dict[str, tuple[Callable[[], None], ...]] = {
        **PARTS,
        "fitting": (partial(fitting.against_peers, chosen),),
        "memory": (partial(memory.fitting, asked.pixels, chosen),),
        "volume": (partial(memory.volume, chosen),),
        "shared": (partial(shared.sharing, asked.images),),
        "gpu": (gpu.applying, gpu.counting, gpu.training, gpu.fitting),
    }
    if unknown := set(asked.parts) - set(known):
        parser.error(f"there is no '{unknown.pop()}'; there are {', '.join(known)}")
    console.print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    )
    for name in asked.parts or PARTS:
        for part in known[name]:
            console.print()
            part()


if __name__ == "__main__":
    main()
