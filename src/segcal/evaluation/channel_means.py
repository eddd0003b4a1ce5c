"""The results of a sigmoid head: the mean over its channels, with the results of each channel inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from segcal.evaluation.gather import CURVE_COLUMNS, POOLED_COLUMNS, Gathered, Row, pooled_frame_rows
from segcal.evaluation.pooled import Figures, pooled_curves
from segcal.evaluation.results import Results
from segcal.functional.binning import Histogram


def mean_over_channels(
    channels: Mapping[str, Results], gathered: Sequence[Gathered], settings: Mapping[str, Any]
) -> Results:
    """Return results whose every value is the mean over the channels that have pixels there; pixels are added up.

    Reliability diagrams are not averaged: that of the label "" holds the pixels of all channels, and that of each
    channel all of its pixels. Volumes and surfaces are those of the channels.

    Args:
        channels: Results of each channel, by name, with two classes of which the second is the channel.
        gathered: What they were made of, for the intervals of the means.
        settings: Settings of the whole.
    """
    names, whole = list(channels), list(channels.values())
    pooled, curves = _pooled(names, gathered)
    return Results(
        _mean([results.frame for results in whole], ["case", "method", "region", "metric"]),
        _mean([results.patch_frame for results in whole], ["case", "method", "patch", "origin", "metric"]),
        pooled,
        settings,
        case_frame=whole[0].case_frame,
        curve_frame=curves,
        sensitivity_frame=_mean([results.sensitivity() for results in whole], ["method", "region", "bins"], "ece"),
        volume_frame=_volumes(channels),
        size_frame=_mean([results.patch_sizes() for results in whole], ["case", "method", "size", "region", "metric"])
        if whole[0].size_frame is not None
        else None,
        surface_frame=_surfaces(whole),
        channels=channels,
    )


def _mean(frames: Sequence[pd.DataFrame], keys: list[str], value: str = "value") -> pd.DataFrame:
    """Return the mean of tables with the same rows, without NaN; pixels are added up."""
    columns = list(frames[0].columns)
    wanted = {value: "mean", **({"pixels": "sum"} if "pixels" in columns else {})}
    return pd.concat(frames).groupby(keys, sort=False, as_index=False).agg(wanted)[columns]


def _pooled(names: Sequence[str], gathered: Sequence[Gathered]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return figures over all pixels and reliability diagrams; images are drawn with all of their channels."""
    first = gathered[0]
    draw = first.drawing()
    pooled, curves = list[Row](), list[Row]()
    for method in first.methods:
        for k, region in enumerate(first.masked):
            figures = Figures.mean([own.figures(method, k) for own in gathered])
            pooled += pooled_frame_rows(method, region, figures, draw)
            by_channel = _side_by_side([own.top(method, k) for own in gathered])
            curves += [(method, region, *row) for row in pooled_curves(by_channel, names, draw=draw)]
    return pd.DataFrame(pooled, columns=POOLED_COLUMNS), pd.DataFrame(curves, columns=CURVE_COLUMNS)


def _side_by_side(channels: Sequence[Histogram]) -> Histogram:
    """Return the histograms of all pixels of each channel `[cases, C, R]`, in place of those of predicted classes."""
    return Histogram(
        *(torch.stack([field.sum(dim=-2) for field in own], dim=-2) for own in zip(*channels, strict=True))
    )


def _volumes(channels: Mapping[str, Results]) -> pd.DataFrame:
    own = [results.volumes().query("label == @name") for name, results in channels.items()]
    return pd.concat(own, ignore_index=True)


def _surfaces(channels: Sequence[Results]) -> pd.DataFrame | None:
    """Return the figures of each channel as a structure, where they were measured."""
    frames = [results.surface_frame for results in channels if results.surface_frame is not None]
    return pd.concat(frames, ignore_index=True) if frames else None


def mean_limits(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return what temperatures chosen with the labels reach, as the mean over channels."""
    return _mean(frames, ["level", "metric"])
