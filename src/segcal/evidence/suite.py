"""Streaming calibration metrics: exact counts in constant memory, merged by addition, also between processes."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from segcal.evidence.readings import class_table, equal_mass_error, read, reliability_curve
from segcal.evidence.scores import Scores, check_scores, logits_of
from segcal.evidence.statistic import Evidence, Form, Histogram, describe, equal_edges
from segcal.functional.catalogue import METRICS
from segcal.functional.channels import exclusive_problems
from segcal.functional.checks import (
    activation_of,
    check_batches,
    check_integers,
    check_labels,
    check_logits,
    ignored_labels,
)
from segcal.functional.counting import Totals, add_unchecked_batch, positions
from segcal.functional.probability import probabilities
from segcal.kernels.dispatch import engine_for
from segcal.types import (
    MOST_BINS,
    Activation,
    IgnoreIndex,
    InputError,
    Labels,
    Logits,
    Mask,
    Masks,
    check_whole,
    public,
)


class RegionMetrics(dict[str, Any]):
    """Metrics under flat names such as `all_ece`, as loggers expect them; those of a region under its name."""

    def __missing__(self, region: str) -> dict[str, Tensor]:
        """Return the metrics of a region by their names."""
        flat = {name: f"{region}_{name}" for name in (*METRICS, "pixels")}
        found = {name: self[key] for name, key in flat.items() if key in self}
        if not found:
            raise KeyError(region)
        return found

    def __reduce__(self) -> tuple[type[RegionMetrics], tuple[dict[str, Any]]]:
        """Return how it is rebuilt: from a plain dictionary, which `torch.load` reads without trusting the file."""
        return RegionMetrics, (dict(self),)


torch.serialization.add_safe_globals([RegionMetrics])


@public
class CalibrationSuite(Metric):
    """ECE, MCE, SCE, ACE, NLL, Brier score, entropy, accuracy and mIoU, pooled over all pixels shown.

    Examples:
        >>> suite = CalibrationSuite(num_classes=2, ignore_index=255)
        >>> suite.update(torch.tensor([[[0.0, 0.0, 9.0], [1.0, 2.0, 0.0]]]), torch.tensor([[1, 0, 255]]))
        >>> found = suite.compute()["all"]
        >>> {name: round(float(found[name]), 3) for name in ("ece", "accuracy")}
        {'ece': 0.575, 'accuracy': 0.5}

    Counts are int64 and sums float64. ACE needs equal-mass bins, which are read from a fine histogram of 65,536 cells
    (24 bytes per cell, class and region); `ace_error_bound` returns a bound of the error.

    A sigmoid head is measured channel by channel, each as two classes. `compute` then gives the mean over channels, and
    `compute_channels` the figures of each.

    Args:
        num_classes: Number of classes L, or of sigmoid channels C.
        ignore_index: Label, or labels, to ignore.
        regions: Names of the regions that are measured separately; `update` takes a mask for each.
        bins: Number of confidence bins R.
        form: Form of SCE and ACE: "tables", "equations" or "marginal" (see `segcal.evidence.readings`).
        per_image: Whether to keep the metrics of every image too, with exact equal-mass bins, for `compute_images`.
        activation: "softmax" for exclusive classes, "sigmoid" for channels that may overlap; by default a softmax, or a
            sigmoid if `num_classes` is 1.
        scores: What `update` is given: "logits", or "probabilities" of a network that ends in a softmax or a sigmoid.
        kwargs: Arguments of `torchmetrics.Metric`.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    problems: Tensor
    """See `add_unchecked_batch`."""
    _edges: Tensor
    _ignored: Tensor
    images: list[Tensor] | Tensor  # a tensor while gathered from other processes

    def __init__(
        self,
        num_classes: int,
        ignore_index: IgnoreIndex = None,
        *,
        regions: Sequence[str] = ("all",),
        bins: int = 10,
        form: Form = "tables",
        per_image: bool = False,
        activation: Activation | None = None,
        scores: Scores = "logits",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_whole("num_classes", num_classes, 1, 1 << 16)
        check_whole("bins", bins, 1, MOST_BINS)
        if form not in ("tables", "equations", "marginal"):
            raise InputError(f"form must be 'tables', 'equations' or 'marginal', got '{form}'")
        self.num_classes, self.ignore_index, self.bins, self.form = num_classes, ignore_index, bins, form
        self.regions, self.per_image, self.scores = tuple(regions), per_image, check_scores(scores)
        self.activation = activation_of(activation, num_classes)
        self.channels = num_classes if self.activation == "sigmoid" else 1
        classes = 2 if self.activation == "sigmoid" else num_classes
        nothing = Evidence.zeros(len(self.regions), classes, bins, cells=True, marginal=form == "marginal")
        self._names = tuple(nothing.tensors())
        for name, value in nothing.tensors().items():  # of each channel and region
            self.add_state(name, value.expand(self.channels, *value.shape).clone(), "sum")
        self.add_state("images", [], "cat")
        self.add_state("problems", torch.zeros(2, dtype=torch.int64), "max")
        # kept here, since to copy them to a GPU with every batch would wait for it
        edges, ignored = equal_edges(bins), torch.tensor(ignored_labels(ignore_index)).long()
        self.register_buffer("_edges", edges, persistent=False)
        self.register_buffer("_ignored", ignored, persistent=False)

    def update(self, logits: Logits, labels: Labels | Masks, mask: Mask | Mapping[str, Mask] | None = None) -> None:
        """Add a batch.

        On a GPU, batches are added in one pass that does not wait for the device: labels that are no class and scores
        that are not finite are left out, and the next call that returns numbers raises.

        Args:
            logits: Scores `[B, L, *S]`; see `scores`.
            labels: True classes `[B, *S]`, or masks of 0 and 1 `[B, C, *S]` of sigmoid channels.
            mask: Pixels to measure, or those of each region; by default every pixel that is not ignored.
        """
        if self.scores == "probabilities":
            logits = logits_of(logits, self.scores, self.activation)
        problems = exclusive_problems(logits, labels, self.num_classes, self.activation)
        if not self.per_image and self.form != "marginal" and engine_for(logits, labels) == "triton":
            for k, (scores, truth) in enumerate(problems):
                self._add_unchecked(scores, truth, mask, k)
            return
        checked = [self._checked(scores, truth, mask) for scores, truth in problems]
        if self.scores == "logits":
            logits_of(logits, self.scores, self.activation)  # raises if they are probabilities
        for k, batch in enumerate(checked):
            self._evidence(k).add(*batch)
        if self.per_image:
            for image in range(len(logits)):
                rows = [self._image_metrics(z[image], y[image], masks[:, image]) for z, y, masks in checked]
                self.images.append(torch.stack(rows).unsqueeze(0))  # type: ignore[union-attr]

    def compute(self) -> RegionMetrics:
        """Return every metric of each region, pooled: `compute()["all"]["ece"]`; NaN for a region without pixels.

        The items are flat, `("all_ece", ...)`, for `MetricCollection` and loggers. Of several sigmoid channels they are
        means over the channels that have pixels; pixels are added up.
        """
        found = read(self._checked_evidence(), form=self.form)
        by_region = self._by_region({name: _over_channels(name, values, 0) for name, values in found.items()})
        return RegionMetrics(
            {f"{region}_{name}": value for region, own in by_region.items() for name, value in own.items()}
        )

    def items(self) -> ItemsView[str, Tensor]:
        """Return the items of `compute`, so that Lightning logs the suite: `self.log_dict(suite)`."""
        return self.compute().items()

    def compute_channels(self) -> list[dict[str, dict[str, Tensor]]]:
        """Return what `compute` returns for each sigmoid channel: `compute_channels()[0]["all"]["ece"]`."""
        with self._synced():
            found = read(self._checked_evidence(), form=self.form)
        return [self._by_region({name: values[k] for name, values in found.items()}) for k in range(self.channels)]

    def compute_images(self) -> dict[str, dict[str, Tensor]]:
        """Return every metric of each image: `compute_images()["all"]["ece"]` has one value per image, in order."""
        if not self.per_image:
            raise InputError("metrics of single images are kept only with per_image=True; pass it to CalibrationSuite")
        names = (*METRICS, "pixels")
        with self._synced():
            kept = self.images if isinstance(self.images, Tensor) else self._no_images(self.images)
        return self._by_region({name: _over_channels(name, kept[..., m], 1).T for m, name in enumerate(names)})

    def compute_classes(self) -> dict[str, dict[str, Tensor]]:
        """Return figures of each class in each region: `compute_classes()["all"]["ece"]` has one value per class.

        Sigmoid channels have two classes each: outside and inside the channel, one channel after the other.
        """
        with self._synced():
            evidence = self._checked_evidence()
            table = class_table(evidence.top, evidence.support)
        return self._by_region({name: _joined(values) for name, values in table.items()})

    def compute_curves(self) -> dict[str, dict[str, Tensor]]:
        """Return the reliability diagram of each region, over all channels: confidence, accuracy and pixels by bin."""
        with self._synced():
            top = self._checked_evidence().top
            curve = reliability_curve(Histogram(*(_joined(field) for field in top)))
        return self._by_region(curve)

    def plot(self, val: object = None, ax: object = None) -> Any:
        """Return a matplotlib Figure with the reliability diagram of each region, side by side.

        `val` and `ax` are arguments of `torchmetrics.Metric.plot`, which has no use for them here.
        """
        if val is not None or ax is not None:
            raise InputError("plot draws its own axes from all that the suite was shown; call it without arguments")
        return _reliability_figure(self.compute_curves())

    def ace_error_bound(self) -> dict[str, float]:
        """Return, for each region, a bound of the error of ACE (form `tables`) against exact equal-mass bins."""
        with self._synced():
            flat = (field.flatten(0, 1) for field in self._checked_evidence().cells or ())
            bounds = [float(equal_mass_error(Histogram(*own), bins=self.bins)) for own in zip(*flat, strict=True)]
        means = torch.tensor(bounds, dtype=torch.float64).view(self.channels, -1).mean(dim=0)
        return dict(zip(self.regions, means.tolist(), strict=True))

    def _synced(self) -> AbstractContextManager[Any]:
        return self.sync_context(should_sync=self._to_sync, should_unsync=self._should_unsync)

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        if not len(self.images):
            # a process without images must gather the same dtype and axes as the others
            self.images = [self._no_images([]).to(self.device)]
        super()._sync_dist(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        """Move to another device but keep the precision, which `Module.to` would change for sums and images."""

        def keeping_precision(values: Tensor) -> Tensor:
            return values.to(fn(values).device)

        return super()._apply(keeping_precision, *args, **kwargs)  # type: ignore[return-value]

    def _checked(
        self, logits: Tensor, labels: Tensor, mask: Mask | Mapping[str, Mask] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return finite logits, valid labels and the pixels of each region."""
        finite = check_logits(logits, logits.shape[1], class_axis=1)
        valid = check_labels(labels, logits.shape[1], self.ignore_index)
        return finite, valid, self._masks(mask, valid)

    def _by_region(self, columns: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        return {region: {name: values[k] for name, values in columns.items()} for k, region in enumerate(self.regions)}

    def _no_images(self, rows: Any) -> Tensor:
        shape = (0, self.channels, len(self.regions), len(METRICS) + 1)
        return torch.cat(list(rows)) if len(rows) else torch.empty(shape, dtype=torch.float64)

    def _add_unchecked(
        self, logits: Tensor, labels: Tensor, mask: Mask | Mapping[str, Mask] | None, channel: int
    ) -> None:
        """Add a batch in one pass that also checks it."""
        check_integers(labels)
        masks = self._given_masks(mask, labels)
        evidence = self._evidence(channel)
        totals = Totals(*evidence.top, evidence.support, evidence.sums, *(evidence.cells or ()))
        add_unchecked_batch(
            logits, labels, masks, self._ignored, self._edges, totals, self.problems, self._update_count
        )

    def _image_metrics(self, logits: Tensor, labels: Tensor, masks: Tensor) -> Tensor:
        """Return the metrics `[regions, metrics]` of one image."""
        probs = probabilities(logits.double().reshape(1, len(logits), -1))[0] if self.form == "marginal" else None
        regions = [positions(mask) for mask in masks]
        evidence = Evidence.of(
            describe(logits, labels), regions, num_classes=len(logits), bins=self.bins, class_probs=probs
        )
        found = read(evidence, form=self.form)
        return torch.stack([found[name].double() for name in (*METRICS, "pixels")], dim=-1)

    def _masks(self, mask: Mask | Mapping[str, Mask] | None, labels: Tensor) -> Tensor:
        """Return the labelled pixels of each region."""
        kept, given = labels >= 0, self._given_masks(mask, labels)
        return kept.expand(len(self.regions), *kept.shape) if given is None else kept & given

    def _given_masks(self, mask: Mask | Mapping[str, Mask] | None, labels: Tensor) -> Tensor | None:
        """Return the masks of the regions as one tensor; None if every region is the whole batch."""
        named = mask if isinstance(mask, Mapping) else dict.fromkeys(self.regions, mask)
        if isinstance(mask, Mapping) and set(mask) != set(self.regions):
            raise InputError(f"update needs a mask for each of {self.regions}, got {tuple(mask)}; set regions=")
        for region, given in named.items():
            if given is not None and (given.dtype != torch.bool or given.shape != labels.shape):
                raise InputError(
                    f"the mask of region '{region}' must be Bool of shape {tuple(labels.shape)}, "
                    f"got {given.dtype} of shape {tuple(given.shape)}"
                )
        if all(given is None for given in named.values()):
            return None
        ordered = (named[region] for region in self.regions)
        whole = torch.ones_like(labels, dtype=torch.bool)
        return torch.stack([whole if given is None else given.to(labels.device) for given in ordered])

    def _checked_evidence(self) -> Evidence:
        """Return the evidence of all regions; raise if a batch that was not checked at first was invalid."""
        classes = 2 if self.activation == "sigmoid" else self.num_classes
        check_batches(self.problems.tolist(), classes, self.ignore_index)
        return self._evidence(slice(None))

    def _evidence(self, channel: int | slice) -> Evidence:
        """Return views of the state: what is added to them is added to the state."""
        return Evidence.from_tensors({name: getattr(self, name)[channel] for name in self._names})


def _over_channels(name: str, values: Tensor, axis: int) -> Tensor:
    """Return the mean over channels, or the sum of pixels."""
    return values.sum(dim=axis) if name == "pixels" else values.nanmean(dim=axis)


def _joined(values: Tensor) -> Tensor:
    """Return tables `[channels, regions, classes, ...]` as `[regions, classes of all channels, ...]`."""
    return values.transpose(0, 1).flatten(1, 2)


def _reliability_figure(curves: Mapping[str, Mapping[str, Tensor]]) -> Any:
    """Return a matplotlib Figure: accuracy against confidence of each region, beside the diagonal of calibration."""
    try:
        from matplotlib import pyplot  # noqa: PLC0415  (optional, and slow to import)
    except ImportError as error:
        raise InputError("figures need matplotlib; pip install segcal[figures]") from error
    figure, axes = pyplot.subplots(
        1, len(curves), figsize=(2.6 * len(curves), 2.8), sharey=True, squeeze=False, layout="constrained"
    )
    pyplot.close(figure)  # a notebook would show a figure that pyplot holds a second time
    for axis, (region, curve) in zip(axes[0], curves.items(), strict=True):
        pixels, confidence, accuracy = (curve[name].cpu().numpy() for name in ("pixels", "confidence", "accuracy"))
        held = pixels > 0
        axis.bar(
            np.flatnonzero(held) / len(pixels),
            accuracy[held],
            1 / len(pixels),
            align="edge",
            color="0.88",
            edgecolor="white",
        )
        axis.plot([0, 1], [0, 1], color="0.5", lw=0.7, ls="--")
        axis.plot(confidence[held], accuracy[held], "o", ms=3, color="black")
        gap = np.average(np.abs(confidence - accuracy)[held], weights=pixels[held]) if held.any() else np.nan
        title = region.replace("$", r"\$")  # no formula
        axis.set(title=f"{title}   ECE {100 * gap:.2f} %", xlabel="confidence", xlim=(0, 1), ylim=(0, 1), box_aspect=1)
    axes[0, 0].set_ylabel("accuracy")
    return figure
