"""Run as a script by the tests: fit LTS on simulated scenes, in this process or under torchrun, and save the weights.

`python fit_in_process.py OUT CHECKPOINT KILL_AFTER`: with KILL_AFTER > 0 the process kills itself, as `kill -9` would,
in the middle of the epoch after that one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from segcal.calibrators.local import LocalTemperatureScaling
from segcal.cases import StreamedCase, stream
from segcal.data.sample.scenes import simulate
from segcal.training.processes import is_first_process
from segcal.training.settings import Epoch
from segcal.types import Slab


class Deadly(StreamedCase):
    """A case that kills the process, when the time has come, if it is the second one."""

    armed = False

    def crop(self, box: Sequence[slice]) -> Slab:
        if self.armed and self.name == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().crop(box)


def main(out: str, checkpoint: str, kill_after: int) -> None:
    """Fit, and save what was learned."""
    torch.set_num_threads(1)
    sizes = [(24, 24), (24, 24), (20, 28), (24, 24), (24, 24)]
    cases = [replace(simulate(1, size=size, seed=k)[0].case, name=f"{k}") for k, size in enumerate(sizes)]
    stream.StreamedCase = Deadly  # type: ignore[misc]

    def watch(epoch: Epoch) -> None:
        Deadly.armed = kill_after > 0 and epoch.number >= kill_after

    lts = LocalTemperatureScaling(5, image_channels=1)
    options = {"checkpoint": checkpoint} if checkpoint else {}
    lts.fit(
        cases,
        validation=cases[:3],
        epochs=6,
        learning_rate=1e-3,
        batch_size=2,
        crop=16,
        flips=True,
        cache_bytes=0,
        watch=watch,
        device="cpu",
        **options,
    )
    if is_first_process():
        save_file({name: value.contiguous() for name, value in lts.state_dict().items()}, Path(out))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
