"""Base of the methods that learn from the class probabilities ("scores") of single pixels.

They go through the cases twice: once to count the scores into a table, once to measure what was learned. See
`segcal.functional.scores` for the table.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Unpack

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import Survey, nothing_to_fit, pixels_of
from segcal.cases import CaseStream
from segcal.functional.scores import PiecewiseMap, ScoreHistogram, count_scores, empty_scores, mapped_log_probabilities
from segcal.kernels.constants import CELLS
from segcal.types import Image, Logits

_PART = 1 << 22
"""Scores that are calibrated at a time."""


class ScoreMap(NamedTuple):
    """A map of scores that a method fitted to a table of counts: its buffers, and what the report shall say."""

    values: Mapping[str, Tensor]
    steps: int = 1
    converged: bool = True
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}


class ScoreCalibrator(Calibrator):
    """A calibrator that is learned from a table of scores."""

    @abstractmethod
    def _fit_table(self, table: ScoreHistogram) -> ScoreMap:
        """Fit the map to the table of counts (on the CPU)."""

    @abstractmethod
    def _log_probabilities(self, logits: Logits) -> Float64[Tensor, "B L *S"]:
        """Return logarithms of calibrated probabilities, computed in float64."""

    def _score_edges(self) -> Float64[Tensor, " inner"] | None:
        """Return the inner edges of the bins that scores are counted in; None for the fine cells."""
        return None

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Learn from the scores of all labelled pixels; nothing is left to choose, so nothing is validated."""
        table, seen = self._count(stream)
        found = self._fit_table(ScoreHistogram(*(field.cpu() for field in table)))
        for name, value in found.values.items():
            self.register_buffer(name, value.to(self.fitted.device))
        with torch.no_grad():
            after = sum(self._nll(logits, labels) for logits, labels in pixels_of(stream))
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=after / seen.pixels,
            steps=found.steps,
            converged=found.converged,
            warnings=(*seen.doubts(0), *found.warnings),
            details=found.details,
        )

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return log-probabilities in float64: near 1, float32 does not tell probabilities apart."""
        if torch.compiler.is_compiling() or logits.numel() <= _PART:
            return self._map_part(logits)
        # in parts, since what is needed on the way is several times as large as the logits
        pixels = max(1, _PART // (logits.shape[0] * logits.shape[1]))
        parts = [self._map_part(part) for part in torch.split(logits.flatten(2), pixels, dim=2)]
        return torch.cat(parts, dim=2).view(logits.shape)

    def _map_part(self, logits: Logits) -> Float64[Tensor, "B L *S"]:
        calibrated = self._log_probabilities(logits)
        if not self.preserves_labels:
            return calibrated
        # the logarithm of the largest could come out below its neighbour's by one rounding
        return torch.minimum(calibrated, calibrated.gather(1, logits.argmax(dim=1, keepdim=True)))

    def _nll(self, logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> float:
        """Return the summed NLL of the calibrated scores of a slab; negative labels are left out."""
        total, size = 0.0, max(1, _PART // len(logits))
        for z, truth in zip(torch.split(logits, size, dim=1), torch.split(labels, size), strict=True):
            chosen = self._log_probabilities(z[None])[0].gather(0, truth.clamp(min=0)[None])[0]
            total -= float(chosen[truth >= 0].cpu().numpy().sum())  # numpy adds in one order for any number of threads
        return total

    def _count(self, stream: CaseStream) -> tuple[ScoreHistogram, Survey]:
        edges = self._score_edges()
        edges = None if edges is None else edges.to(stream.device)
        table = empty_scores(self.num_classes, CELLS if edges is None else len(edges) + 1, device=stream.device)
        parts = (count_scores(logits, labels, table, edges).cpu() for logits, labels in pixels_of(stream))
        pixels, right, nll = sum(parts, torch.zeros(3, dtype=torch.float64)).tolist()
        if pixels == 0:
            raise nothing_to_fit()
        support = table.hits.sum(dim=1).cpu()
        return table, Survey(nll / int(pixels), support, all_right=right == pixels, all_wrong=right == 0)


class PiecewiseCalibrator(ScoreCalibrator):
    """A calibrator that sends each score through a piecewise linear function and normalises what comes out."""

    breaks: Float64[Tensor, "G K"]
    left: Float64[Tensor, "G K1"]
    right: Float64[Tensor, "G K1"]

    def __init__(self, num_classes: int, **region: Unpack[FitRegion]) -> None:
        super().__init__(num_classes, **region)
        self._register_learned(breaks=(1, 1), left=(1, 2), right=(1, 2))

    def _log_probabilities(self, logits: Logits) -> Float64[Tensor, "B L *S"]:
        return mapped_log_probabilities(logits, PiecewiseMap(self.breaks, self.left, self.right))

    def _problem(self) -> str | None:
        if self.breaks.ndim != 2:
            return "'breaks' must have two axes"
        rows, ends = self.breaks.shape
        if rows not in (1, self.num_classes) or not self.left.shape == self.right.shape == (rows, ends + 1):
            return "the pieces of its maps do not belong together"
        return None if bool((self.breaks.diff(dim=1) >= 0).all()) else "'breaks' must ascend"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name in PiecewiseMap._fields:  # how many pieces there are was learned too
            if (value := state_dict.get(f"{prefix}{name}")) is not None:
                self.register_buffer(name, torch.empty(value.shape, dtype=torch.float64, device=self.fitted.device))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
