"""Scores given as logits or as probabilities: named by the caller, never guessed, and refused if values disagree."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from segcal.functional.checks import check_probabilities, probability_doubt
from segcal.functional.probability import logits_from_probabilities, logits_from_sigmoid
from segcal.types import Activation, InputError, Logits, Probs

Scores = Literal["logits", "probabilities"]


def check_scores(scores: Scores) -> Scores:
    """Return the kind of scores; raise unless it is one."""
    if scores not in get_args(Scores):
        raise InputError(f"scores must be 'logits' or 'probabilities', got '{scores}'")
    return scores


def logits_of(values: Logits | Probs, scores: Scores, activation: Activation) -> Tensor:
    """Return scores `[B, L, *S]` as logits; raise if the values contradict what they are said to be.

    Examples:
        >>> import torch
        >>> logits_of(torch.tensor([[0.25, 0.75]]), "probabilities", "softmax").softmax(dim=1)
        tensor([[0.2500, 0.7500]])
    """
    if scores == "logits":
        channels = slice(1) if activation == "sigmoid" else slice(None)
        if len(values) and (doubt := probability_doubt(values[0, channels])):
            raise InputError(f'{doubt.partition(";")[0]}; pass scores="probabilities", or give the logits')
        return values
    for k, image in enumerate(values):
        check_probabilities(image, exclusive=activation == "softmax", of=f"image {k} of the batch")
    return logits_from_sigmoid(values) if activation == "sigmoid" else logits_from_probabilities(values)
