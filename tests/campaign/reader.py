"""Data folders read a second time, by other code: numpy, Pillow, nibabel and loops, nothing of segcal.

It follows docs/guide/folders.md. Anything that is not described there raises `UnreadableError`, so that a folder which
segcal accepts and this reader does not is looked at.
"""

from __future__ import annotations

import gzip
import io
import json
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from PIL import Image

from tests.campaign.trees import Tree, below, write_tree

TINY = float(np.finfo(np.float32).tiny)
SCORES = (".npy", ".npz", ".nii.gz", ".nii", ".zarr")
LABELS = (".png", ".webp", *SCORES)


class UnreadableError(Exception):
    """The folder is not one that the documentation describes."""


class RegionsError(Exception):
    """The folder has channels that may overlap, or names of BIDS, for which this reader has no numbers."""


@dataclass(frozen=True)
class Read:
    """One case: logits [L, *S] in float64, the scores as they are in the file, and labels [*S], -1 where ignored."""

    name: str
    logits: np.ndarray
    stored: np.ndarray
    labels: np.ndarray | None


@dataclass(frozen=True)
class Data:
    """What a folder says."""

    cases: list[Read]
    background: int | None


def read_data(tree: Tree, *, labels: bool, split: str | None = None) -> Data:
    """Return the cases of a split if there is one of that name, else all; `labels` says whether labels are needed."""
    try:
        return _read_data(tree, labels, split)
    except (UnreadableError, RegionsError):
        raise
    except Exception as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


def _read_data(tree: Tree, need_labels: bool, split: str | None) -> Data:
    settings = tomllib.loads(tree["segcal.toml"].decode()) if tree.get("segcal.toml") is not None else {}
    ours = any(name.startswith("logits/") for name in tree)
    if "channels" in settings or settings.get("activation") == "sigmoid" or any(n.startswith("sub-") for n in tree):
        raise RegionsError
    places = ["logits/"] if ours else _nnunet_places(tree)
    kind = settings.get("scores", "logits" if ours else "probabilities")
    ignored = _ignored(settings)
    if not ours:
        ignored |= _ignored_by_nnunet(tree)
    truth = next((p for p in ("labels/", "gt_segmentations/", "labelsTr/") if any(n.startswith(p) for n in tree)), "")
    score_files = {
        name: files for place in places for name, files in _named(tree, place, SCORES if ours else (".npz",)).items()
    }
    label_files = _named(tree, truth or "labels/", LABELS)
    if not score_files:
        raise UnreadableError("no scores")
    splits = json.loads(_bytes(tree, "splits.json")) if "splits.json" in tree else {}
    read: list[Read] = []
    for name in splits[split] if split in splits else sorted(score_files):
        raw = None
        if name in label_files:
            raw = _label_array(tree, _only(label_files[name]))
        elif need_labels:
            raise UnreadableError(f"no labels of {name}")
        space = None if raw is None else raw.shape
        if not ours and raw is None:
            beside = _only(score_files[name]).removesuffix(".npz") + ".nii.gz"
            space = _shape(_bytes(tree, beside)) if beside in tree else None
        stored = _score_array(tree, _only(score_files[name]), kind, space)
        logits = _logits(stored, kind)
        known = _checked_labels(raw, stored, ignored, crop=not ours) if need_labels else raw
        read.append(Read(name, logits, stored, known))
    return Data(read, _background(settings, {} if ours else tree))


def _bytes(tree: Tree, name: str) -> bytes:
    content = tree[name]
    if content is None:
        raise UnreadableError(f"{name} is a folder")
    return content


def _named(tree: Tree, folder: str, ends: Sequence[str]) -> dict[str, list[str]]:
    """Return the paths of files, and of stores, directly in a folder, by case."""
    found: dict[str, list[str]] = {}
    for path, content in tree.items():
        name, inside, _ = path.removeprefix(folder).partition("/")
        end = next((end for end in sorted(ends, key=len, reverse=True) if name.lower().endswith(end)), None)
        is_folder = bool(inside) or content is None
        if not path.startswith(folder) or end is None or is_folder != (end == ".zarr") or name.startswith("."):
            continue
        if (whole := f"{folder}{name}") not in (paths := found.setdefault(name[: -len(end)], [])):
            paths.append(whole)
    return found


def _only(paths: list[str]) -> str:
    """Return the file of a case; two are an error, but not if there is no such case."""
    if len(paths) != 1:
        raise UnreadableError(f"several files of a case: {paths}")
    return paths[0]


def _nnunet_places(tree: Tree) -> list[str]:
    folds = sorted({name.split("/")[0] for name in tree if name.startswith("fold_") and name.endswith(".npz")})
    return [f"{fold}/validation/" for fold in folds] or [""]


def _ignored(settings: dict[str, Any]) -> set[int]:
    given = settings.get("ignore_index", [])
    return set(given if isinstance(given, list) else [given])


def _ignored_by_nnunet(tree: Tree) -> set[int]:
    if "dataset.json" not in tree:
        return set()
    labels = json.loads(_bytes(tree, "dataset.json")).get("labels") or {}
    if any(isinstance(number, list) and len(number) > 1 for number in labels.values()):
        raise RegionsError
    return {int(number) for name, number in labels.items() if name == "ignore"}


def _background(settings: dict[str, Any], tree: Tree) -> int | None:
    """Return the class that is the background: one that is called so, unless it is set; -1 is none."""
    if (given := settings.get("background")) is not None:
        return None if given == -1 else int(given)
    names = settings.get("classes", settings.get("class_names"))
    if names is None and "dataset.json" in tree:
        labels = json.loads(_bytes(tree, "dataset.json")).get("labels") or {}
        numbers = {int(np.ravel(number)[0]): name for name, number in labels.items() if name != "ignore"}
        names = (
            [numbers[k] for k in sorted(numbers)]
            if sorted(numbers) == list(range(len(labels) - ("ignore" in labels)))
            else None
        )
    lower = [name.lower() for name in names or ()]
    return lower.index("background") if "background" in lower else None


def _npz(content: bytes, key: str) -> np.ndarray:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        wanted = f"{key}.npy" if f"{key}.npy" in names else names[0]
        if wanted != f"{key}.npy" and len(names) != 1:
            raise UnreadableError("several arrays")
        return _npy(archive.read(wanted))


def _npy(content: bytes) -> np.ndarray:
    found: np.ndarray = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return found


def _image(content: bytes) -> Any:
    plain = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    for kind in (nibabel.Nifti1Image, nibabel.Nifti2Image):
        try:
            return kind.from_bytes(plain)
        except nibabel.spatialimages.HeaderDataError:
            raise
        except Exception:
            continue
    raise UnreadableError("no NIfTI")


def volume_of(content: bytes) -> np.ndarray:
    """Return a NIfTI volume as [z, y, x]; trailing axes of length one after the third are dropped."""
    array = np.asanyarray(_image(content).dataobj)
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    return array.T


def stored_array(tree: Tree) -> np.ndarray:
    """Return the array of a Zarr store, or the finest resolution of an OME-Zarr image, with axes in their order."""
    import zarr

    with tempfile.TemporaryDirectory(prefix="segcal-store-") as folder:
        write_tree(Path(folder), tree)
        found: Any = zarr.open(folder, mode="r")
        if isinstance(found, zarr.Array):
            return np.asarray(found[...])
        about = found.attrs.get("ome", found.attrs)["multiscales"][0]
        array = np.asarray(found[about["datasets"][0]["path"]][...])
    axes = [axis if isinstance(axis, str) else axis["name"] for axis in about["axes"]]
    if len(axes) != array.ndim:
        raise UnreadableError(f"{len(axes)} axes of {array.ndim}")
    dropped = tuple(k for k, axis in enumerate(axes) if axis not in ("c", "z", "y", "x"))
    ordered = sorted(set(range(array.ndim)) - set(dropped), key=lambda k: "czyx".index(axes[k]))
    return array.transpose(*ordered, *dropped).squeeze(tuple(range(len(ordered), array.ndim)))


def _shape(content: bytes) -> tuple[int, ...]:
    """Return the shape of a volume as [z, y, x], from its header."""
    shape = tuple(_image(content).shape)
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return shape[::-1]


def _label_array(tree: Tree, path: str) -> np.ndarray:
    if (low := path.lower()).endswith(".zarr"):
        return stored_array(below(tree, f"{path}/"))
    content = _bytes(tree, path)
    if low.endswith((".png", ".webp")):
        array = np.asarray(Image.open(io.BytesIO(content)))
        depth, colour = content[(header := content.find(b"IHDR")) + 12 : header + 14]  # other chunks may be before it
        if content[1:4] == b"PNG" and colour == 0 and depth in (2, 4):  # which Pillow stretches to 0..255
            array = array // (255 // (2**depth - 1))
    elif low.endswith(".npy"):
        array = _npy(content)
    else:
        array = _npz(content, "labels") if low.endswith(".npz") else volume_of(content)
    return array


def _score_array(tree: Tree, path: str, kind: str, space: tuple[int, ...] | None) -> np.ndarray:
    if (low := path.lower()).endswith(".zarr"):
        return stored_array(below(tree, f"{path}/"))
    content = _bytes(tree, path)
    if low.endswith(".npy"):
        return _npy(content)
    if low.endswith(".npz"):
        array = _npz(content, kind)
        flat = kind == "probabilities" and array.ndim == 4 and array.shape[1] == 1 and space is not None
        return array[:, 0] if flat and len(space or ()) == 2 else array
    array = np.asanyarray(_image(content).dataobj)
    if space is not None and array.shape[1:] == space[::-1]:
        return np.moveaxis(array.T, -1, 0)
    if space is None and array.ndim > 1 and array.shape[0] == 3:  # the calibrators of the campaign have three classes
        return np.moveaxis(array.T, -1, 0)
    last = np.moveaxis(array, -1, 0)
    while space is not None and last.ndim > len(space) + 1 and last.shape[-1] == 1:
        last = last[..., 0]
    return np.moveaxis(last.T, -1, 0)


def _logits(scores: np.ndarray, kind: str) -> np.ndarray:
    """Return finite logits: probabilities of 0, and classes whose logit is -inf, lie 87.3 nats below the largest."""
    if scores.dtype.kind != "f" or np.isnan(scores).any() or (scores == np.inf).any():
        raise UnreadableError("scores are not floating-point numbers")
    wide = scores.astype(np.float64)
    if kind == "probabilities":
        return np.log(np.maximum(wide, TINY))
    top = wide.max(axis=0, keepdims=True)
    if np.isneginf(top).any():
        raise UnreadableError("a pixel without a possible class")
    below = np.maximum(-np.log(TINY), 4 * float(np.finfo(scores.dtype).eps) * abs(top))
    lowest = np.maximum(top - below, float(np.finfo(scores.dtype).min)).astype(scores.dtype)  # in the file's precision
    return np.where(np.isneginf(wide), lowest.astype(np.float64), wide)


def _checked_labels(
    labels: np.ndarray | None, scores: np.ndarray, ignored: set[int], *, crop: bool
) -> np.ndarray | None:
    if labels is None:
        return None
    with np.errstate(invalid="ignore"):
        if not (np.abs(labels - np.round(labels)) <= 1e-3).all():  # as scaling may leave it
            raise UnreadableError("fractional labels")
    if labels.shape != scores.shape[1:]:
        raise UnreadableError(f"labels {labels.shape} and scores {scores.shape}")
    labels = np.round(labels)
    whole = labels.astype(np.int64)
    whole = np.where(np.isin(whole, list(ignored)), -1, whole)
    if crop:
        forced = (scores[0] == 1) & (scores[1:] == 0).all(axis=0)
        inside = np.argwhere(~forced)
        outside = np.ones(forced.shape, bool)
        if len(inside):
            outside[tuple(slice(a, b + 1) for a, b in zip(inside.min(0), inside.max(0), strict=True))] = False
        whole = np.where(outside, -1, whole)
    if ((whole >= len(scores)) | (whole < -1)).any() or (not crop and (whole[labels < 0] != -1).any()):
        raise UnreadableError("labels out of range")
    return whole
