"""The one training loop: every trained calibrator and every network of the experiments goes through it.

What is trained is an *objective*: a module that maps a batch to the sum of its losses and their number. Sums instead
of means make the result independent of how a batch is split, over images of different size and over the processes of
torchrun. All random numbers are drawn from (seed, epoch, sample), so that a killed run resumes to the same result and
two processes see what one would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from segcal.files.prefetch import prefetch
from segcal.kernels.dispatch import device_turn
from segcal.training.batches import Batch, SampleList, Source, as_source, augmented, by_shape, to_device
from segcal.training.checkpoints import Checkpoints, TrainingState
from segcal.training.processes import choose_device, process_group, rank_and_world, sum_over_processes
from segcal.training.recording import Recorder
from segcal.training.settings import OPTIMISERS, Epoch, History, Inspect, Training
from segcal.types import InputError

Augment = Callable[[Batch, Sequence[np.random.Generator], int], Batch]
"""Changes a batch on the device: the batch, a random generator for each sample, and the epoch counted from 1."""

_AVERAGED = "weights/averaged"


def train(
    objective: nn.Module,
    source: Source | SampleList,
    settings: Training,
    *,
    validation: Source | SampleList | None = None,
    augment: Augment | None = None,
    inspect: Inspect | None = None,
    record: bool = False,
    about: Mapping[str, Any] | None = None,
) -> History:
    """Train `objective` in place; it ends with the weights of least validation loss, or the last without validation.

    Args:
        objective: Maps the tensors of a batch, each `[B, ..., *S]`, to the sum of the losses and their number.
        source: Samples to train on.
        settings: How to train.
        validation: Samples on which the best weights are chosen, each as its source measures it.
        augment: Applied to the batches of `source` on the device, after crops and flips.
        inspect: Called after every epoch, before `settings.watch`; it must not change the weights.
        record: Replay each step as a CUDA graph on a GPU. The objective must not branch on the values of tensors.
        about: What is trained on which data, by name, as JSON can hold it; checkpoints of another run are refused.
    """
    if len(source) == 0:
        raise InputError("training needs at least one sample, got none; is the folder or the split empty?")
    if torch.is_inference_mode_enabled():  # what is made in this mode can never have a gradient
        raise InputError("training needs gradients, which torch.inference_mode() rules out; fit outside of it")
    device, checkpoints = choose_device(settings.device), None
    if settings.checkpoint is not None:
        checkpoints = Checkpoints(settings.checkpoint, {**settings.fingerprint(), **(about or {})})
    with process_group(device), torch.enable_grad():  # callers often predict and fit in one block without gradients
        # without a name, so that its DistributedDataParallel is gone before the process group is: later it hangs
        return _TrainingRun(
            objective.to(device),
            as_source(source),
            settings,
            device,
            None if validation is None else as_source(validation),
            augment,
            checkpoints,
        ).go(inspect, record=record)


class _Sums(nn.Module):
    """The objective with the sum of the losses and their number as one tensor."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, *batch: Tensor) -> Tensor:
        loss, weight = self.objective(*batch)
        return torch.stack([loss.double(), weight.to(loss.device).double()])


class _Average:
    """A copy of a module whose floating-point values follow the module's as an exponential moving average."""

    def __init__(self, objective: nn.Module, decay: float) -> None:
        self.module, self.decay, self.started = deepcopy(objective).requires_grad_(False), decay, False
        pairs = zip(self.module.state_dict().values(), objective.state_dict().values(), strict=True)
        floating = [(mine.detach(), theirs.detach()) for mine, theirs in pairs if mine.is_floating_point()]
        self.mine, self.theirs = ([pair[k] for pair in floating] for k in (0, 1))

    def update(self) -> None:
        """Take in the weights after a step; those of the first step are copied."""
        torch._foreach_lerp_(self.mine, self.theirs, 1 - self.decay if self.started else 1.0)
        self.started = True


@dataclass
class _TrainingRun:
    """The state of one training run: weights, optimiser, best weights so far, history."""

    objective: nn.Module
    source: Source
    settings: Training
    device: torch.device
    validation: Source | None = None
    augment: Augment | None = None
    checkpoints: Checkpoints | None = None
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self.rank, self.world = rank_and_world()
        self.sums = _Sums(self.objective)
        self.parallel = DistributedDataParallel(self.sums) if self.world > 1 else self.sums
        self.optimiser = OPTIMISERS[settings.optimiser](
            self.objective.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True if self.device.type == "cuda" else None,  # one kernel instead of a dozen for each step
        )
        self.averaged = None if settings.average is None else _Average(self.objective, settings.average)
        self.best = _copy(self.objective.state_dict())
        self.history = History()

    def go(self, inspect: Inspect | None, *, record: bool) -> History:
        self.recorder = Recorder(self.sums) if record and self.world == 1 else None
        for number in range(self._resume() + 1, self.settings.epochs + 1):
            started = perf_counter()
            loss = self._learn(number)
            validation = None if self.validation is None else self._validate(self.validation)
            best = self._keep(number, validation)
            epoch = Epoch(number, self.settings.epochs, loss, validation, best, perf_counter() - started)
            self.history.epochs.append(epoch)
            if self.checkpoints and (number % self.settings.checkpoint_every == 0 or number == self.settings.epochs):
                self._save(number, self.checkpoints)
            if inspect is not None and self.rank == 0:
                inspect(number, self._outcome())
            if self.settings.watch is not None and self.rank == 0:
                self.settings.watch(epoch)
            if self.settings.has_settled(self.history.epochs_without_decrease(), len(self.source)):
                break
        self.objective.load_state_dict(self.best)
        return self.history

    def _validate(self, validation: Source) -> float:
        """Return the mean loss over the validation samples."""
        module, sums = self._outcome().eval(), self._zeros()
        with torch.no_grad(), self._precision():
            for index in range(self.rank, len(validation), self.world):
                loss, weight = validation.measure(module, index, self.device)
                sums += torch.stack([loss.double(), weight.to(loss.device).double()])
        return _mean(sum_over_processes(sums))

    def _learn(self, number: int) -> float:
        """Go through the data once, in random order; return the mean loss."""
        settings = self.settings
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate(number - 1)
        order = np.random.default_rng([settings.seed, number]).permutation(len(self.source))
        end = len(order)
        if settings.whole_batches:
            end = max(end - end % settings.batch_size, min(end, settings.batch_size))
        steps = [order[start : start + settings.batch_size].tolist() for start in range(0, end, settings.batch_size)]
        ahead = self.device.type == "cuda" and not self.source.is_on_device
        sums = self._zeros()
        self.sums.train()
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(hash_seed(settings.seed, number, self.rank))  # for dropout
            batches = (self._batches(chosen, number) for chosen in steps)
            for chosen, prepared in zip(steps, prefetch(batches) if ahead else batches, strict=True):
                # here rather than ahead, since an augmentation may draw from PyTorch's generators, as dropout does
                augment = self.augment or (lambda batch, *_: batch)
                ready = [augment(batch, randoms, number) for batch, randoms in prepared]
                with device_turn if self.device.type == "cuda" else nullcontext():
                    sums += self._step(ready, share=1.0 if self._mine(chosen) else 0.0)
        return _mean(sum_over_processes(sums))

    def _mine(self, chosen: Sequence[int]) -> Sequence[int]:
        """Return this process's share of a batch."""
        return chosen[self.rank :: self.world]

    def _step(self, batches: list[Batch], share: float) -> Tensor:
        """Take one optimiser step on this process's share of a batch; return its loss and weight."""
        self.optimiser.zero_grad(set_to_none=True)
        sums = self._zeros()
        call = self.recorder if self.recorder is not None and len(batches) == 1 else self.parallel
        for k, batch in enumerate(batches):
            with nullcontext() if k == len(batches) - 1 else self._without_sync():
                with self._precision():
                    found = share * call(*batch)
                torch.autograd.backward(found[0])
            sums += found.detach()
        # DistributedDataParallel leaves the mean over processes of the summed gradients: turn it into the mean over all
        # losses of the batch. The number stays on the device, since reading it would wait for the device
        weight = sum_over_processes(sums)[1]
        factor = torch.where(weight > 0, self.world / weight, 0.0)
        gradients = [parameter.grad for parameter in self.objective.parameters() if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
        self.optimiser.step()
        if self.averaged is not None:
            self.averaged.update()
        return sums

    def _batches(self, chosen: Sequence[int], number: int) -> list[tuple[Batch, list[np.random.Generator]]]:
        """Return the samples as batches on the device, each with the random generators of its samples.

        A process without a sample of its own takes part with a weight of 0, since the others wait for it.
        """
        mine = self._mine(chosen) or chosen[:1]
        randoms = [np.random.default_rng([self.settings.seed, number, index]) for index in mine]
        pairs = list(zip(mine, randoms, strict=True))
        dims, crop, flips = self.settings.spatial_dims, self.settings.crop, self.settings.flips
        samples = [augmented(self.source, k, random, dims=dims, crop=crop, flips=flips) for k, random in pairs]
        return [
            (to_device([samples[k] for k in group], self.device), [randoms[k] for k in group])
            for group in by_shape(samples)
        ]

    def _outcome(self) -> nn.Module:
        """Return what training would return if it ended now."""
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

    def _save(self, number: int, checkpoints: Checkpoints) -> None:
        if self.rank == 0:
            checkpoints.save(self._state(number, self.optimiser.state_dict()["state"]))
        if self.world > 1:
            distributed.barrier()

    def _state(self, number: int, moments: Mapping[int, Mapping[str, Tensor]]) -> TrainingState:
        parts: dict[str, Mapping[str, Tensor]] = {"weights": self.objective.state_dict(), "best": self.best}
        parts |= {f"moments/{parameter}": values for parameter, values in moments.items()}
        if self.averaged is not None:
            parts[_AVERAGED] = self.averaged.module.state_dict()
        tensors = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        history = self.history
        notes = {"best_epoch": history.best_epoch, "best_loss": history.best_loss}
        return TrainingState(number, tensors, {**notes, "epochs": [vars(epoch) for epoch in history.epochs]})

    def _resume(self) -> int:
        """Load the newest undamaged checkpoint; return the number of epochs done."""
        if self.checkpoints is None:
            return 0
        parameters = dict(enumerate(self.objective.parameters()))
        start = self._state(0, {number: _first_moments(parameter) for number, parameter in parameters.items()})
        state, self.history.warnings = self.checkpoints.newest(start)
        if state is None:
            return 0
        self.objective.load_state_dict(state.part("weights"))
        if self.averaged is not None:
            self.averaged.module.load_state_dict(state.part(_AVERAGED))
            self.averaged.started = True
        moments = {number: found for number in parameters if (found := state.part(f"moments/{number}"))}
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        self.best = state.part("best")
        notes = state.notes
        self.history.epochs = [Epoch(*(epoch[part.name] for part in fields(Epoch))) for epoch in notes["epochs"]]
        self.history.best_epoch, self.history.best_loss = notes["best_epoch"], notes["best_loss"]
        return state.epoch


def _first_moments(parameter: Tensor) -> dict[str, Tensor]:
    """Return values of the shapes and types that Adam and AdamW keep for a parameter."""
    return {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}


def hash_seed(*parts: int) -> int:
    """Return one seed made from several numbers."""
    return int(np.random.SeedSequence(list(parts)).generate_state(1, np.uint64)[0] >> 1)


def _mean(sums: Tensor) -> float:
    total, weight = sums.tolist()
    return total / weight if weight else float("nan")


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}
