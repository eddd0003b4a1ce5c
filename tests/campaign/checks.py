"""Whether what a command printed and wrote is right, by the independent reader: a complaint, or None."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from tests.campaign.reader import Data, Read, RegionsError, UnreadableError, read_data, stored_array, volume_of
from tests.campaign.trees import Tree, below, read_tree
from tests.support.references import boundary, readings
from tests.support.scenes import softmax

CLOSE = 2e-5
"""Relative difference allowed between float32 scores summed by segcal and float64 sums here."""


class NotANumberError(ValueError):
    """JSON with NaN or infinity, which JSON does not have."""


@dataclass(frozen=True)
class Done:
    """A command that succeeded: its inputs, what it printed, and the folder in which it wrote `out`."""

    tree: Tree
    stdout: str
    folder: Path
    pristine: Tree


Check = Callable[[Done], str | None]


def strict_json(text: str) -> Any:
    """Return one JSON document without NaN."""

    def refuse(word: str) -> None:
        raise NotANumberError(word)

    return json.loads(text, parse_constant=refuse)


def differs(name: str, found: Any, expected: float, close: float = CLOSE) -> str | None:
    """Return a complaint unless two numbers agree."""
    if not isinstance(found, int | float) or not math.isclose(found, expected, rel_tol=close, abs_tol=close):
        return f"wrong number: {name} is {found}, and {expected} by the independent reader"
    return None


def data_of(done: Done, split: str | None = None, *, labels: bool = True) -> Data | str:
    """Return the data of a command as the independent reader sees them, or why it does not."""
    try:
        return read_data(below(done.tree, "data/"), labels=labels, split=split)
    except UnreadableError as error:
        return f"accepted what the independent reader refuses: {error}"


def measured(data: Data) -> dict[str, float]:
    """Return the metrics over all pixels in the region All: foreground or near a change of label, if there is both."""
    logits, labels = [], []
    for case in data.cases:
        if case.labels is None:
            raise ValueError(case.name)
        inside = case.labels >= 0
        if data.background is not None:
            inside &= (case.labels != data.background) | boundary(case.labels)
        logits.append(case.logits[:, inside])
        labels.append(case.labels[inside])
    return readings(np.concatenate(logits, axis=1), np.concatenate(labels))


def check_fit(done: Done) -> str | None:
    """NLL before the fit, over the pixels of All of the split "fit"."""
    report, data = strict_json(done.stdout), data_of(done, "fit")
    if isinstance(data, str):
        return data
    expected = measured(data)
    if report["pixels"] != expected["pixels"]:
        return f"wrong number: {report['pixels']} pixels, and {expected['pixels']} by the independent reader"
    if not expected["pixels"]:
        return None
    if not report["nll_after"] <= report["nll_before"] + 1e-6 * abs(report["nll_before"]):
        return "wrong number: the NLL rose"
    return differs("nll_before", report["nll_before"], expected["nll"])


def check_diagnose(done: Done) -> str | None:
    """NLL and entropy over all pixels of All."""
    content, data = strict_json(done.stdout), data_of(done)
    if isinstance(data, str):
        return data
    found, expected = content["dataset"], measured(data)
    names = ("pixels", "nll", "entropy") if expected["pixels"] else ("pixels",)
    return next((wrong for name in names if (wrong := differs(name, found[name], expected[name]))), None)


def check_evaluate(done: Done) -> str | None:
    """Metrics over all pixels of All of the split "test"."""
    content, data = strict_json(done.stdout), data_of(done, "test")
    if isinstance(data, str):
        return data
    expected = measured(data)
    rows = {row["metric"]: row["value"] for row in content["pooled"] if (row["method"], row["region"]) == ("UC", "all")}
    names = ("nll", "brier", "accuracy", "ece") if expected["pixels"] else ()
    return next((wrong for name in names if (wrong := differs(name, rows[name], expected[name], 1e-4))), None)


def written_probabilities(content: bytes, name: str, space: int) -> np.ndarray:
    """Return probabilities [L, *S] as `segcal apply` writes them."""
    if name.endswith(".npy"):
        return np.load(io.BytesIO(content), allow_pickle=False)
    if name.endswith(".npz"):
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            array = archive["probabilities"]
            return array[:, 0] if array.ndim == space + 2 else array
    plain = gzip.decompress(content) if name.endswith(".gz") else content
    array = np.asanyarray(nibabel.Nifti1Image.from_bytes(plain).dataobj)
    if array.ndim > space + 1:
        array = array.reshape(*array.shape[:space], array.shape[-1])
    return array.T


def check_apply(done: Done) -> str | None:
    """Every case is written, finite, sums to 1, keeps its labels; with temperature scaling the numbers are right."""
    strict_json(done.stdout)
    data = data_of(done, labels=False)
    if isinstance(data, str):
        return data
    if json.loads(done.tree["calibrator/segcal.json"] or b"")["config"].get("activation") == "sigmoid":
        raise RegionsError  # also where the folder lost the file that names its channels
    out = read_tree(done.folder / "out")
    return next((wrong for case in data.cases if (wrong := _check_case(case, out, done))), None)


def _check_case(case: Read, out: Tree, done: Done) -> str | None:
    files = sorted({first for name in out if _stem(first := name.partition("/")[0]) == case.name})
    if archives := [name for name in files if name.endswith(".npz")]:  # nnU-Net's files beside them are copied
        given = [(Path(name).name, content) for name, content in read_tree(done.folder / "data").items()]
        files = [name for name in files if name in archives or (name, out[name]) not in given]
    if len(files) != 1:
        return f"half-written: {len(files)} files of a case"
    if files[0].endswith(".zarr"):
        probs = stored_array(below(out, f"{files[0]}/"))
    else:
        probs = written_probabilities(out[files[0]] or b"", files[0], case.stored.ndim - 1)
    if probs.shape != case.stored.shape:  # the classes come first in the file
        probs = np.moveaxis(probs, 0, -1)
    if probs.shape != case.stored.shape:
        return f"wrong number: shape {probs.shape} of scores {case.stored.shape}"
    if not np.isfinite(probs).all():
        return "NaN written: probabilities"
    return _check_values(probs, case, done)


def _check_values(probs: np.ndarray, case: Read, done: Done) -> str | None:
    marker = json.loads(done.tree["calibrator/segcal.json"] or b"")
    keeps = marker["method"] not in _MOVES and marker["config"].get("scope", "pooled") == "pooled"
    if probs.min(initial=0) < 0:
        return f"wrong number: a probability of '{case.name}' is negative"
    if np.abs(probs.astype(np.float64).sum(axis=0) - 1).max(initial=0) > 1e-3:
        return "wrong number: probabilities do not sum to 1"
    if keeps and (probs.argmax(axis=0) != case.stored.argmax(axis=0)).any():
        return "wrong number: a label moved"
    return _against_temperature(probs, case.logits, done) if marker["method"] == "ts" else None


_MOVES = ("vector", "dirichlet", "matrix", "histogram", "beta", "svs", "msc")
"""Methods that may move labels; isotonic regression does where its classes are fitted one by one."""


def _stem(name: str) -> str:
    return next(
        name.removesuffix(end) for end in (".nii.gz", ".nii", ".npy", ".npz", ".zarr", "") if name.endswith(end)
    )


def _against_temperature(probs: np.ndarray, logits: np.ndarray, done: Done) -> str | None:
    inverse = _inverse_temperature(done.tree["calibrator/weights.safetensors"] or b"")
    config = json.loads(done.tree["calibrator/segcal.json"] or b"")["config"]
    low, high = config.get("bounds", (0.05, 100.0))
    temperature = min(max(1 / inverse if inverse else math.inf, low), high)
    expected = softmax(logits / temperature)
    worst = float(np.abs(probs - expected).max(initial=0))
    return None if worst < 1e-3 else f"wrong number: probabilities differ by {worst} from logits / {temperature}"


def _inverse_temperature(content: bytes) -> float:
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    (entry,) = [value for name, value in header.items() if "temperature" in name]
    start, stop = entry["data_offsets"]
    kind = {"F64": "<f8", "F32": "<f4"}[entry["dtype"]]
    return float(np.frombuffer(content[8 + size + start : 8 + size + stop], kind)[0])


def check_calibrator(done: Done) -> str | None:
    """As `check_apply`; and the learned values and settings of the pristine calibrator give its output."""
    if wrong := check_apply(done):
        return wrong
    mine, theirs = (below(tree, "calibrator/") for tree in (done.tree, done.pristine))
    same = mine["weights.safetensors"] == theirs["weights.safetensors"] and _config(mine) == _config(theirs)
    written = {name: c for name, c in read_tree(done.folder / "out").items() if name.endswith(".npy")}
    if same and written != below(done.pristine, "expected/"):
        return "wrong number: the same calibrator gives other probabilities"
    return None


def _config(tree: Tree) -> Any:
    content = json.loads(tree["segcal.json"] or b"")
    return content["config"], content["method"]


def check_table(done: Done) -> str | None:
    """The rows are those of the file."""
    found = strict_json(done.stdout)["images"]
    text = (done.tree["results/images.csv"] or b"").decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text, newline=None)))
    if len(rows) != len(found):
        return f"wrong number: {len(found)} rows of {len(rows)}"
    for row, shown in zip(rows, found, strict=True):
        value = row["value"]
        if shown["value"] is None:
            if value.lower() not in ("", "nan", "na", "null", "none", "n/a", "<na>", "-nan", "#n/a"):
                return f"wrong number: no value for {value}"
        elif wrong := differs(row["metric"], shown["value"], float(value)):
            return wrong
    return None


def check_page(done: Done) -> str | None:
    """A whole page."""
    text = (done.folder / "out.html").read_text(encoding="utf-8")
    return None if "</html>" in text[-300:] else "half-written: the page does not end"  # a signature follows


def check_text(done: Done) -> str | None:
    """Something was printed."""
    return None if done.stdout.strip() else "nothing printed"


def check_form(done: Done) -> str | None:
    """One JSON document without NaN."""
    strict_json(done.stdout)
    return None


def check_export(done: Done) -> str | None:
    """The table is a whole file."""
    return None if (done.folder / "out.csv").stat().st_size else "half-written: an empty file"


def check_fuse(done: Done) -> str | None:
    """Where one label has most of the votes, it is the fused one."""
    strict_json(done.stdout)
    try:
        files = below(done.tree, "data/labels/")
        names = [
            f"data/labels/{name}"
            for name in sorted(files)
            if name.endswith((".nii", ".nii.gz")) and name[0] != "." and "/" not in name
        ]
        votes = np.stack([volume_of(done.tree[name] or b"") for name in names]).astype(np.int64)
    except Exception as error:
        return f"accepted what the independent reader refuses: {error}"
    fused = volume_of((done.folder / "out" / "labels.nii.gz").read_bytes())
    if fused.shape != votes.shape[1:]:
        return f"wrong number: shape {fused.shape}"
    kinds = np.unique(votes)
    counts = np.stack([(votes == kind).sum(axis=0) for kind in kinds])
    top = np.sort(counts, axis=0)
    clear = top[-1] > (top[-2] if len(kinds) > 1 else 0)
    return "wrong number: not the label of most atlases" if (kinds[counts.argmax(0)] != fused)[clear].any() else None
