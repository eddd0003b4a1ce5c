"""Ray Data on a local cluster of two workers gives what one process gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.data.sample.scenes import simulate
from segcal.integrations.ray import CalibrateBatches, MeasureBatches, measured_results
from segcal.types import Case

SIZES = [(16, 14), (20, 17), (16, 14), (24, 12), (16, 14)]
PROTOCOL = {"num_classes": 3, "patch_size": 8, "floor": True}


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    scenes = [simulate(1, num_classes=3, size=size, seed=k)[0].case for k, size in enumerate(SIZES)]
    return [Case(f"c{k}", np.asarray(scene.logits), np.asarray(scene.labels)) for k, scene in enumerate(scenes)]


@pytest.fixture(scope="module")
def calibrator(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrators") / "ts"
    segcal.create("ts", 3).fit(cases).save(path)
    return path


def batch_of(cases: list[Case]) -> dict[str, np.ndarray]:
    columns = {"name": np.array([case.name for case in cases])}
    for field in ("logits", "labels"):
        column = np.empty(len(cases), object)
        for k, case in enumerate(cases):
            column[k] = getattr(case, field)
        columns[field] = column
    return columns


def test_batches_without_a_cluster(cases: list[Case], calibrator: Path) -> None:
    """What the workers run is plain Python, so that it is tested where there is no Ray."""
    ts = segcal.load(calibrator)
    calibrated = CalibrateBatches(str(calibrator))(batch_of(cases))["probabilities"]
    for case, probs in zip(cases, calibrated, strict=True):
        np.testing.assert_array_equal(probs.argmax(0), case.logits.argmax(0))
        np.testing.assert_allclose(probs.sum(0), 1, rtol=1e-6)
    settings = {"calibrators": {"UC": None, "TS": str(calibrator)}, "protocol": PROTOCOL}
    measure = MeasureBatches(**settings)
    rows = [{"found": row} for part in (cases[3:], cases[:3]) for row in measure(batch_of(part))["found"]]
    found = measured_results(rows, **settings)
    expected = segcal.evaluate(cases, {"UC": None, "TS": ts}, **PROTOCOL)
    for table in ("frame", "patch_frame", "pooled_frame", "curve_frame", "volume_frame"):
        assert getattr(found, table).equals(getattr(expected, table)), table
    assert found.redrawn is not None


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(segcal.__file__).parents[1]))  # workers import segcal from where it is
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        yield
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_two_workers(cases: list[Case], calibrator: Path, cluster: None) -> None:
    import ray

    rows = [{"name": case.name, "logits": case.logits, "labels": case.labels} for case in cases]
    dataset = ray.data.from_items(rows, override_num_blocks=2)
    calibrated = dataset.map_batches(
        CalibrateBatches, fn_constructor_kwargs={"calibrator": str(calibrator)}, batch_size=2, concurrency=2
    )
    probs = {row["name"]: np.asarray(row["probabilities"]) for row in calibrated.iter_rows()}
    direct = CalibrateBatches(str(calibrator))(batch_of(cases))["probabilities"]
    for case, expected in zip(cases, direct, strict=True):
        np.testing.assert_array_equal(probs[case.name], expected)
    settings = {"calibrators": {"UC": None, "TS": str(calibrator)}, "protocol": PROTOCOL}
    found = dataset.map_batches(MeasureBatches, fn_constructor_kwargs=settings, batch_size=2, concurrency=2)
    results = measured_results(found.iter_rows(), **settings)
    whole = segcal.evaluate(cases, {"UC": None, "TS": segcal.load(calibrator)}, **PROTOCOL)
    assert results.frame.equals(whole.frame)
    assert results.pooled_frame.equals(whole.pooled_frame)
