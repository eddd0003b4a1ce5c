"""Each channel of a sigmoid head by itself, beside the mean over channels."""

from __future__ import annotations

from typing import Any

from segcal.report.view import View, pooled_values


def content(view: View) -> dict[str, Any] | None:
    """Channel -> method -> region -> metric -> value and interval over all pixels; None unless there are several."""
    channels = view.results.channels
    return {name: pooled_values(own) for name, own in channels.items()} or None
