"""A calibrator over a folder: what is written keeps every label, in every format and precision, or is not written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

import segcal
from segcal.apply import apply_to_folder
from segcal.calibrators import Calibrator, Learned
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.types import Case, InputError
from support.scenes import simulated

CLASSES = 5
DTYPES = {"float32": np.float32, "float16": np.float16}
SIZES = {2: (18, 15), 3: (6, 8, 10)}
AFFINE = np.diag([2.0, 3.0, 4.0, 1.0])


def make_cases(dims: int = 2) -> list[Case]:
    """Usual scenes; one of nearly equal scores, whose winner is ahead by one unit in the last place; one of equals."""
    usual = simulated(2, num_classes=CLASSES, size=SIZES[dims])
    winner = np.asarray(usual[0].logits).argmax(0)
    near = np.ones((CLASSES, *SIZES[dims]), np.float32)
    np.put_along_axis(near, winner[None], np.nextafter(np.float32(1), np.float32(2)), axis=0)
    return [
        *usual,
        replace(usual[0], name="near", logits=near),
        replace(usual[0], name="tied", logits=np.ones_like(near)),
        replace(usual[0], name="huge", logits=np.asarray(usual[0].logits) * np.float32(1e30)),
    ]


def scaling(temperature: float) -> Calibrator:
    return segcal.create("ts", CLASSES, bounds=(temperature, temperature)).fit(make_cases()[:1])


@pytest.fixture(params=[2, 3], ids=["2d", "3d"])
def dims(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def data(tmp_path: Path, dims: int) -> Path:
    write_folder(tmp_path / "data", {"test": make_cases(dims)})
    return tmp_path / "data"


def test_nothing_is_written_if_a_label_would_change(
    tmp_path: Path, data: Path, dims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which no kernel does; the labels of what is written are counted."""
    wrong = lambda logits, _: logits.flip(1).softmax(1)  # noqa: E731
    monkeypatch.setattr("segcal.calibrators.temperature.scaled_probabilities", wrong)
    with pytest.raises(InputError, match=r"\d+ labels of case 'huge' would change"):
        apply_to_folder(scaling(1.5), open_folder(data), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("temperature", [0.05, 1.7, 100.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_labels_are_kept_in_the_files(tmp_path: Path, data: Path, dims: int, dtype: str, temperature: float) -> None:
    folder, calibrator = open_folder(data), scaling(temperature)
    summary = apply_to_folder(calibrator, folder, out=tmp_path / "out", dtype=dtype)
    pixels = int(np.prod(SIZES[dims]))
    assert summary == {"cases": 5, "pixels": 5 * pixels, "changed": 0}
    assert json.loads((tmp_path / "out" / "segcal.json").read_text())["probabilities"] == summary
    for case in make_cases(dims):
        probs = np.load(tmp_path / "out" / f"{case.name}.npy", allow_pickle=False)
        assert probs.dtype == DTYPES[dtype]
        np.testing.assert_array_equal(probs.argmax(0), np.asarray(case.logits).argmax(0))
        tolerance = CLASSES * np.finfo(DTYPES[dtype]).eps
        np.testing.assert_allclose(probs.astype(np.float64).sum(0), 1, atol=tolerance)
        expected = calibrator.predict_proba(torch.as_tensor(case.logits)[None])[0].numpy()
        # files are made of scaled logits, which float32 rounds; probabilities are made of their differences
        rounding = np.finfo(np.float32).eps * float(np.abs(case.logits).max()) / temperature
        np.testing.assert_allclose(probs, expected, rtol=1e-6, atol=tolerance + rounding)


@pytest.mark.parametrize("slab", [1, 4000])
def test_slabs_equal_the_whole(tmp_path: Path, data: Path, slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(data)
    apply_to_folder(scaling(2.0), folder, out=tmp_path / "whole", maps=["temperature"])
    monkeypatch.setattr("segcal.cases.reading.SLAB", slab)
    apply_to_folder(scaling(2.0), folder, out=tmp_path / "slabs", maps=["temperature"])
    written = sorted((tmp_path / "whole").rglob("*.npy"))
    assert len(written) == 10
    for path in written:
        again = tmp_path / "slabs" / path.relative_to(tmp_path / "whole")
        np.testing.assert_allclose(np.load(again), np.load(path), rtol=1e-6)


def test_temperature_maps(tmp_path: Path, data: Path, dims: int) -> None:
    folder = open_folder(data)
    apply_to_folder(scaling(1.7), folder, out=tmp_path / "out", maps=["temperature"])
    for name in folder.names:
        np.testing.assert_array_equal(
            np.load(tmp_path / "out" / "temperature" / f"{name}.npy"), np.full(SIZES[dims], np.float32(1.7))
        )


@pytest.mark.parametrize("lowest", [-1e300, np.finfo(np.float64).min])
@pytest.mark.parametrize("method", ["ts", "ets"])
def test_float64_beyond_the_range_of_float32_is_finite(tmp_path: Path, method: str, lowest: float) -> None:
    """The lowest number of a precision often marks a class that is ruled out."""
    usual = make_cases()[0]
    logits = np.asarray(usual.logits).astype(np.float64)
    logits[0, :9] = lowest
    write_folder(tmp_path / "data", {"test": [replace(usual, logits=logits)]})
    calibrator = segcal.create(method, CLASSES).fit([usual])
    assert apply_to_folder(calibrator, open_folder(tmp_path / "data"), out=tmp_path / "out")["changed"] == 0
    probs = np.load(tmp_path / "out" / f"{usual.name}.npy", allow_pickle=False)
    expected = calibrator.predict_proba(torch.as_tensor(logits)[None])[0].numpy()
    np.testing.assert_allclose(probs, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(0, 18, 15), (CLASSES, 0, 15)])
def test_a_case_without_classes_or_pixels_is_refused(tmp_path: Path, data: Path, shape: tuple[int, ...]) -> None:
    empty = sorted((data / "logits").iterdir())[-1]
    np.save(empty, np.zeros(shape, np.float32))
    with pytest.raises(InputError, match=f"(must have classes and pixels|shape).*of case '{empty.stem}'"):
        apply_to_folder(scaling(2.0), open_folder(data), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_labels_are_not_needed(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", {"new": [replace(case, labels=None) for case in make_cases()]})
    folder = open_folder(tmp_path / "data", num_classes=CLASSES, require_labels=False)
    assert apply_to_folder(scaling(1.7), folder, out=tmp_path / "out")["cases"] == 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_nifti_keeps_labels_and_geometry(tmp_path: Path, dtype: str) -> None:
    for kind in ("logits", "labels"):
        (tmp_path / "data" / kind).mkdir(parents=True)
    for case in make_cases(3):
        scores = np.asarray(case.logits).T  # x y z L
        nibabel.save(nibabel.Nifti1Image(scores, AFFINE), tmp_path / "data" / "logits" / f"{case.name}.nii.gz")
        truth = np.asarray(case.labels).T.astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(truth, AFFINE), tmp_path / "data" / "labels" / f"{case.name}.nii.gz")
    folder = open_folder(tmp_path / "data")
    apply_to_folder(scaling(100.0), folder, out=tmp_path / "out", dtype=dtype, maps=["temperature"])
    for case in make_cases(3):
        written = nibabel.load(tmp_path / "out" / f"{case.name}.nii.gz")
        np.testing.assert_array_equal(written.affine, AFFINE)
        np.testing.assert_array_equal(np.asarray(written.dataobj).T.argmax(0), np.asarray(case.logits).argmax(0))
        heat = nibabel.load(tmp_path / "out" / "temperature" / f"{case.name}.nii.gz")
        np.testing.assert_array_equal(heat.affine, AFFINE)
        assert heat.shape == SIZES[3][::-1]


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in parts"])
@pytest.mark.parametrize("stored", [np.float32, np.float64])
def test_labels_of_probabilities_are_those_of_the_file(
    tmp_path: Path, stored: type[np.floating[Any]], whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their float32 logarithms merge neighbours, so that the argmax of many pixels would be another class."""
    random = np.random.default_rng(0)
    top = random.uniform(0.34, 0.49, (16, 64)).astype(stored)
    near = np.nextafter(top, stored(0))
    probs = np.stack([near, 1 - top - near, top, *np.zeros((2, 16, 64), stored)])
    assert (np.log(probs[0]) == np.log(probs[2])).any()
    (tmp_path / "data" / "logits").mkdir(parents=True)
    np.save(tmp_path / "data" / "logits" / "a.npy", probs)
    if not whole:
        monkeypatch.setattr("segcal.data.io.base.IN_MEMORY", 1)
        monkeypatch.setattr("segcal.cases.reading.SLAB", 1)
    folder = open_folder(tmp_path / "data", num_classes=CLASSES, scores="probabilities", require_labels=False)
    summary = apply_to_folder(scaling(2.0), folder, out=tmp_path / "out")
    written = np.load(tmp_path / "out" / "a.npy")
    np.testing.assert_array_equal(written.argmax(0), probs.argmax(0))
    assert summary["changed"] == 0


class Shift(Calibrator):
    """Gives each class the score of the one before, so that every label changes."""

    method = "shift"
    preserves_labels = False

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.fitted.fill_(True)

    def _learn(self, stream: Any, *, validation: Any, settings: Any) -> Learned:
        return Learned(1, 1.0, 1.0)

    def _map(self, logits: torch.Tensor, image: torch.Tensor | None = None) -> torch.Tensor:
        return logits.roll(1, dims=1)


class Liar(Shift):
    preserves_labels = True


def test_changed_labels_are_counted(tmp_path: Path, data: Path, dims: int) -> None:
    folder = open_folder(data)
    summary = apply_to_folder(Shift(CLASSES), folder, out=tmp_path / "out")
    assert summary["changed"] == 4 * int(np.prod(SIZES[dims]))  # all but those of the case of equal scores


def spoil_last(data: Path) -> None:
    path = data / "logits" / "tied.npy"
    logits = np.load(path)
    logits.flat[3] = np.nan
    np.save(path, logits)


@pytest.mark.parametrize(
    ("options", "spoil", "error", "message"),
    [
        ({"dtype": "float8"}, None, InputError, "dtype must be one of float32, float16, got 'float8'"),
        ({"calibrator": Shift(CLASSES), "maps": ["temperature"]}, None, InputError, "'shift' has no temperature"),
        ({"calibrator": segcal.create("ts", CLASSES)}, None, InputError, "not been fitted"),
        ({"calibrator": Liar(CLASSES)}, None, InputError, "labels of case 'huge' would change"),
        ({}, spoil_last, InputError, "logits must be finite.* got nan .* case 'tied'"),
    ],
)
def test_nothing_is_left_of_a_failure(
    tmp_path: Path,
    data: Path,
    options: dict[str, Any],
    spoil: Callable[[Path], None] | None,
    error: type[Exception],
    message: str,
) -> None:
    if spoil:
        spoil(data)
    folder = open_folder(data)
    arguments = {"calibrator": scaling(2.0), **options}
    with pytest.raises(error, match=message):
        apply_to_folder(arguments.pop("calibrator"), folder, out=tmp_path / "out", **arguments)
    finished = ["out.unfinished"] if spoil else []  # the cases before it, for the next run
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", *finished]


def test_maps_of_uncertainty_follow_from_what_is_written(tmp_path: Path, data: Path) -> None:
    folder = open_folder(data)
    maps = ["entropy", "confidence", "labels"]
    apply_to_folder(scaling(1.7), folder, out=tmp_path / "out", dtype="float16", maps=maps)
    for case in folder:
        probs = np.load(tmp_path / "out" / f"{case.name}.npy").astype(np.float32)
        found = {name: np.load(tmp_path / "out" / name / f"{case.name}.npy") for name in maps}
        np.testing.assert_array_equal(found["labels"], np.asarray(case.logits).argmax(0))
        assert found["labels"].dtype == np.uint8
        np.testing.assert_array_equal(found["confidence"], probs.max(0))
        logs = np.log(np.where(probs > 0, probs, 1))
        np.testing.assert_allclose(found["entropy"], -(probs * logs).sum(0), atol=1e-5)


@pytest.mark.parametrize(
    ("maps", "message"),
    [(["heat"], "maps must be among temperature, entropy"), (["disagreement"], "'ts' does not look at several passes")],
)
def test_maps_that_cannot_be_made_are_refused(tmp_path: Path, data: Path, maps: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_to_folder(scaling(1.7), open_folder(data), out=tmp_path / "out", maps=maps)
