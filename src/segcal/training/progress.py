"""Progress of a training run: one record per epoch, the history, and a progress bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from segcal.progress import progress_of, stages_shown

_LAST = 0.1  # share of the epochs that decides whether the loss is still falling
_FALLING = 1e-4  # smallest relative decrease over those epochs that counts as falling


@dataclass(frozen=True)
class Epoch:
    """Result of one epoch; `best` says whether its weights are the best so far."""

    number: int
    of: int
    loss: float
    validation: float | None
    best: bool
    seconds: float


@dataclass
class History:
    """Results of all epochs of a run."""

    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = 0
    best_loss: float = float("inf")
    warnings: list[str] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        """Validation loss of each epoch; the training loss if there is no validation."""
        return [epoch.loss if epoch.validation is None else epoch.validation for epoch in self.epochs]

    def epochs_without_decrease(self) -> int:
        """Return for how many epochs the loss has not fallen by 0.01 %; a slow decrease adds up."""
        least, last = math.inf, 0
        for number, loss in enumerate(self.losses, 1):
            wanted = _FALLING * abs(least) if math.isfinite(least) else 0.0
            if loss < least - wanted:
                least, last = loss, number
        return len(self.epochs) - last

    def late_decrease(self) -> float:
        """Return by how much, relatively, the last tenth of the epochs lowered the least loss seen before them.

        0 if they did not lower it by at least 0.01 %; NaN losses count as no decrease. A run of one epoch cannot tell
        and is taken to be still falling.
        """
        if len(self.epochs) < 2:
            return 1.0
        last = max(1, round(_LAST * len(self.epochs)))
        before, after = (min(part, key=_nan_last) for part in (self.losses[:-last], self.losses[-last:]))
        decrease = (before - after) / abs(before) if before else 0.0
        return decrease if decrease >= _FALLING else 0.0


Watch = Callable[[Epoch], None]
Inspect = Callable[[int, nn.Module], None]
"""Receives the epoch's number and the objective that training would return if it ended now."""


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


@contextmanager
def progress_bar(*, description: str = "training", hidden: bool = False) -> Iterator[Watch]:
    """Show a bar on standard error with the losses of each epoch."""
    with progress_of(description, note=True, hidden=hidden) as progress:
        (task,) = progress.task_ids
        staged = False

        def show(text: str, number: int, of: int) -> None:
            nonlocal staged
            staged = True
            progress.update(task, description=f"{description}: {text}", completed=number - 1, total=of, note="")

        def watch(epoch: Epoch) -> None:
            note = f"loss {epoch.loss:.5f}"
            if epoch.validation is not None:
                note += f"  validation {epoch.validation:.5f}{' *' if epoch.best else ''}"
            if staged:
                progress.update(task, note=f"epoch {epoch.number} of {epoch.of}  {note}")
            else:
                progress.update(task, completed=epoch.number, total=epoch.of, note=note)

        with stages_shown(show):
            yield watch
