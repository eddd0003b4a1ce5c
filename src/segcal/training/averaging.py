"""An exponential moving average of the weights of a module."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn


class Average:
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

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved average."""
        self.module.load_state_dict(state)
        self.started = True
