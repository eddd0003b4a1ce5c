"""Small valid data folders, one for each format and layout that segcal reads."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
from collections.abc import Callable
from typing import Any

import nibabel
import numpy as np
from PIL import Image

from tests.campaign.trees import Tree
from tests.support.scenes import softmax

CLASSES = 3
NAMES = ("a1", "a2", "b1")
FLAT, SOLID = (7, 6), (4, 5, 6)
Scores = dict[str, tuple[np.ndarray, np.ndarray]]


def scores(rng: np.random.Generator, shape: tuple[int, ...], names: tuple[str, ...] = NAMES) -> Scores:
    """Return logits [L, *S] and labels [*S] of a network that is right more often than not, by case."""
    found = {}
    for name in names:
        labels = rng.integers(0, CLASSES, shape).astype(np.uint8)
        right = np.arange(CLASSES).reshape(-1, *[1] * len(shape)) == labels
        found[name] = ((rng.normal(0, 2, (CLASSES, *shape)) + 2.5 * right).astype(np.float32), labels)
    return found


def npy(array: np.ndarray) -> bytes:
    """Return an array as a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    """Return arrays as a .npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def nifti(array: np.ndarray, *, packed: bool = False) -> bytes:
    """Return [z, y, x] or [L, z, y, x] as a NIfTI file with the classes last."""
    image = nibabel.Nifti1Image(array.T, np.diag([1.0, 1.5, 2.0, 1.0]))
    content: bytes = image.to_bytes()
    return gzip.compress(content, 1, mtime=0) if packed else content


def png(array: np.ndarray) -> bytes:
    """Return [H, W] or [H, W, 3] of uint8 as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def store(name: str, array: np.ndarray, *, packed: bool = False, ome: bool = False) -> Tree:
    """Return an array as a Zarr store of two chunks, or as the finest resolution of an OME-Zarr image."""
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs += [{"name": "gzip", "configuration": {"level": 1}}] if packed else []
    half = (*array.shape[:-1], array.shape[-1] // 2)
    about = {
        "zarr_format": 3, "node_type": "array", "shape": array.shape, "data_type": str(array.dtype), "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": half}}, "codecs": codecs, "attributes": {},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }  # fmt: skip
    inside, tree = f"{name}/s0" if ome else name, {}
    if ome:
        scale = {"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [1.0, 1.0, 0.5]}]}
        image = {"version": "0.5", "multiscales": [{"axes": [{"name": axis} for axis in "cyx"], "datasets": [scale]}]}
        tree[f"{name}/zarr.json"] = document({"zarr_format": 3, "node_type": "group", "attributes": {"ome": image}})
    tree[f"{inside}/zarr.json"] = document(about)
    for k, part in enumerate(np.split(array, 2, axis=-1)):
        content = np.ascontiguousarray(part).tobytes()
        key = "/".join(["c", *["0"] * (array.ndim - 1), str(k)])
        tree[f"{inside}/{key}"] = gzip.compress(content, 1, mtime=0) if packed else content
    return tree


def document(content: Any) -> bytes:
    """Return JSON."""
    return json.dumps(content, indent=1).encode()


def of_npy(rng: np.random.Generator) -> Tree:
    """Logits, labels and images as .npy, with settings, groups, splits and ignored pixels."""
    tree: Tree = {}
    for name, (logits, labels) in scores(rng, FLAT).items():
        labels[0] = 255
        tree[f"logits/{name}.npy"] = npy(logits)
        tree[f"labels/{name}.npy"] = npy(labels)
        tree[f"images/{name}.npy"] = npy(rng.random((2, *FLAT), dtype=np.float32))
    tree["segcal.toml"] = (
        b'classes = ["road", "sky", "tree"]\nignore_index = 255\nbackground = 0\nscores = "logits"\n'
        b"group = '^(.)'\nspacing = [1.0, 0.5]\n"
    )
    tree["splits.json"] = document({"fit": ["a1", "a2"], "test": ["b1"]})
    return tree


def of_npz(rng: np.random.Generator) -> Tree:
    """Probabilities in archives, labels as PNG, and settings that give groups and spacings by name."""
    tree: Tree = {}
    for name, (logits, labels) in scores(rng, FLAT).items():
        tree[f"logits/{name}.npz"] = npz(probabilities=softmax(logits).astype(np.float32))
        tree[f"labels/{name}.png"] = png(labels)
    tree["segcal.toml"] = (
        b'scores = "probabilities"\nignore_index = [7, 9]\n[group]\na1 = "a"\na2 = "a"\n[spacing]\nb1 = [2, 3.5]\n'
    )
    return tree


def of_png(rng: np.random.Generator) -> Tree:
    """Half-precision logits, labels and colour images as PNG, without settings."""
    tree: Tree = {}
    for name, (logits, labels) in scores(rng, FLAT).items():
        tree[f"logits/{name}.npy"] = npy(logits.astype(np.float16))
        tree[f"labels/{name}.png"] = png(labels)
        tree[f"images/{name}.png"] = png(rng.integers(0, 256, (*FLAT, 3)).astype(np.uint8))
    return tree


def of_zarr(rng: np.random.Generator) -> Tree:
    """Zarr stores, compressed and not, one of them an OME-Zarr image."""
    tree: Tree = {}
    for k, (name, (logits, labels)) in enumerate(scores(rng, FLAT).items()):
        tree |= store(f"logits/{name}.zarr", logits, packed=k == 1, ome=k == 2)
        tree |= store(f"labels/{name}.zarr", labels, packed=k == 1)
    return tree


def of_bids(rng: np.random.Generator) -> Tree:
    """Derivatives of BIDS: probabilities and segmentations by subject."""
    tree: Tree = {}
    for k, (logits, labels) in enumerate(scores(rng, SOLID).values()):
        start = f"sub-{k}/anat/sub-{k}"
        tree[f"{start}_probseg.nii.gz"] = nifti(softmax(logits).astype(np.float32), packed=True)
        tree[f"{start}_desc-manual_dseg.nii.gz"] = nifti(labels, packed=True)
    return tree


def of_channels(rng: np.random.Generator) -> Tree:
    """Sigmoid channels that overlap, with labels by channel and as a map of labels."""
    tree: Tree = {"segcal.toml": b'scores = "logits"\nignore_index = 9\n[channels]\nroad = [1, 2]\nsky = 1\ntree = 2\n'}
    for name, (logits, labels) in scores(rng, FLAT).items():
        tree[f"logits/{name}.npy"], tree[f"labels/{name}.png"] = npy(logits), png(labels)
    return tree


def of_passes(rng: np.random.Generator) -> Tree:
    """Two further passes over the same images."""
    tree: Tree = {}
    for name, (logits, labels) in scores(rng, FLAT).items():
        tree[f"logits/{name}.npy"], tree[f"labels/{name}.png"] = npy(logits), png(labels)
        for k in range(2):
            noise = rng.normal(0, 1, logits.shape).astype(np.float32)
            tree[f"passes/m{k}/{name}.npy"] = npy(logits + noise)
    return tree


def of_nifti(rng: np.random.Generator) -> Tree:
    """Volumes, compressed and not."""
    tree: Tree = {}
    for k, (name, (logits, labels)) in enumerate(scores(rng, SOLID).items()):
        end = ".nii.gz" if k else ".nii"
        tree[f"logits/{name}{end}"] = nifti(logits, packed=bool(k))
        tree[f"labels/{name}{end}"] = nifti(labels, packed=bool(k))
        tree[f"images/{name}{end}"] = nifti(rng.random(SOLID, dtype=np.float32), packed=bool(k))
    tree["segcal.toml"] = b"background = 0\n"
    tree["splits.json"] = document({"fit": ["a1", "a2"], "validation": ["b1"]})
    return tree


def of_nnunet(rng: np.random.Generator) -> Tree:
    """A prediction folder of nnU-Net, with labels beside it."""
    tree: Tree = {}
    for name, (logits, labels) in scores(rng, SOLID, NAMES[:2]).items():
        probs = softmax(logits).astype(np.float32)
        tree[f"{name}.npz"] = npz(probabilities=probs)
        tree[f"{name}.nii.gz"] = nifti(probs.argmax(0).astype(np.uint8), packed=True)
        tree[f"labels/{name}.nii.gz"] = nifti(labels, packed=True)
    tree["dataset.json"] = document({"labels": {"background": 0, "liver": 1, "spleen": 2}, "file_ending": ".nii.gz"})
    return tree


def of_folds(rng: np.random.Generator) -> Tree:
    """A trained model of nnU-Net with the validation of two folds."""
    tree: Tree = {}
    for k, (name, (logits, labels)) in enumerate(scores(rng, SOLID, NAMES[:2]).items()):
        probs = softmax(logits).astype(np.float32)
        tree[f"fold_{k}/validation/{name}.npz"] = npz(probabilities=probs)
        tree[f"fold_{k}/validation/{name}.nii.gz"] = nifti(probs.argmax(0).astype(np.uint8), packed=True)
        tree[f"gt_segmentations/{name}.nii.gz"] = nifti(labels, packed=True)
    tree["dataset.json"] = document({"labels": {"background": 0, "liver": 1, "spleen": 2, "ignore": 3}})
    tree["splits_final.json"] = document([{"train": ["a2"], "val": ["a1"]}, {"train": ["a1"], "val": ["a2"]}])
    return tree


def of_atlases(rng: np.random.Generator) -> Tree:
    """Labels and probabilities of warped atlases, for `segcal fuse`."""
    tree: Tree = {}
    for name in NAMES:
        tree[f"labels/{name}.nii.gz"] = nifti(rng.integers(0, CLASSES, SOLID).astype(np.uint8), packed=True)
        tree[f"probabilities/{name}.nii.gz"] = nifti(rng.uniform(0.3, 1, SOLID).astype(np.float32), packed=True)
    return tree


FOLDERS: dict[str, Callable[[np.random.Generator], Tree]] = {
    "npy": of_npy,
    "npz": of_npz,
    "png": of_png,
    "nifti": of_nifti,
    "bids": of_bids,
    "channels": of_channels,
    "passes": of_passes,
    "nnunet": of_nnunet,
    "folds": of_folds,
    **({"zarr": of_zarr} if importlib.util.find_spec("zarr") else {}),
}
"""The data folders by name."""
