"""Temperature scaling against netcal and scikit-learn, on a problem that those can hold."""

from __future__ import annotations

import warnings

import torch

from benchmarks.timing import console, milliseconds, scene, table
from segcal import Case, create

CLASSES = 11


def temperature_scaling(images: int = 4) -> None:
    """Print the time of a fit and what it found."""
    from netcal.scaling import TemperatureScaling

    logits, labels = scene(CLASSES, batch=images)
    cases = [Case(f"{k}", logits[k], labels[k]) for k in range(images)]
    probs = torch.softmax(logits.double(), dim=1).movedim(1, -1).reshape(-1, CLASSES).numpy()
    truth = labels.reshape(-1).numpy()
    ours, theirs = create("ts", CLASSES), TemperatureScaling()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = milliseconds(lambda: ours.fit(cases), repetitions=3, warm_up=1)
        slow = milliseconds(lambda: theirs.fit(probs, truth), repetitions=1, warm_up=0)
    unit = milliseconds(lambda: torch.softmax(logits, dim=1).max(dim=1))
    shown = table(f"fit a temperature on {truth.size:,} pixels", "what", "ms", "softmax+max passes", "temperature")
    ours_at = 1 / float(ours.state_dict()["inverse_temperature"])
    shown.add_row("segcal (streamed, float64)", f"{fast:.0f}", f"{fast / unit:.0f}", f"{ours_at:.5f}")
    found = 1 / float(theirs.temperature[0]) if hasattr(theirs, "temperature") else float("nan")
    shown.add_row("netcal (float64)", f"{slow:.0f}", f"{slow / unit:.0f}", f"{found:.5f}")
    shown.add_row("ratio", f"{slow / fast:.1f}", "", "")
    console.print(shown)
