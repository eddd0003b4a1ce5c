"""The contract of every calibrator: learn from cases, map logits to calibrated logits, save and load without pickle.

A method implements two hooks: `_learn`, which learns from a stream of cases, and `_map`, which maps logits. Methods
that divide by a temperature implement `_temperature` instead of `_map` (`calibrators.temperature`). Everything else is
written once, here: checks, time, the report, warnings, precision, the guard of the labels, slabs and saving.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Self, SupportsIndex, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from segcal.calibrators.report import FitReport, Learned
from segcal.calibrators.saving import write_calibrator
from segcal.calibrators.slabs import CalibratedSlab
from segcal.cases import CaseStream, StreamedCase
from segcal.cases.collections import Pair, known_cases
from segcal.files import staged_folder
from segcal.functional.checks import check_floating, check_logits, check_passes, ignored_labels
from segcal.functional.division import finite_in
from segcal.functional.probability import keep_labels, probabilities
from segcal.kernels.dispatch import engine_for, with_denormals
from segcal.text import counted, suggestion, warn_caller
from segcal.types import (
    MOST_CLASSES,
    Activation,
    Array,
    Case,
    IgnoreIndex,
    Image,
    InputError,
    Logits,
    Passes,
    Probs,
    check_whole,
    public,
)


class FitRegion(TypedDict, total=False):
    """Settings of every calibrator, as keywords that methods pass on: which pixels it is fitted on."""

    ignore_index: IgnoreIndex
    background: int | None


@public
class Calibrator(nn.Module, ABC):
    """A map from logits to calibrated logits.

    Args:
        num_classes: L, at least 2; see `calibrators.sigmoid` for sigmoid heads.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit, except for its pixels near a boundary (the region *All*); None fits on
            every labelled pixel.
    """

    method: ClassVar[str]
    """Its name in `segcal.create`."""

    preserves_labels: bool
    """True if the predicted label of every pixel is preserved; for most methods a property of the class."""

    activation: Activation = "softmax"
    """Softmax for logits of exclusive classes, sigmoid for those of channels."""

    context: int = 0
    """Reach of a pixel's result, in pixels: 0 for methods that read one pixel at a time."""

    image_channels: int = 0
    """Channels of the image that it reads besides the logits."""

    reads_passes: bool = False
    """True if it reads further passes over the image; its `_map` then has the argument `passes`."""

    spatial_dims: int | None = None
    """Number of spatial axes that it needs; None for any."""

    fit_settings: frozenset[str] = frozenset()
    """Names of the settings that `fit` takes besides the cases."""

    sized_by_fit: tuple[str, ...] = ()
    """Learned values of which a fit also finds how many there are."""

    fitted: Tensor
    fit_report_: FitReport
    _known_fitted = False

    def __init__(self, num_classes: int, *, ignore_index: IgnoreIndex = None, background: int | None = None) -> None:
        super().__init__()
        check_whole("num_classes", num_classes, 1, MOST_CLASSES)
        if num_classes == 1:
            raise InputError(
                "num_classes must be at least 2, got 1; "
                "for a one-logit (sigmoid) head use segcal.create with num_classes=1"
            )
        # plain numbers and tuples, so that the settings survive a round trip through JSON
        labels = ignored_labels(ignore_index)
        self.ignore_index = labels[0] if isinstance(ignore_index, SupportsIndex) else labels or None
        self.num_classes = int(num_classes)
        self.background = None if background is None else int(background)
        self.register_buffer("fitted", torch.tensor(False))

    # what a method writes

    @abstractmethod
    def _learn(self, stream: CaseStream, *, validation: CaseStream | None, settings: Any) -> Learned:
        """Learn from a stream of labelled cases; `settings` are what `_settings` makes of the arguments of `fit`."""

    @abstractmethod
    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return calibrated logits of finite logits, in the precision that suits the method."""

    def _settings(self, given: Any, changes: Mapping[str, Any]) -> Any:
        """Return the settings of `fit` for `_learn`: by default the keywords as they are."""
        return dict(changes) if given is None else given

    def _stream_options(self, settings: Any) -> dict[str, Any]:
        """Return where cases are kept during a fit: `device` and `memory` of the stream."""
        return {}

    def _problem(self) -> str | None:
        """Return what makes learned values unusable, if anything does; asked after loading, when all are numbers."""
        return next((problem for each in self.parts if (problem := each._problem())), None)

    def _summary(self) -> dict[str, object]:
        """Return the values that the repr of a fitted calibrator shows."""
        report = getattr(self, "fit_report_", None)
        return {"nll_before": report.nll_before, "nll_after": report.nll_after} if report else {}

    # what a user calls

    def fit(
        self,
        cases: Iterable[Case | Pair] | Array | Tensor,
        labels: Array | Tensor | None = None,
        *,
        validation: Iterable[Case | Pair] | None = None,
        settings: Any = None,
        **changes: Any,
    ) -> Self:
        """Learn from cases, which are read one at a time.

        Args:
            cases: Cases with labels, or pairs `(logits, labels)`; an iterator is kept as a list. With `labels`, the
                logits `[B, L, *S]` of a batch.
            labels: Labels `[B, *S]` of a batch.
            validation: Cases on which trained methods choose their weights; other methods do not use them.
            settings: All settings at once: `segcal.training.settings.Training`, for trained methods.
            changes: Single settings, for example `epochs=50`.
        """
        self.check_fit_settings(changes)
        held_out = None if validation is None else known_cases(validation)
        self._fit(known_cases(cases, labels), held_out, self._settings(settings, changes))
        for text in self.fit_report_.warnings:
            warn_caller(text)
        return self

    def check_fit_settings(self, names: Iterable[str]) -> None:
        """Raise unless `fit` takes settings of these names."""
        if unknown := sorted(set(names) - self.fit_settings):
            known = sorted(self.fit_settings - {"watch"})
            choice, hint = ", ".join(known) or "none", suggestion(unknown[0], known)
            raise InputError(f"'{self.method}' has no fit setting '{unknown[0]}'; it has {choice}{hint}")

    @with_denormals
    def forward(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Logits:
        """Return calibrated logits of the same shape and dtype; they are finite, even where a class is impossible."""
        finite = self._checked(logits, image)
        calibrated = finite_in(self._map(finite, image, **self._more(logits, passes)), logits.dtype)
        return keep_labels(calibrated, logits) if self.preserves_labels else calibrated

    @with_denormals
    def predict_proba(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Probs:
        """Return calibrated probabilities of the same shape and dtype as the logits."""
        calibrated = self._map(self._checked(logits, image), image, **self._more(logits, passes))
        probs = probabilities(finite_in(calibrated, calibrated.dtype)).to(logits.dtype)
        return keep_labels(probs, logits) if self.preserves_labels else probs

    def calibrate_case(self, case: Case | StreamedCase) -> Iterator[CalibratedSlab]:
        """Yield a case slab by slab; drop each slab before the next one is read.

        This is the one way in which cases are calibrated: `apply`, `evaluate`, portraits and validation go through it.
        """
        self._check_fitted()
        applied = self.applied
        yield from applied._calibrate_streamed(applied._streamed(case))

    @property
    def applied(self) -> Calibrator:
        """The calibrator that does the work: itself, or the one that it has chosen."""
        return self

    @property
    def parts(self) -> Sequence[Calibrator]:
        """The calibrators that do the work in its place; none for methods that do it themselves."""
        return ()

    @property
    def has_temperature(self) -> bool:
        """True if it divides logits by a temperature, which `temperature` returns."""
        return bool(self.parts) and all(each.has_temperature for each in self.parts)

    @property
    def uses_passes(self) -> bool:
        """True if it cannot calibrate without further passes."""
        return any(each.uses_passes for each in self.parts)

    @property
    def learned(self) -> int:
        """Number of learned values: all that it saves."""
        if self.parts:
            return sum(each.learned for each in self.parts)
        return sum(values.numel() for name, values in self.state_dict().items() if name != "fitted")

    def __repr__(self) -> str:
        """Method and main numbers instead of PyTorch's tree of modules."""
        numbers = self._summary() if self.fitted else {}
        shown = [f"{k}={f'{v:.4g}' if isinstance(v, float) else v}" for k, v in numbers.items()]
        state = [] if self.fitted else ["not fitted"]
        return f"{type(self).__name__}({', '.join([f'num_classes={self.num_classes}', *shown, *state])})"

    @classmethod
    def settings(cls) -> dict[str, inspect.Parameter]:
        """Return the parameters of the constructor by name, with those that it passes on to the constructor below."""
        found = dict[str, inspect.Parameter]()
        for kind in (kind for kind in cls.__mro__ if "__init__" in vars(kind)):
            _, *own = inspect.signature(vars(kind)["__init__"], eval_str=True).parameters.values()
            named = {each.name: each for each in own if each.kind is not each.VAR_KEYWORD}
            found = {**named, **found}
            if len(named) == len(own):
                break
        return found

    def config(self) -> dict[str, Any]:
        """Return the arguments that build an equal, unfitted calibrator."""
        return {name: getattr(self, name) for name in self.settings()}

    def identity(self) -> str:
        """Return a hash of settings, learned values and engine: calibrators with the same one give the same bits."""
        about = [self.method, self.config(), engine_for(self.fitted)]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for name, value in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: settings and report as JSON, learned values as safetensors."""
        self._check_fitted()
        with staged_folder(path) as folder:
            report = getattr(self, "fit_report_", None)
            write_calibrator(folder, self.method, self.config(), report, self.state_dict())

    # how the base does it

    def _register_learned(self, **shapes: tuple[int, ...]) -> None:
        """Add buffers of learned values, which `state_dict` carries: float64, NaN until fitted."""
        for name, shape in shapes.items():
            self.register_buffer(name, torch.full(shape, torch.nan, dtype=torch.float64))

    def _fit(self, cases: Iterable[Case], validation: Iterable[Case] | None, settings: Any) -> None:
        """Fit on cases, without Python warnings."""
        options = self._stream_options(settings)
        stream = self.stream(cases, **options)
        self._fit_stream(stream, None if validation is None else self.stream(validation, **options), settings)

    def _fit_stream(self, stream: CaseStream, validation: CaseStream | None, settings: Any) -> None:
        """Fit on a stream, and keep the report."""
        started = perf_counter()
        learned = self._learn(stream, validation=validation, settings=settings)
        prints = {facts.name: facts.fingerprint for facts in stream.facts}
        doubts = list(stream.doubts)
        if not learned.converged and not self.fit_settings:  # methods that are trained say more about it
            doubts.append(f"the search stopped after {counted(learned.steps, 'step')}, before it converged")
        doubts = [doubt for doubt in doubts if not any(doubt in text for text in learned.warnings)]
        self._finish(learned, len(stream), prints, perf_counter() - started, doubts)

    def _finish(
        self, learned: Learned, cases: int, prints: Mapping[str, str], seconds: float, doubts: Iterable[str] = ()
    ) -> None:
        """Keep the report: the only place that makes one."""
        found = replace(learned, warnings=(*learned.warnings, *doubts))
        self.fit_report_ = FitReport(
            **vars(found), cases=cases, seconds=seconds, names=tuple(prints), fingerprints=tuple(prints.values())
        )
        self.fitted.fill_(True)
        self.requires_grad_(False)

    def stream(
        self,
        cases: Iterable[Case],
        *,
        device: torch.device | None = None,
        memory: int | None = None,
        labelled: bool = True,
    ) -> CaseStream:
        """Return cases as the stream that a fit learns from."""
        return CaseStream(
            cases,
            self.num_classes,
            ignore_index=self.ignore_index,
            background=self.background,
            device=device or self.fitted.device,
            images=self.image_channels > 0,
            passes=self.reads_passes,
            labelled=labelled,
            memory=memory,
        )

    def _streamed(self, case: Case | StreamedCase) -> StreamedCase:
        """Return a case that can be read in slabs; one of a stream on the same device stays as it is."""
        if isinstance(case, StreamedCase):
            if case.device == self.fitted.device:
                return case
            case = case.case
        return self.stream([case], memory=0, labelled=False)[0]

    def _calibrate_streamed(self, case: StreamedCase) -> Iterator[CalibratedSlab]:
        """Yield the slabs of a case, whether fitted or not."""
        for slab in case.slabs(self.context):
            self._check_space(slab.logits, slab.image)
            yield CalibratedSlab(self, slab)
            del slab  # before the next is read

    def _check_fitted(self) -> None:
        if torch.compiler.is_compiling() or self._known_fitted:  # an exported graph cannot raise
            return
        if not self.fitted:
            raise InputError(f"this {type(self).__name__} has not been fitted; call fit, or load a fitted one")
        self._known_fitted = True  # to read `fitted` each time would wait for a GPU

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device but keep the precision of learned values, which `Module.half` would change.

        Edges of bins and temperatures are few, and rounding them changes probabilities. Logits of any precision can be
        calibrated as it is.
        """

        def keeping_precision(values: Tensor) -> Tensor:
            moved = fn(values)
            return moved if moved.dtype == values.dtype else values.to(moved.device)

        return super()._apply(keeping_precision, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._known_fitted = False
        for name in self.sized_by_fit:
            if (value := state_dict.get(f"{prefix}{name}")) is not None:
                self.register_buffer(name, torch.empty(value.shape, dtype=torch.float64, device=self.fitted.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _check(self, logits: Tensor, image: Tensor | None) -> None:
        """Raise unless it is fitted, and logits and image have the shapes that it was built for."""
        self._check_fitted()
        if isinstance(logits, np.ndarray):
            raise InputError("logits must be a tensor, got a NumPy array; give torch.from_numpy(logits)")
        if logits.ndim < 2 or logits.shape[1] != self.num_classes:
            raise InputError(
                f"logits must have shape (B, {self.num_classes}, *S), got {tuple(logits.shape)}; "
                f"this {type(self).__name__} was built for num_classes={self.num_classes}"
            )
        check_floating(logits)
        self._check_space(logits, image)

    def _check_space(self, logits: Tensor, image: Tensor | None) -> None:
        if self.image_channels:
            expected = (logits.shape[0], self.image_channels, *logits.shape[2:])
            if image is None or tuple(image.shape) != expected:
                got = "none" if image is None else f"shape {tuple(image.shape)}"
                raise InputError(
                    f"this {type(self).__name__} needs an image of shape {expected}, got {got}; "
                    "pass it, or build one with image_channels=0"
                )
        if self.context == 0 or torch.compiler.is_compiling():
            return
        dims = self.spatial_dims
        if dims is not None and logits.ndim != dims + 2:
            raise InputError(
                f"logits must have shape (B, {self.num_classes}, *S) with {dims} axes in S, got {tuple(logits.shape)}; "
                "set spatial_dims"
            )
        if 0 in logits.shape[2:]:
            raise InputError(f"logits must have a pixel along each axis, got shape {tuple(logits.shape)}; crop less")

    def _more(self, logits: Logits, passes: Passes | None) -> dict[str, Any]:
        """Return the further arguments of `_map`: checked passes, for methods that read them."""
        return {"passes": check_passes(passes, logits)} if self.reads_passes else {}

    def _checked(self, logits: Tensor, image: Tensor | None = None) -> Tensor:
        """Return logits that are all finite: minus infinity is replaced, NaN and plus infinity are refused."""
        self._check(logits, image)
        return check_logits(logits, self.num_classes, class_axis=1)
