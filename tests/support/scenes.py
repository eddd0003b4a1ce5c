"""Cases, logits, labels and folders on disk that the tests share."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segcal.cases import CaseStream
from segcal.cases.channels import channel_cases
from segcal.data.folders.folder import Folder, open_folder
from segcal.data.sample.scenes import simulate
from segcal.types import Case, InputError

SHAPES = {2: (4, 6), 3: (3, 4, 6)}
AFFINE = np.array([[-2.0, 0, 0, 10], [0, 0, 4, -20], [0, 3, 0, 30], [0, 0, 0, 1]])  # x 2 mm, y 3 mm, z 4 mm


# ---- cases ----------------------------------------------------------------------------------------------------------


def simulated(count: int, **settings: Any) -> list[Case]:
    """Return the cases of simulated scenes."""
    return [scene.case for scene in simulate(count, **settings)]


def overlapping(count: int, channels: int, size: Sequence[int] = (16, 14), *, seed: int = 0, **more: Any) -> list[Case]:
    """Return sigmoid channels of blocks that overlap, each overconfident in its own way, with their masks."""
    random, cases = np.random.default_rng(seed), []
    for k in range(count):
        scores = random.normal(scale=3, size=(channels, *(-(-side // 4) for side in size)))
        for axis, side in enumerate(size, start=1):
            scores = scores.repeat(4, axis).take(range(side), axis)
        scores = scores + random.normal(size=scores.shape)
        hotter = scores / np.arange(2, 2 + channels).reshape(-1, *(1,) * len(size))
        masks = (hotter + random.logistic(size=scores.shape) > 0).astype(np.uint8)
        image = random.random((1, *size), np.float32)
        cases.append(Case(f"c{k}", scores.astype(np.float32), masks, image, **more))
    return cases


def noisy(count: int = 3, classes: int = 4, size: tuple[int, ...] = (30, 24), seed: int = 1) -> list[Case]:
    """Scenes whose classes are biased and scaled each in its own way, so that no temperature can correct them."""
    rng = np.random.default_rng(seed)
    scale, shift = rng.uniform(0.4, 2.0, classes), rng.normal(size=classes)
    cases = []
    for scene in simulate(count, num_classes=classes, size=size, contrast=2.0, seed=seed):
        by_class = (slice(None), *(np.newaxis,) * len(size))
        logits = np.asarray(scene.true_logits) * scale[by_class] + shift[by_class]
        cases.append(Case(scene.case.name, logits.astype(np.float32), scene.case.labels, scene.case.image))
    return cases


PASS_CLASSES, PASS_SIZE = 3, (24, 18)


def several_passes(count: int, passes: int = 2, noise: float = 3.0, seed: int = 0) -> list[Case]:
    """Return overconfident networks that see the same blocks with noise of their own, so that their mean knows more."""
    random = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        labels = np.kron(random.integers(0, PASS_CLASSES, (4, 3)), np.ones((6, 6), int)).astype(np.uint8)
        signal = 4.0 * np.eye(PASS_CLASSES)[labels].transpose(2, 0, 1)
        members = (signal + noise * random.normal(size=(1 + passes, PASS_CLASSES, *PASS_SIZE))).astype(np.float32)
        cases.append(Case(f"case {number}", members[0], labels, passes=members[1:]))
    return cases


def degenerate() -> dict[str, list[Case]]:
    """Three classes, of which the labels say too little, or nothing that agrees with the logits."""
    rng = np.random.default_rng(0)
    z = (3 * rng.normal(size=(3, 12, 12))).astype(np.float32)
    labels: dict[str, Any] = {
        "one class only": np.full((12, 12), 1),
        "a class never present": rng.integers(0, 2, (12, 12)),
        "all right": z.argmax(axis=0),
        "all wrong": z.argmin(axis=0),
    }
    cases = {name: [Case(name, z, truth)] for name, truth in labels.items()}
    cases["two pixels"] = [Case("two pixels", z[:, :1, :2], np.array([[0, 1]]))]
    return cases


def flat_case(pixels: int, classes: int = 4, distinct: int | None = None, seed: int = 0) -> Case:
    """Overconfident scores `[L, pixels, 1]` whose labels are drawn from their softened probabilities."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(classes, distinct or pixels)) * 2
    if distinct:
        logits = logits[:, random.integers(0, distinct, pixels)]
    probs = softmax(logits)
    labels = (probs.cumsum(axis=0) > random.random(pixels)).argmax(axis=0)
    return Case("flat", 1.7 * logits[:, :, np.newaxis], labels[:, np.newaxis])


# ---- arrays in files ------------------------------------------------------------------------------------------------


def logits_of(dims: int = 2, classes: int = 5, seed: int = 0) -> np.ndarray:
    """Return random logits `[L, *S]`."""
    return np.random.default_rng(seed).normal(size=(classes, *SHAPES[dims])).astype(np.float32)


def labels_of(dims: int = 2, classes: int = 5, seed: int = 0) -> np.ndarray:
    """Return random labels `[*S]`."""
    return np.random.default_rng(seed + 100).integers(0, classes, SHAPES[dims]).astype(np.uint8)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities over the first axis."""
    powers = np.exp(logits - logits.max(0))
    found: np.ndarray = powers / powers.sum(0)
    return found


def save(path: Path, array: np.ndarray, key: str = "arr_0") -> None:
    """Write an array `[*S]` the way its extension asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez_compressed(path, **{key: array})  # type: ignore[arg-type]
    elif ".nii" in path.suffixes:
        save_nifti(path, array)
    else:
        Image.fromarray(array).save(path, **({"lossless": True} if path.suffix == ".webp" else {}))


def grey_png(values: np.ndarray, bits: int, *before: tuple[bytes, bytes]) -> bytes:
    """Return a greyscale PNG of few bits per pixel, with chunks before its header: Pillow writes 1, 8 and 16 bits."""
    height, width = values.shape
    places = np.arange(bits - 1, -1, -1)
    rows = ((values[..., None] >> places) & 1).reshape(height, -1).astype(np.uint8)
    packed = b"".join(b"\0" + np.packbits(row).tobytes() for row in rows)
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)), (b"IDAT", zlib.compress(packed)))
    chunks = [
        struct.pack(">I", len(content)) + tag + content + struct.pack(">I", zlib.crc32(tag + content))
        for tag, content in (*before, *parts, (b"IEND", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def save_nifti(path: Path, array: np.ndarray) -> None:
    """Write an array `[z, y, x]` or `[L, z, y, x]` with the affine of the tests."""
    nibabel = pytest.importorskip("nibabel")
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array.T, AFFINE), path)


def write_arrays(root: Path, names: str = "ab", dims: int = 2, toml: str = "") -> Path:
    """Write a folder of .npy logits and .npy labels, and a segcal.toml if there is something to say."""
    for seed, name in enumerate(names):
        save(root / f"logits/{name}.npy", logits_of(dims, seed=seed))
        save(root / f"labels/{name}.npy", labels_of(dims, seed=seed))
    if toml:
        (root / "segcal.toml").write_text(toml)
    return root


def write_nifti_case(root: Path, layout: str, extension: str = ".nii.gz") -> np.ndarray:
    """Write scores whose value at class l and voxel (x, y, z) is 1000 l + 100 x + 10 y + z."""
    nibabel = pytest.importorskip("nibabel")
    digits = [np.arange(size) for size in (2, 6, 4, 3)]
    scores = sum(w * grid for w, grid in zip((1000, 100, 10, 1), np.meshgrid(*digits, indexing="ij"), strict=True))
    last = np.moveaxis(scores, 0, -1)
    stored = {"first": scores, "last": last, "vector": last[:, :, :, None]}
    labels = np.zeros((6, 4, 3), np.int16)
    labels[5, 2, 1] = 1  # x, y, z
    for where, array in (("logits", stored[layout].astype(np.float32)), ("labels", labels)):
        (root / where).mkdir(parents=True, exist_ok=True)
        image = nibabel.Nifti1Image(array, AFFINE)
        image.header.set_xyzt_units("mm")
        if where == "labels":
            image.header.set_intent("label")
        nibabel.save(image, root / where / f"a{extension}")
    return scores


# ---- reading, through the case stream as every command does ---------------------------------------------------------


def read_all(folder: Folder) -> None:
    """Go through all cases of a folder, where everything that is wrong with one is raised."""
    labelled = all(files.labels for files in folder.files.values())
    many = folder.num_classes if folder.activation == "sigmoid" else 1
    for channel in range(many):
        sigmoid = folder.activation == "sigmoid"
        cases = channel_cases(folder, channel, many) if sigmoid else folder
        classes = 2 if sigmoid else folder.num_classes
        for _ in CaseStream(cases, classes, ignore_index=folder.ignore_index, labelled=labelled).slabs():
            pass


def complaint(root: Path, **options: Any) -> str:
    """Return the message with which opening a folder or reading its cases fails."""
    with pytest.raises(InputError) as caught:
        read_all(open_folder(root, **options))
    message = str(caught.value)
    assert "\n" not in message
    return message
