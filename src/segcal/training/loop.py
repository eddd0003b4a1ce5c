"""The one training loop: every learned calibrator and every network of the experiments goes through it.

What is trained is an *objective*, a module that maps a batch to the sum of its losses and their number. Sums rather
than means make the result independent of how a batch is split: over images of different size, and over the processes
of torchrun. All randomness is drawn from (seed, epoch, sample), so that a run that was killed resumes to the same
result, and two processes see what one would have seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from segcal.training.batches import Batch, Cache, Source, augmented, by_shape, to_device, whole
from segcal.training.checkpoints import Checkpoints, State
from segcal.types import InputError

Augment = Callable[[Batch, Sequence[np.random.Generator], int], Batch]
"""Changes a batch that is on the device already: the batch, a generator for each sample, and the epoch from 1."""


@dataclass(frozen=True)
class Settings:
    """How to train.

    Args:
        epochs: Passes over the data.
        learning_rate: Of the optimiser.
        batch_size: Samples in a step, over all processes together.
        whole_batches: Whether an epoch leaves out the samples, others each time, that do not fill a last batch.
        milestones: Epochs after which the learning rate is multiplied by `gamma`.
        gamma: See `milestones`.
        decay: Factor on the learning rate after every epoch.
        cosine: Whether the learning rate falls to 0 along a cosine.
        warmup: Epochs over which the learning rate rises from near 0 at the start.
        optimiser: "adam", or "adamw", whose weight decay is not scaled by the gradients.
        weight_decay: Of the optimiser.
        average: Share of the past that an average over the weights of all steps keeps in each step (0.99, say); that
            average, of the statistics of batch normalisation too, is then what is validated and kept. None: no average.
        patience: Stop after this many epochs without a better validation loss.
        crop: Side of random crops; whole samples where None.
        flips: Whether to flip samples along random axes.
        spatial_dims: How many axes space has; crops and flips need it.
        precision: "float32", or "bfloat16" for mixed precision.
        seed: Of everything random.
        device: "auto", "cpu", "cuda", ...
        cache_bytes: How much of the data may be kept in memory.
        checkpoint: Folder of checkpoints, from which an interrupted run goes on.
        checkpoint_every: Epochs between checkpoints.
    """

    epochs: int = 200
    learning_rate: float = 1e-4
    batch_size: int = 4
    whole_batches: bool = False
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    decay: float = 1.0
    cosine: bool = False
    warmup: int = 0
    optimiser: Literal["adam", "adamw"] = "adam"
    weight_decay: float = 0.0
    average: float | None = None
    patience: int | None = None
    crop: int | None = None
    flips: bool = False
    spatial_dims: int = 2
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    device: str = "auto"
    cache_bytes: int = 2 << 30
    checkpoint: str | Path | None = None
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.learning_rate > 0:
            raise InputError(
                "epochs and batch_size must be at least 1 and learning_rate positive, "
                f"got {self.epochs}, {self.batch_size} and {self.learning_rate}"
            )
        for name, least in (("seed", 0), ("patience", 1), ("crop", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
        if self.precision not in ("float32", "bfloat16"):
            raise InputError(f"precision must be 'float32' or 'bfloat16', got '{self.precision}'")
        if self.optimiser not in _OPTIMISERS:
            raise InputError(f"optimiser must be one of {', '.join(_OPTIMISERS)}, got '{self.optimiser}'")
        if self.average is not None and not 0 < self.average < 1:
            raise InputError(f"average must be between 0 and 1, got {self.average}")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        steps = sum(epoch >= milestone for milestone in self.milestones)
        wave = 0.5 * (1 + np.cos(np.pi * epoch / self.epochs)) if self.cosine else 1.0
        rise = min(1.0, (epoch + 1) / (self.warmup + 1))
        return float(self.learning_rate * self.gamma**steps * self.decay**epoch * wave * rise)

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to be of the same run."""
        places = ("device", "cache_bytes", "checkpoint", "checkpoint_every")
        return {name: _plain(value) for name, value in vars(self).items() if name not in places}


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave; `best` says whether its weights are the ones kept so far."""

    number: int
    of: int
    loss: float
    validation: float | None
    best: bool
    seconds: float


@dataclass
class History:
    """What the training gave."""

    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = 0
    best_loss: float = float("inf")
    warnings: list[str] = field(default_factory=list)


Watch = Callable[[Epoch], None]
Inspect = Callable[[int, nn.Module], None]
"""Is shown an epoch's number and the objective that the training would give if it ended there."""

_AVERAGED = "averaged/"
_OPTIMISERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def train(
    objective: nn.Module,
    source: Source,
    settings: Settings,
    *,
    validation: Source | None = None,
    augment: Augment | None = None,
    watch: Watch | None = None,
    inspect: Inspect | None = None,
) -> History:
    """Train `objective` in place; it ends with the weights of least validation loss, or the last without validation.

    Args:
        objective: Maps the tensors of a batch, each `[B, ..., *S]`, to the sum of losses and their number.
        source: What to learn from.
        settings: How.
        validation: What the best weights are chosen on, never cropped, flipped or augmented.
        augment: Applied to the batches of `source` on the device, after crops and flips.
        watch: Called after every epoch, in the first process only.
        inspect: Called before `watch`; it must leave the weights as they are.
    """
    if len(source) == 0:
        raise InputError("training needs at least one sample, got none; is the folder or the split empty?")
    device = choose_device(settings.device)
    with process_group(device):
        return _Run(objective.to(device), source, validation, settings, device, augment).go(watch, inspect)


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is a GPU where there is one, under torchrun the one of this process."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device '{name}' cannot be used ({str(error).splitlines()[0]}); try 'cpu'") from error


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started, if it did; gloo on CPU, NCCL on GPU."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def is_first_process() -> bool:
    """Whether this process is the one that writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def progress_bar(*, description: str = "training") -> Iterator[Watch]:
    """A bar on standard error with the loss and validation loss of each epoch, in the first process only."""
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    columns = (*bar, TextColumn("{task.fields[note]}"))
    console = Console(stderr=True)
    # elsewhere than in a terminal even a bar that vanishes leaves a blank line
    hidden = not (is_first_process() and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(description, total=None, note="")

        def watch(epoch: Epoch) -> None:
            seen = (
                "" if epoch.validation is None else f"  validation {epoch.validation:.5f}{' *' if epoch.best else ''}"
            )
            progress.update(task, completed=epoch.number, total=epoch.of, note=f"loss {epoch.loss:.5f}{seen}")

        yield watch


class _Run:
    """The state of one training: weights, optimiser, best weights so far, history."""

    def __init__(
        self,
        objective: nn.Module,
        source: Source,
        validation: Source | None,
        settings: Settings,
        device: torch.device,
        augment: Augment | None,
    ) -> None:
        self.objective, self.settings, self.device, self.augment = objective, settings, device, augment
        cache = Cache(settings.cache_bytes)
        self.source, self.validation = cache.wrap(source), None if validation is None else cache.wrap(validation)
        self.rank, self.world = _rank_and_world()
        self.parallel = DistributedDataParallel(objective) if self.world > 1 else objective
        self.optimiser = _OPTIMISERS[settings.optimiser](
            objective.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True if device.type == "cuda" else None,  # one kernel rather than a dozen for each step
        )
        self.averaged = None if settings.average is None else _Average(objective, settings.average)
        self.best = _copy(objective.state_dict())
        self.history = History()
        self.checkpoints = None if settings.checkpoint is None else Checkpoints(settings.checkpoint)

    def go(self, watch: Watch | None, inspect: Inspect | None) -> History:
        for number in range(self._resume() + 1, self.settings.epochs + 1):
            started = perf_counter()
            loss = self._learn(number)
            validation = None if self.validation is None else self.measure(self.validation)
            best = self._keep(number, validation)
            epoch = Epoch(number, self.settings.epochs, loss, validation, best, perf_counter() - started)
            self.history.epochs.append(epoch)
            if self.checkpoints and (number % self.settings.checkpoint_every == 0 or number == self.settings.epochs):
                self._save(number)
            if inspect is not None and self.rank == 0:
                inspect(number, self._outcome())
            if watch is not None and self.rank == 0:
                watch(epoch)
            patience = self.settings.patience
            if patience is not None and number - self.history.best_epoch >= patience:
                break
        self.objective.load_state_dict(self.best)
        return self.history

    def measure(self, source: Source) -> float:
        """Mean loss over a source, every sample whole."""
        module = self._outcome().eval()
        sums = self._zeros()
        with torch.no_grad():
            for index in range(self.rank, len(source), self.world):
                sums += self._forward(module, to_device([whole(source[index])], self.device))
        return _mean(self._all_sum(sums))

    def _learn(self, number: int) -> float:
        """One pass over the data in a random order."""
        settings = self.settings
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate(number - 1)
        order = np.random.default_rng([settings.seed, number]).permutation(len(self.source))
        sums = self._zeros()
        self.objective.train()
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(hash_seed(settings.seed, number, self.rank))  # for dropout
            end = len(order)
            if settings.whole_batches:
                end = max(end - end % settings.batch_size, min(end, settings.batch_size))
            for start in range(0, end, settings.batch_size):
                chosen = order[start : start + settings.batch_size]
                sums += self._step([int(index) for index in chosen], number)
        return _mean(self._all_sum(sums))

    def _step(self, chosen: Sequence[int], number: int) -> Tensor:
        """One step of the optimiser on this process's share of a batch; loss and weight of the share."""
        mine = chosen[self.rank :: self.world]
        # a process without a sample of its own takes part with a weight of 0, since the others wait for it
        share = 1.0 if mine else 0.0
        batches = self._batches(mine or chosen[:1], number)
        self.optimiser.zero_grad(set_to_none=True)
        sums = self._zeros()
        for k, batch in enumerate(batches):
            with nullcontext() if k == len(batches) - 1 else self._without_sync():
                found = share * self._forward(self.parallel, batch)
                torch.autograd.backward(found[0])
            sums += found.detach()
        # what DistributedDataParallel leaves is the mean over processes of summed gradients: turn it into the mean over
        # all losses of the batch. The number stays on the device, as to look at it would be to wait for the device
        weight = self._all_sum(sums)[1]
        factor = torch.where(weight > 0, self.world / weight, 0.0)
        gradients = [parameter.grad for parameter in self.objective.parameters() if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
        self.optimiser.step()
        if self.averaged is not None:
            self.averaged.update()
        return sums

    def _batches(self, chosen: Sequence[int], number: int) -> list[Batch]:
        """The samples, augmented and on the device, those of equal shape together."""
        seed = self.settings.seed
        randoms = [np.random.default_rng([seed, number, index]) for index in chosen]
        pairs = list(zip(chosen, randoms, strict=True))
        dims, crop, flips = self.settings.spatial_dims, self.settings.crop, self.settings.flips
        samples = [augmented(self.source[k], random, dims=dims, crop=crop, flips=flips) for k, random in pairs]
        groups = by_shape(samples)
        batches = [to_device([samples[k] for k in group], self.device) for group in groups]
        if self.augment is None:
            return batches
        return [
            self.augment(batch, [randoms[k] for k in group], number)
            for batch, group in zip(batches, groups, strict=True)
        ]

    def _forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """The sum of the losses and their number, as one tensor."""
        with self._precision():
            loss, weight = module(*batch)
        return torch.stack([loss.double(), weight.to(self.device).double()])

    def _outcome(self) -> nn.Module:
        """What the training would give if it ended now."""
        return self.objective if self.averaged is None else self.averaged.module

    def _zeros(self) -> Tensor:
        return torch.zeros(2, dtype=torch.float64, device=self.device)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _without_sync(self) -> AbstractContextManager[Any]:
        parallel = self.parallel
        return parallel.no_sync() if isinstance(parallel, DistributedDataParallel) else nullcontext()

    def _keep(self, number: int, validation: float | None) -> bool:
        better = validation is None or validation < self.history.best_loss
        if better:
            self.best = _copy(self._outcome().state_dict())
            self.history.best_epoch = number
            self.history.best_loss = float("inf") if validation is None else validation
        return better

    def _save(self, number: int) -> None:
        if self.rank == 0 and self.checkpoints is not None:
            weights = self.objective.state_dict()
            if self.averaged is not None:
                weights |= {_AVERAGED + name: value for name, value in self.averaged.module.state_dict().items()}
            state = State(number, weights, self.best, self.optimiser.state_dict(), self._notes())
            self.checkpoints.save(state)
        if self.world > 1:
            distributed.barrier()

    def _resume(self) -> int:
        """Load the newest checkpoint that is whole; the number of epochs done."""
        if self.checkpoints is None:
            return 0
        state, self.history.warnings = self.checkpoints.newest(self.settings.fingerprint())
        if state is None:
            return 0
        self.objective.load_state_dict({n: v for n, v in state.weights.items() if not n.startswith(_AVERAGED)})
        if self.averaged is not None:
            average = {n.removeprefix(_AVERAGED): v for n, v in state.weights.items() if n.startswith(_AVERAGED)}
            self.averaged.load(average)
        self.optimiser.load_state_dict(state.optimiser)
        self.best = _copy(state.best)
        notes = state.notes
        self.history.epochs = [Epoch(**epoch) for epoch in notes["epochs"]]
        self.history.best_epoch = notes["best_epoch"]
        self.history.best_loss = float("inf") if notes["best_loss"] is None else notes["best_loss"]
        return state.epoch

    def _notes(self) -> dict[str, Any]:
        finite = np.isfinite(self.history.best_loss)
        return {
            "settings": self.settings.fingerprint(),
            "epochs": [vars(epoch) for epoch in self.history.epochs],
            "best_epoch": self.history.best_epoch,
            "best_loss": self.history.best_loss if finite else None,
        }

    def _all_sum(self, values: Tensor) -> Tensor:
        if self.world == 1:
            return values
        total = values.clone()
        distributed.all_reduce(total)
        return total


class _Average:
    """A copy of a module whose numbers, but for counts, follow those of the module itself: an exponential average."""

    def __init__(self, objective: nn.Module, share: float) -> None:
        self.module, self.share, self.started = deepcopy(objective).requires_grad_(False), share, False
        pairs = zip(self.module.state_dict().values(), objective.state_dict().values(), strict=True)
        floating = [(mine.detach(), theirs.detach()) for mine, theirs in pairs if mine.is_floating_point()]
        self.mine, self.theirs = ([pair[k] for pair in floating] for k in (0, 1))

    def update(self) -> None:
        """Take in the weights after a step; those of the first are taken as they are."""
        torch._foreach_lerp_(self.mine, self.theirs, 1 - self.share if self.started else 1.0)
        self.started = True

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from an average that was saved."""
        self.module.load_state_dict(state)
        self.started = True


def hash_seed(*parts: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(list(parts)).generate_state(1, np.uint64)[0] >> 1)


def _rank_and_world() -> tuple[int, int]:
    if distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _mean(sums: Tensor) -> float:
    total, weight = sums.tolist()
    return total / weight if weight else float("nan")


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def override(settings: Settings, **changes: Any) -> Settings:
    """Settings with the changes that are not None."""
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})
