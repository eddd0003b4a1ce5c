"""Five strangers meet segcal: what the first answer says to each of them, not only that it runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import segcal
from segcal.data.folders.writer import write_folder
from segcal.evaluation.recommendation import recommend
from segcal.evaluation.results import Results
from segcal.types import Array
from support.commands import done, succeed, succeed_json
from support.scenes import simulated

DOCS = Path(__file__).parents[1] / "docs"


# --------------------------------------------------------------------------------------------------------------------
# an engineer with a loader


class Overconfident(nn.Module):
    """A network whose image holds calibrated logits, and which makes them three times too large."""

    def forward(self, image: Tensor) -> Tensor:
        return 3 * image


def loader(seed: int, many: int = 6) -> DataLoader[tuple[Tensor, ...]]:
    random = np.random.default_rng(seed)
    images = 2 * random.normal(size=(many, 3, 24, 24)).astype(np.float32)
    labels = (images + random.gumbel(size=images.shape)).argmax(axis=1)
    return DataLoader(TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)), batch_size=2)


def test_an_engineer_with_a_loader() -> None:
    calibrated = segcal.calibrate(Overconfident(), loader(0))
    assert isinstance(calibrated, segcal.CalibratedModel)
    report = calibrated.calibrator.fit_report_
    assert report.seconds < 60, "the default method has a budget of a minute"
    assert report.nll_after < report.nll_before
    images, labels = (torch.cat(parts) for parts in zip(*loader(1), strict=True))
    with torch.no_grad():
        before = segcal.ece(Overconfident()(images), labels)
        after = segcal.ece(calibrated.logits(images), labels)
        assert after == pytest.approx(segcal.ece(calibrated(images), labels, scores="probabilities"), abs=1e-3)
        assert torch.equal(calibrated(images).argmax(1), images.argmax(1)), "labels are kept"
    assert before > 0.1
    assert after < 0.03
    with pytest.raises(segcal.InputError, match="probabilities"), torch.no_grad():
        segcal.ece(Overconfident()(images), labels, scores="probabilities")


# --------------------------------------------------------------------------------------------------------------------
# an nnU-Net user

CLASSES = {"background": 0, "anterior": 1, "posterior": 2}


def volume(random: np.random.Generator, shape: tuple[int, ...] = (8, 20, 20)) -> tuple[Array, Array]:
    """Overconfident logits `[3, z, y, x]` and labels: mostly background, which the network finds easily."""
    logits = random.normal(size=(3, *shape))
    logits[0] += 8
    logits[0, 3:5, 6:14, 6:14] -= 8
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=0).astype(np.uint8)
    return (4 * logits).astype(np.float32), labels


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    """A folder of `nnUNetv2_predict --save_probabilities`, in which one archive was lost."""
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: pip install segcal[medical]")
    folder, random = tmp_path / "predictions", np.random.default_rng(0)
    (folder / "labels").mkdir(parents=True)
    for name in ("case_01", "case_02", "case_03", "no_scores"):
        logits, labels = volume(random)
        probs = torch.from_numpy(logits).softmax(0).numpy()
        nibabel.save(nibabel.Nifti1Image(labels.T, np.eye(4)), folder / "labels" / f"{name}.nii.gz")
        if name != "no_scores":
            segmentation = probs.argmax(0).astype(np.uint8)
            nibabel.save(nibabel.Nifti1Image(segmentation.T, np.eye(4)), folder / f"{name}.nii.gz")
            np.savez(folder / f"{name}.npz", probabilities=probs)
    (folder / "case_03.npz").unlink()
    content = {"labels": CLASSES, "file_ending": ".nii.gz", "channel_names": {"0": "MRI"}, "numTraining": 4}
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder


def test_an_nnunet_user(predictions: Path, tmp_path: Path) -> None:
    result = done("evaluate", predictions, "--patch-size", 6, "--out", tmp_path / "results")
    said = " ".join(result.stderr.split())
    assert "1 prediction ('case_03') without .npz" in said
    assert re.search(r"label files? .*no_scores.* without scores", said)
    results = Results.load(tmp_path / "results")
    assert set(results.frame.case) == {"case_01", "case_02"}
    assert results.settings["background"] == 0, "known from dataset.json"
    assert "--background" not in said
    assert {"background", "anterior", "posterior"} <= set(results.curve_frame.label)  # type: ignore[union-attr]
    fitted = tmp_path / "ts"
    report = succeed_json("fit", predictions, "--method", "ts", "--out", fitted)
    assert report["cases"] == 2
    assert report["details"]["temperature"] > 2
    assert segcal.load(fitted).background == 0


# --------------------------------------------------------------------------------------------------------------------
# a folder of NIfTI without settings


@pytest.fixture
def nifti(tmp_path: Path) -> Path:
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: pip install segcal[medical]")
    folder, random = tmp_path / "volumes", np.random.default_rng(1)
    for name in ("logits", "labels"):
        (folder / name).mkdir(parents=True)
    for k in range(3):
        logits, labels = volume(random)
        assert (labels == 0).mean() > 0.9
        scores = nibabel.Nifti1Image(np.moveaxis(logits, 0, -1).transpose(2, 1, 0, 3), np.eye(4))
        nibabel.save(scores, folder / "logits" / f"scan_{k}.nii.gz")
        nibabel.save(nibabel.Nifti1Image(labels.T, np.eye(4)), folder / "labels" / f"scan_{k}.nii.gz")
    return folder


def test_a_folder_of_nifti_without_settings(nifti: Path, tmp_path: Path) -> None:
    first = " ".join(done("evaluate", nifti, "--patch-size", 6).stderr.split())
    found = re.search(
        r"class '0' covers (\d+) % of the labelled pixels: UC has an ECE of ([\d.]+) % and an NLL of [\d.]+ over all "
        r"pixels and an ECE of ([\d.]+) % and an NLL of [\d.]+ without this class",
        first,
    )
    assert found is not None, first
    covered, with_it, without = map(float, found.groups())
    assert covered > 90
    assert without > 3 * with_it, "the background hides the structures"
    assert "set background=0 (--background 0)" in first
    diagnosis = done("diagnose", nifti)
    said = " ".join(diagnosis.stderr.split())
    found = re.search(r"best temperature is ([\d.]+) over all pixels and ([\d.]+) without this class", said)
    assert found is not None, said
    named = succeed_json("diagnose", nifti, "--background", 0)
    assert float(found.group(2)) == pytest.approx(named["dataset"]["temperature"], rel=0.01)
    assert named["doubt"] == ""
    second = done("evaluate", nifti, "--patch-size", 6, "--background", 0, "--out", tmp_path / "results")
    assert "covers" not in second.stderr
    pooled = Results.load(tmp_path / "results").pooled().query("region == 'all' and metric == 'ece'")
    assert 100 * float(pooled.value.iloc[0]) > 3 * with_it
    succeed("fit", nifti, "--method", "ts", "--out", tmp_path / "ts")
    other = done("evaluate", nifti, "--patch-size", 6, "--background", 0, "--calibrators", tmp_path / "ts").stderr
    assert "TS was fitted without a background and is measured with background=0" in " ".join(other.split())


# --------------------------------------------------------------------------------------------------------------------
# a researcher with arrays


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_a_researcher_with_arrays(convert: type) -> None:
    cases = simulated(8, num_classes=3, size=(20, 22), variation="global")
    logits, labels = (np.stack([getattr(case, name) for case in cases]) for name in ("logits", "labels"))
    ours, theirs = (
        tuple(convert(values) for values in (logits[part], labels[part])) for part in (slice(4), slice(4, 8))
    )
    ts = segcal.create("ts", num_classes=3).fit(*ours)
    by_hand = segcal.create("ts", num_classes=3).fit(cases[:4])
    assert ts.fit_report_.details["temperature"] == by_hand.fit_report_.details["temperature"] > 2
    pairs = [*zip(*theirs, strict=True)]
    results = segcal.evaluate(pairs, {"UC": None, "TS": ts}, num_classes=3, patch_size=8)
    assert recommend(results).reason.startswith("Use TS (temperature scaling): it lowers the NLL of UC by ")
    assert segcal.evaluate(pairs, ts, patch_size=8).frame.value.equals(results.frame.value)
    value = results.pooled().query("method == 'UC' and region == 'all' and metric == 'ece'").value.item()
    assert value == pytest.approx(segcal.ece(*theirs), rel=1e-6)
    classwise = segcal.create("classwise", num_classes=3).fit(*ours)
    assert (classwise.method, classwise.config()["features"]) == ("cts", False)


def test_a_researcher_is_told_what_is_missing() -> None:
    logits, labels = np.zeros((2, 3, 4, 5), np.float32), np.zeros((2, 4, 5), int)
    ts = segcal.create("ts", num_classes=3)
    with pytest.raises(segcal.InputError, match=r"labels are needed .*: fit\(logits, labels\)"):
        ts.fit(logits)
    with pytest.raises(segcal.InputError, match=r"logits must have shape \(B, L, \*S\) .*add the axis of the batch"):
        ts.fit(logits[0], labels[0])
    with pytest.raises(segcal.InputError, match=r"pairs \(logits, labels\), got ndarray"):
        ts.fit([logits, labels])  # type: ignore[list-item]
    for wrong in (None, "folder", DataLoader(TensorDataset(torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5)))):
        with pytest.raises(segcal.InputError, match=r"cases must be segcal.Case or pairs \(logits, labels\), got "):
            ts.fit(wrong)  # type: ignore[arg-type]
    with pytest.raises(segcal.InputError, match="must be arrays or tensors, got ndarray and list"):
        ts.fit(logits, labels.tolist())  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------------
# a reader of the docs


def test_a_reader_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the quickstart, as printed there, one after another."""
    page = (DOCS / "start" / "quickstart.md").read_text(encoding="utf-8")
    commands = [line.partition("#")[0].split()[1:] for line in re.findall(r"^segcal .*$", page, flags=re.MULTILINE)]
    assert [command[0] for command in commands] == ["diagnose", "fit", "evaluate", "apply"]
    monkeypatch.chdir(tmp_path)
    scenes = simulated(6, num_classes=3, size=(24, 24), variation="global")
    names = ("field", "road", "water")
    write_folder("DATA", {"fit": scenes[:3], "test": scenes[3:]}, class_names=names, background=None)
    said = {command[0]: " ".join(succeed(*command).split()) for command in commands}
    assert "The scores are overconfident; the best temperature for all images is " in said["diagnose"]
    assert re.search(r"ts: NLL [\d.]+ -> [\d.]+ nats on 3 cases .* temperature \d.* saved in ts", said["fit"])
    assert "Use TS (temperature scaling): it lowers the NLL of UC by " in said["evaluate"]
    assert "page.html" in said["evaluate"]
    assert "every predicted label kept; written to calibrated" in said["apply"]
    assert "Use TS (temperature scaling)" in Path("page.html").read_text(encoding="utf-8"), "the same recommendation"
