"""The comparison over splits and sizes, on tiny trees in the layouts of VOC's scores and of CamVid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.beyond import __main__ as command
from experiments.beyond.__main__ import main
from experiments.beyond.measure import finished
from experiments.beyond.methods import Training, method_named
from experiments.beyond.splits import camvid_tasks, voc_tasks
from experiments.beyond.table import COLUMNS, gathered, tables
from experiments.datasets.camvid import sequence_of
from experiments.rows import pack_rows, unpack_rows
from segcal import InputError
from support.camvid_tree import NAMES, write_camvid
from support.fits import choose_among_few
from support.program import printed_by
from support.voc_tree import write_voc

JOB = "fc-densenettiny-ce-0"


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voc(tmp_path_factory.mktemp("voc"), range(4), 12)


@pytest.fixture(scope="module")
def camvid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root, random = tmp_path_factory.mktemp("camvid"), np.random.default_rng(0)
    write_camvid(root, (20, 24))
    job = tmp_path_factory.mktemp("jobs") / JOB
    for split in ("val", "test"):
        (job / "logits" / split).mkdir(parents=True)
        for name in NAMES[split]:
            np.save(job / "logits" / split / f"{name}.npy", random.normal(0, 2, (11, 20, 24)).astype(np.float16))
    return root, job


def test_fit_and_test_share_no_image_and_no_block_of_time(voc: Path, camvid: tuple[Path, Path]) -> None:
    tasks = [*voc_tasks(voc, 3), *camvid_tasks(*camvid, 3)]
    assert {task.data for task in tasks} == {"voc", "camvid", "camvid-0001TP", "camvid-Seq05VD"}
    drawn = dict[str, set[tuple[str, ...]]]()
    for task in tasks:
        names = [{case.name for case in part} for part in (task.fit, task.test)]
        assert not names[0] & names[1]
        assert all(names)
        groups = [{case.group for case in part} - {None} for part in (task.fit, task.test)]
        assert not groups[0] & groups[1]
        drawn.setdefault(task.data, set()).add(tuple(case.name for case in task.fit))
    assert all(len(splits) == 3 for data, splits in drawn.items() if data in ("voc", "camvid"))


def test_camvid_is_fitted_on_val_and_counted_by_video(camvid: tuple[Path, Path]) -> None:
    task = next(task for task in camvid_tasks(*camvid, 1) if task.data == "camvid")
    assert {case.name for case in task.fit} <= set(NAMES["val"])
    assert {task.part_of(case.name) for case in task.test} == {"camvid, 0001TP", "camvid, Seq05VD"}
    one = next(task for task in camvid_tasks(*camvid, 1) if task.data == "camvid-Seq05VD")
    assert {sequence_of(case.name) for case in (*one.fit, *one.test)} == {"Seq05VD"}


def test_results_accumulate(
    voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_among_few(monkeypatch)
    common = ["run", "--voc", str(voc), "--out", str(tmp_path), "--splits", "2", "--sizes", "3", "--epochs", "2"]
    assert main([*common, "--methods", "UC", "TS"]) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("report.json")}
    assert len(before) == 2 * 2 * 2
    assert main([*common, "--methods", "UC", "TS", "LTS", "IBTS paper", "CTS with classes"]) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in before.items()), "what is there is not done again"
    done = list(finished(tmp_path))
    assert len(done) == 2 * 2 * 5
    for item, report, results in done:
        assert report["changed"][0] == 0, item
        assert results.methods == (item.method,)
        if item.method == "LTS":
            assert set(report["notes"]) == {"best_epoch", "share"}
        if item.method == "TS":
            assert len(report["fit"]["names"]) == item.images
    few, all_of_them = (
        {tuple(report["fit"]["names"]) for item, report, _ in done if (item.method, item.images) == ("TS", count)}
        for count in (3, 6)
    )
    assert {names[:3] for names in all_of_them} == few, "fewer images are the first of more"
    capsys.readouterr()
    assert main([*common[:-1], "3", "--methods", "LTS"]) == 2
    assert "was begun with epochs=2, and now it is 3" in capsys.readouterr().err
    assert main(["table", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "## VOC\n\n6 images to fit on, 6 to measure, up to 2 splits." in text
    assert "NLL against TS, %: mean (worst), splits | 3 images | all images" in text
    assert (tmp_path / "tables.md").read_text() == text


def test_an_archive_takes_what_was_measured_again_and_keeps_the_rest(
    voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MEASURED", kept := tmp_path / "kept.csv.xz")
    common = ["run", "--voc", str(voc), "--splits", "1", "--sizes"]
    assert main([*common, "--out", str(tmp_path / "first"), "--methods", "UC", "TS"]) == 0
    pack_rows(gathered(tmp_path / "first").assign(seconds=7.0), kept, COLUMNS)
    assert main([*common, "--out", str(tmp_path / "again"), "--methods", "TS"]) == 0
    assert main(["archive", "--out", str(tmp_path / "again")]) == 0
    seconds = unpack_rows(kept).groupby("method")["seconds"].unique().to_dict()
    assert seconds["UC"] == [7.0]
    assert len(seconds["TS"]) == 1
    assert seconds["TS"] != [7.0]


def test_differences_by_hand() -> None:
    """NLL is weighted by pixels, ECE is not; images are drawn again, so two alike give an interval of no width."""
    rows = [
        (split, method, case, metric, value, pixels)
        for split in (0, 1)
        for case, pixels in (("a", 100), ("b", 300))
        for method, metric, value in (
            ("TS", "nll", 1.0),
            ("CTS", "nll", 0.5 if case == "a" else 0.9),
            ("TS", "ece", 0.2),
            ("CTS", "ece", 0.1),
        )
    ]
    frame = pd.DataFrame(rows, columns=["split", "method", "case", "metric", "value", "pixels"])
    frame = frame.assign(region="all", part="x", group="", images=5, changed=0, seconds=1.0)
    others = [frame[frame.metric == "ece"].assign(metric=m, region=r) for m in ("ece", "sce", "mce", "ace") for r in
              ("all", "boundary", "local-avg", "local-max") if (m, r) != ("ece", "all")]  # fmt: skip
    brier = frame[frame.metric == "nll"].assign(metric="brier")
    text = tables(pd.concat([frame, brier, *others], ignore_index=True))
    row = next(line for line in text.splitlines() if line.startswith("| CTS | -"))
    cells = [cell.strip() for cell in row.split("|")][2:-1]
    assert cells[0].startswith("-20.0 [-50.0, -10.0], 2 of 2"), "(0.5 * 100 + 0.9 * 300) / 400 = 0.8"
    assert cells[2] == "-50.0 [-50.0, -50.0], 2 of 2"


def test_splits_with_unlike_numbers_of_images_are_of_one_table() -> None:
    rows = [
        (split, images, method, metric, value)
        for split, most in ((0, 5), (1, 6))
        for images in (2, most)
        for method, value in (("TS", 1.0), ("CTS", 1.1 if images == 2 else 0.9 - split / 10))
        for metric in ("nll", "brier", "ece", "sce", "mce", "ace")
    ]
    frame = pd.DataFrame(rows, columns=["split", "images", "method", "metric", "value"])
    frame = frame.assign(case="a", pixels=10, part="x", group="", changed=0, seconds=1.0)
    regions = ("all", "boundary", "local-avg", "local-max")
    text = tables(pd.concat([frame.assign(region=region) for region in regions], ignore_index=True))
    assert "## x\n\n5 to 6 images to fit on, 1 to measure, up to 2 splits." in text
    assert "| CTS | 2 | **0.8500** | **0.8500** | 0 | 1.0 |" in text
    assert "| CTS | +10.00 (+10.00), 2 | -15.00 (-10.00), 2 |" in text


def test_lts_leaves_out_a_fifth_of_the_groups_for_its_validation(voc: Path) -> None:
    task, fit = next(iter(voc_tasks(voc, 1))), method_named("LTS held out")
    assert fit is not None
    found, _ = fit(task.fit, task.about, Training(epochs=1, device="cpu"))
    assert len(found.fit_report_.names) == 4, "of 6 images without groups, one fold of five holds two"
    assert found.fit_report_.details["validation_nll"] <= found.fit_report_.details["validation_nll_ts"]


def test_processes_measure_the_same(voc: Path, tmp_path: Path) -> None:
    common = ["run", "--voc", str(voc), "--splits", "1", "--sizes", "--methods", "UC", "TS"]
    assert main([*common, "--out", str(tmp_path / "1")]) == 0
    printed_by("-m", "experiments.beyond", *common, "--out", tmp_path / "2", "--processes", "2")  # as users start it
    rows = [[results.to_frame() for *_, results in finished(tmp_path / count)] for count in ("1", "2")]
    for one, two in zip(*rows, strict=True):
        pd.testing.assert_frame_equal(one, two)


def test_bad_input_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], camvid: tuple[Path, Path]) -> None:
    assert main(["run", "--out", str(tmp_path)]) == 2
    assert "--voc or" in capsys.readouterr().err
    assert main(["run", "--out", str(tmp_path), "--camvid", str(camvid[0])]) == 2
    assert "--logits" in capsys.readouterr().err
    assert main(["table", "--out", str(tmp_path)]) == 2
    assert "nothing measured" in capsys.readouterr().err
    with pytest.raises(InputError, match="must be among UC, TS"):
        method_named("none")
