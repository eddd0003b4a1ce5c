"""Maps of chosen cases, and their global and local reliability (the paper's Figs. 1 and 2).

Layers of a portrait are data URIs, curves are lists.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from segcal.evaluation.portraits import LEVELS, NOTHING, WINDOW, Layer, Portrait
from segcal.report.colours import class_colours
from segcal.report.view import View
from segcal.types import Array, InputError


def cases(view: View) -> dict[str, Any] | None:
    """Return the portraits; None where there are none."""
    if not view.portraits:
        return None
    return {
        "portraits": [_portrait(portrait, view.class_names) for portrait in view.portraits],
        "levels": LEVELS,
        "nothing": NOTHING,
        "optimum_window": WINDOW,
    }


def _portrait(portrait: Portrait, class_names: Sequence[str]) -> dict[str, Any]:
    """Return a portrait as plain values; slices of a volume lie one below the other in each picture."""
    if portrait.channel:
        class_names = (f"not {portrait.channel}", portrait.channel)
    if beyond := [c for c in portrait.classes if c >= len(class_names)]:
        raise InputError(
            f"classes of the portrait of '{portrait.name}' must be in 0..{len(class_names) - 1}, got {beyond[0]}; "
            "evaluate again"
        )
    return {
        **vars(portrait),
        "title": portrait.title,
        "classes": [class_names[c] for c in portrait.classes],
        "colours": [class_colours(len(class_names))[c] for c in portrait.classes],
        "layers": [_layer(layer, volume=len(portrait.shape) == 3) for layer in portrait.layers],
        "patches": [vars(patch) for patch in portrait.patches],
    }


def _layer(layer: Layer, *, volume: bool) -> dict[str, Any]:
    exact = layer.kind != "image"
    values = layer.values.reshape(-1, *layer.values.shape[2:]) if volume else layer.values
    shown = {name: getattr(layer, name) for name in ("kind", "method", "low", "high")}
    return {**shown, "colour": not exact, "src": _data_uri(values, exact=exact)}


def _data_uri(values: Array, *, exact: bool) -> str:
    """Return a PNG for bytes that must come back unchanged, JPEG for images."""
    buffer = io.BytesIO()
    form, options = ("PNG", {"optimize": True}) if exact else ("JPEG", {"quality": 85})
    Image.fromarray(values).save(buffer, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
