"""When training of LTS stops: validation NLL after all epochs, when it has settled, and without a least of steps."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.beside_paper import lines
from experiments.command import given
from experiments.datasets.coarse import open_coarse
from experiments.datasets.splits import shuffled_parts
from experiments.datasets.voc import CLASSES, VOID
from segcal import create, load_sample
from segcal.data.io.formats import file_at
from segcal.training.settings import Epoch, Training
from segcal.types import Case

_VOC = (16, 10)


def measure(options: argparse.Namespace) -> pd.DataFrame:
    """Return a row for each data set: images, epochs and validation NLL."""
    return pd.DataFrame(list(_rows(given(options.voc, "--voc"))))


def table(rows: pd.DataFrame) -> str:
    """Return the validation NLL and the number of epochs as Markdown."""
    head = ["data", "fit, validation", "TS", "all epochs", "when settled", "20 epochs alone"]
    body = []
    for row in rows.to_dict(orient="records"):
        cells = [f"{row[kind]:.4f} ({row[f'epochs {kind}']})" for kind in ("all", "settled", "early")]
        body.append([row["data"], f"{row['fit']}, {row['validation']}", f"{row['ts']:.4f}", *cells])
    return lines(head, body)


def _rows(voc: Path) -> Iterator[dict[str, Any]]:
    for sample, title in ((load_sample("scenes"), "bundled scenes"), (load_sample("brain"), "bundled brains")):
        classes = sample["fit"][0].logits.shape[0]
        yield _row(title, sample["fit"], sample["validation"], {"num_classes": classes})
    about = {"num_classes": len(CLASSES), "ignore_index": VOID}
    yield _row("VOC", *_coarse(voc), about)


def _coarse(root: Path) -> tuple[list[Case], list[Case]]:
    """Return images of VOC at the size of their scores, drawn at random: to fit on, and to validate on."""
    folder = open_coarse(root)

    def reduced(name: str) -> Case:
        (case,) = folder.subset([name])
        logits = file_at(folder.logits[name]).read("logits")
        labels = torch.from_numpy(np.asarray(case.labels, np.float32))[None, None]
        own = F.interpolate(labels, size=logits.shape[1:], mode="nearest")[0, 0].byte().numpy()
        return replace(case, logits=np.asarray(logits, np.float32), labels=own, image=None)

    fit, validation = ([reduced(name) for name in names] for names in shuffled_parts(folder.names, _VOC, seed=0))
    return fit, validation


def _row(title: str, fit: Sequence[Case], validation: Sequence[Case], about: dict[str, Any]) -> dict[str, Any]:
    shape = fit[0].logits.shape
    found = dict[str, Any]()
    for kind, settings in (("all", Training()), ("settled", None), ("early", Training(patience=20))):
        seen = list[Epoch]()
        lts = create("lts", spatial_dims=len(shape) - 1, **about)
        lts.fit(fit, validation=validation, settings=settings, watch=seen.append)
        details = lts.fit_report_.details
        found |= {kind: round(details["validation_nll"], 6), f"epochs {kind}": len(seen)}
        found["ts"] = round(details["validation_nll_ts"], 6)
    size = " x ".join(map(str, shape))
    print(f"{title}: {found}", flush=True)
    return {"data": f"{title}, {size}", "fit": len(fit), "validation": len(validation), **found}
