"""Register many pairs and keep the warps on disk: in parallel, resumable, safe against a kill at any moment.

A warp is one file, `FOLDER/TARGET/ATLAS.npz`, written under a temporary name and then renamed, so a file of that name
is always whole. It holds a digest of the two volumes and of the settings: a warp made from other data is made again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from segcal.data.io.npz import read_array
from segcal.files import staged_file
from segcal.fusion.registration import RegistrationQuality, RegistrationSettings, Volume, Warp, register, simple_itk
from segcal.types import Array, InputError

LEVELS = 256
"""Grey levels of a warped image on disk; the noise of an MR image is far above the rounding."""

Read = Callable[[str], Volume]
Watch = Callable[["RegistrationOutcome", int, int], None]


class Pair(NamedTuple):
    """An atlas to be registered to a target, by name."""

    atlas: str
    target: str


class RegistrationOutcome(NamedTuple):
    """Quality of the registration of a pair, or the error that stopped it; `made` is False where the warp existed."""

    pair: Pair
    quality: RegistrationQuality | None
    made: bool
    error: str | None = None

    @property
    def problem(self) -> str | None:
        """Error, or reason why the registration counts as failed, or None."""
        return self.error if self.quality is None else self.quality.problem


def register_pairs(
    pairs: Sequence[Pair],
    read: Read,
    folder: str | Path,
    settings: RegistrationSettings | None = None,
    *,
    processes: int = 1,
    watch: Watch | None = None,
) -> list[RegistrationOutcome]:
    """Register each pair whose warp does not exist yet; outcomes are in the order of `pairs`.

    Args:
        pairs: Atlases and targets.
        read: Returns the volume of a name; with several processes it must be importable (a function of a module, or a
            `functools.partial` of one).
        folder: Folder of the warps.
        settings: Parameters of the registration.
        processes: Number of pairs to register at a time.
        watch: Called after each pair with its outcome, the number done and the number of all.
    """
    simple_itk()  # before processes start, so that its absence is reported once
    settings = settings or RegistrationSettings()
    work = partial(_register_one, read=read, folder=Path(folder), settings=settings)
    found: dict[Pair, RegistrationOutcome] = {}
    for outcome in _outcomes(work, pairs, processes):
        found[outcome.pair] = outcome
        if watch is not None:
            watch(outcome, len(found), len(pairs))
    return [found[pair] for pair in pairs]


def warp_path(folder: str | Path, pair: Pair) -> Path:
    """Return the path of the warp of a pair."""
    return Path(folder) / pair.target / f"{pair.atlas}.npz"


def read_warp(folder: str | Path, pair: Pair) -> Warp:
    """Read the warp of a pair."""
    path = warp_path(folder, pair)
    if not path.exists():
        raise InputError(f"'{path}' is missing; register '{pair.atlas}' to '{pair.target}' first")
    return _read(path)[0]


def write_warp(path: Path, warp: Warp, digest: str) -> None:
    """Write a warp so that it appears whole or not at all."""
    with staged_file(path) as target:
        np.savez_compressed(
            target,
            image=encoded(warp.image),
            labels=_narrow(warp.labels),
            quality=np.array(warp.quality),
            digest=np.frombuffer(digest.encode(), np.uint8),
        )


def encoded(image: Array) -> Array:
    """Return an image of 0..1 as differences between neighbouring grey levels, which compress better than the levels.

    Examples:
        >>> encoded(np.array([0.0, 0.2, 1.0, 0.8]))
        array([  0,  51, 204, 205], dtype=uint8)
    """
    grey = np.rint(np.clip(image, 0, 1) * (LEVELS - 1)).astype(np.uint8)
    return np.diff(grey, axis=-1, prepend=np.uint8(0))


def decoded(differences: Array) -> Array:
    """Return the image that `encoded` was given, at its grey levels, as float32."""
    grey: Array = np.cumsum(differences, axis=-1, dtype=np.uint8)
    return grey.astype(np.float32) / (LEVELS - 1)


def digest_of(target: Volume, atlas: Volume, settings: RegistrationSettings) -> str:
    """Return what identifies the inputs of a registration."""
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    for volume in (target, atlas):
        digest.update(repr((volume.image.shape, volume.spacing)).encode())
        digest.update(np.ascontiguousarray(volume.image, np.float32).tobytes())
        digest.update(np.ascontiguousarray(volume.labels, np.int32).tobytes())
    return digest.hexdigest()


def _outcomes(
    work: Callable[[Pair], RegistrationOutcome], pairs: Sequence[Pair], processes: int
) -> Iterator[RegistrationOutcome]:
    if processes == 1:
        yield from map(work, pairs)
        return
    # new interpreters: a fork of a process whose libraries hold threads can hang
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for future in as_completed([pool.submit(work, pair) for pair in pairs]):
            yield future.result()


def _register_one(pair: Pair, *, read: Read, folder: Path, settings: RegistrationSettings) -> RegistrationOutcome:
    simple_itk().ProcessObject.SetGlobalDefaultNumberOfThreads(1)  # the pairs are what runs in parallel
    target, atlas = read(pair.target), read(pair.atlas)
    path, digest = warp_path(folder, pair), digest_of(target, atlas, settings)
    if (kept := _kept(path, digest)) is not None:
        return RegistrationOutcome(pair, kept, made=False)
    try:
        warp = register(target, atlas, settings)
    except RuntimeError as error:  # what SimpleITK raises; the other pairs go on
        return RegistrationOutcome(pair, None, made=False, error=f"SimpleITK failed: {str(error).splitlines()[-1]}")
    write_warp(path, warp, digest)
    return RegistrationOutcome(pair, warp.quality, made=True)


def _kept(path: Path, digest: str) -> RegistrationQuality | None:
    """The quality of a warp that exists and was made from the same inputs."""
    if not path.exists():
        return None
    try:
        warp, found = _read(path)
    except InputError:  # damaged by something other than segcal: made again
        return None
    return warp.quality if found == digest else None


def _read(path: Path) -> tuple[Warp, str]:
    image, labels, quality, digest = (read_array(path, name) for name in ("image", "labels", "quality", "digest"))
    if quality.shape != (len(RegistrationQuality._fields),):
        raise InputError(f"'{path}' is damaged; delete it and register again")
    return Warp(decoded(image), labels, RegistrationQuality(*map(float, quality))), digest.tobytes().decode("latin-1")


def _narrow(labels: Array) -> Array:
    """Labels in the smallest unsigned type that holds them."""
    return labels.astype(np.min_scalar_type(int(labels.max(initial=0))))


def failures(outcomes: Iterable[RegistrationOutcome]) -> list[str]:
    """One sentence for each pair whose registration failed."""
    return [f"{o.pair.atlas} to {o.pair.target}: {o.problem}" for o in outcomes if o.problem]
