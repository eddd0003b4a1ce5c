"""Small valid data folders, one for each format and layout that segcal reads."""

from __future__ import annotations

import gzip
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
    "nnunet": of_nnunet,
    "folds": of_folds,
}
"""The data folders by name."""
