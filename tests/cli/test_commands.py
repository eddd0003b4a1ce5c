"""The commands as users type them: what they print and write, and one sentence for every mistake."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import segcal
from segcal.calibrators import Calibrator
from segcal.cli.app import COMMANDS
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.evaluation.recommendation import recommend
from segcal.evaluation.results import Results
from support import run_commands
from support.commands import done, refuse, run, succeed, succeed_json
from support.scenes import simulated
from support.strengths import choose_among_few

BAD = "scene-001"  # the case that is spoilt


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three cases, of which one is to fit and two are to test."""
    cases = simulated(3, num_classes=3, size=(16, 14), contrast=2.0)
    write_folder(tmp_path / "data", {"fit": cases[:1], "test": cases[:0:-1]})
    return tmp_path / "data"


@pytest.fixture
def calibrator(data: Path) -> Path:
    succeed("fit", data, "--method", "ts", "--out", data.parent / "ts")
    return data.parent / "ts"


# --------------------------------------------------------------------------------------------------------------------
# what they do


def test_fit_saves_a_calibrator_of_the_split(data: Path, tmp_path: Path) -> None:
    shown = succeed("fit", data, "--method", "ts", "--out", tmp_path / "new" / "ts")
    assert re.search(r"ts: NLL \d\.\d{4} -> \d\.\d{4} nats on 1 case \(224 pixels\)", shown)
    report = segcal.load(tmp_path / "new" / "ts").fit_report_
    assert report.names == ("scene-000",)
    assert f"  temperature {report.details['temperature']:.4g}\n" in shown


def test_fit_json(data: Path, tmp_path: Path) -> None:
    found = succeed_json("fit", data, "--method", "ts", "--out", tmp_path / "ts", "--split", "test")
    report = segcal.load(tmp_path / "ts").fit_report_
    assert found["method"] == "ts"
    assert found["cases"] == 2
    assert found["nll_after"] == report.nll_after <= found["nll_before"]
    assert found["details"] == report.details


def test_fit_settings_reach_the_calibrator(data: Path, tmp_path: Path) -> None:
    options = ("--ignore-index", "2", "7", "--background", "0", "--num-classes", "3")
    succeed("fit", data, "--method", "ts", "--out", tmp_path / "ts", *options)
    config = segcal.load(tmp_path / "ts").config()
    assert (config["ignore_index"], config["background"], config["num_classes"]) == ((2, 7), 0, 3)


@pytest.mark.parametrize("method", ["ts", "cts", "lts", "auto"])
def test_fit_bounds_reach_every_method_with_temperatures(data: Path, tmp_path: Path, method: str) -> None:
    extra = ("--epochs", "1") if method == "lts" else ()
    succeed("fit", data, "--method", method, "--set", "bounds=1,50", *extra, "--out", tmp_path / method)
    assert tuple(segcal.load(tmp_path / method).config()["bounds"]) == (1.0, 50.0)
    bad = ("--method", method, "--set", "bounds=3,1")
    assert "bounds must be" in refuse("fit", data, *bad, "--out", tmp_path / "none")


def test_fit_settings_of_contextual_scaling(data: Path, tmp_path: Path) -> None:
    options = ("--method", "cts", "--set", "features=false", "loss=nll+brier", "sharpen=true", "--split", "test")
    found = succeed_json("fit", data, *options, "--out", tmp_path / "cts")
    assert found["details"]["features"] == []
    assert found["details"]["floor"] == 0
    config = segcal.load(tmp_path / "cts").config()
    assert (config["features"], config["classes"], config["loss"], config["spatial_dims"]) == (
        False,
        True,
        "nll+brier",
        2,
    )
    options = ("--method", "cts", "--set", "classes=false", "--split", "test")
    found = succeed_json("fit", data, *options, "--out", tmp_path / "other")
    assert len(found["details"]["coefficients"]) == 9
    assert found["details"]["class_offsets"] == [0.0] * 3
    printed = succeed("fit", data, "--method", "cts", "--split", "test", "--out", tmp_path / "other")
    assert "\n  all pixels have the temperature 1.3" in printed
    assert "cv_nll" not in printed


def test_fit_prints_counts_and_known_numbers_only(learned: Path, tmp_path: Path) -> None:
    options = ("--epochs", "1", "--set", "batch_size=8", "--logits-only", "--split", "test")
    printed = succeed("fit", learned, "--method", "lts", "--out", tmp_path / "lts", *options)
    assert " pixels), 1 step, " in printed.replace("\n", " ")
    assert "None" not in printed


def test_fit_warns_on_stderr(data: Path, tmp_path: Path) -> None:
    for path in (data / "labels").iterdir():
        path.unlink()
        np.save(path.with_suffix(".npy"), np.load(data / "logits" / f"{path.stem}.npy").argmax(0))
    result = done("fit", data, "--method", "ts", "--out", tmp_path / "ts")
    assert "every pixel is predicted right" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_apply_writes_probabilities_that_keep_labels(data: Path, calibrator: Path, dtype: str) -> None:
    out = data.parent / "probs"
    found = succeed_json("apply", calibrator, data, "--out", out, "--temperature", "--dtype", dtype)
    assert found == {"out": str(out), "cases": 3, "pixels": 3 * 224, "changed": 0}
    names = [f"scene-00{k}.npy" for k in range(3)]
    assert everything(out) == {"segcal.json", "temperature", *names, *(f"temperature/{name}" for name in names)}
    for name in names:
        probs = np.load(out / name)
        assert probs.dtype == dtype
        np.testing.assert_array_equal(probs.argmax(0), np.load(data / "logits" / name).argmax(0))


def test_apply_tells_what_it_did(data: Path, calibrator: Path) -> None:
    shown = succeed("apply", calibrator, data, "--out", data.parent / "probs", "--split", "test")
    assert "2 cases, 448 pixels, every predicted label kept" in shown


def test_apply_leaves_out_what_the_fit_left_out(data: Path) -> None:
    for file in (data / "labels").iterdir():
        labels = np.array(Image.open(file))
        labels[0, 0] = 200
        Image.fromarray(labels).save(file)
    succeed("fit", data, "--method", "ts", "--ignore-index", 200, "--out", data.parent / "ts200")
    assert "every predicted label kept" in succeed(
        "apply", data.parent / "ts200", data, "--out", data.parent / "probs200"
    )


def test_apply_needs_no_labels(data: Path, calibrator: Path) -> None:
    for path in (data / "labels").iterdir():
        path.unlink()
    (data / "labels").rmdir()
    assert succeed_json("apply", calibrator, data, "--out", data.parent / "probs")["cases"] == 3


def test_probabilities_can_be_measured_as_such(data: Path, calibrator: Path) -> None:
    """What apply writes and evaluate reads as probabilities is what evaluate makes of the calibrator itself."""
    succeed("apply", calibrator, data, "--out", data.parent / "probs")
    again = data.parent / "again"
    again.mkdir()
    (data.parent / "probs").rename(again / "logits")
    options = ("--labels", data / "labels", "--patches", 0)
    from_files = succeed_json("evaluate", again, "--scores", "probabilities", *options)
    directly = succeed_json("evaluate", data, "--split", "test", "--calibrators", calibrator, "--patches", 0)

    def values(found: Any, method: str) -> dict[tuple[str, ...], float]:
        kept = [row for row in found["images"] if row["method"] == method and row["case"] != "scene-000"]
        return {(row["case"], row["region"], row["metric"]): row["value"] for row in kept if row["metric"] != "ace"}

    assert values(from_files, "UC") == pytest.approx(values(directly, "TS"), abs=1e-5)
    assert len(values(from_files, "UC")) == 2 * 2 * 8


def test_evaluate_prints_the_table_and_saves_results(data: Path, calibrator: Path) -> None:
    out = data.parent / "results"
    shown = succeed("evaluate", data, "--calibrators", calibrator, "--reference", "TS", "--out", out, "--patch-size", 6)
    results = Results.load(out)
    assert results.methods == ("UC", "TS")
    assert set(results.to_frame().case) == {"scene-001", "scene-002"}
    for method in ("UC", "TS"):
        cell = results.table(reference="TS").cells[(method, "ece", "all")]
        assert f"{100 * cell.mean:.2f}({100 * cell.std:.2f})" in shown
    assert "TS is significantly better" in " ".join(shown.split())
    assert "NLL↓" in shown
    assert "Brier↓" not in shown
    assert " ".join(str(recommend(results)).split()) in " ".join(shown.split())
    assert f"all metrics: segcal table {out}" in shown
    whole = succeed("table", out)
    assert "95 % bootstrap intervals" in whole
    assert "Brier" in whole
    assert "save them with --out" in " ".join(succeed("evaluate", data).split())


def test_evaluate_json_is_the_results(data: Path, calibrator: Path) -> None:
    found = succeed_json("evaluate", data, "--calibrators", calibrator, "--patch-size", 6, "--out", data.parent / "out")
    results = Results.load(data.parent / "out")
    assert set(found) == {"settings", "skipped", "images", "pooled", "cases", "curves", "bins", "volumes"}
    frame = results.to_frame()
    assert list(found["images"][0]) == list(frame.columns)
    assert [row["value"] for row in found["images"]] == pytest.approx(list(frame.value))
    assert found["skipped"] == results.skipped()
    assert found["settings"] == results.settings


def test_evaluate_with_floor_and_other_statistics(data: Path, calibrator: Path) -> None:
    out = data.parent / "results"
    options = ("--floor", "--test", "wilcoxon", "--interval", "bca", "--reference", "TS", "--patch-size", 6)
    shown = succeed("evaluate", data, "--calibrators", calibrator, *options, "--out", out)
    assert shown.count("floor ") >= 4
    assert "paired Wilcoxon" in " ".join(shown.split())
    loaded = Results.load(out)
    assert loaded.settings["interval"] == "bca"
    assert len(loaded.floor()) == len(loaded.to_frame())
    found = succeed_json("evaluate", data, "--floor")
    assert len(found["floor"]["images"]) == len(found["images"])


def test_evaluate_names_the_classes_of_the_folder(data: Path) -> None:
    (data / "segcal.toml").write_text('classes = ["sky", "road", "car"]\n')
    found = succeed_json("evaluate", data)
    assert found["settings"]["class_names"] == ["sky", "road", "car"]
    assert {row["label"] for row in found["curves"]} == {"", "sky", "road", "car"}


@pytest.mark.parametrize("name", ["table.tex", "table.md", "rows.csv", "rows.parquet", "all.json"])
def test_table_shows_and_writes_saved_results(data: Path, calibrator: Path, name: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    results, out = data.parent / "results", data.parent / "new" / name
    succeed("evaluate", data, "--calibrators", calibrator, "--patch-size", 6, "--out", results)
    shown = succeed("table", results, "--out", out)
    assert shown.partition("saved in")[0] == succeed("table", results)
    assert f"saved in {out}" in "".join(shown.splitlines())
    assert out.stat().st_size > 100
    if name == "all.json":
        written = json.loads(out.read_text())
        assert written.pop("signature").startswith("written by segcal")
        assert written == succeed_json("table", results)


@pytest.mark.parametrize("width", [20, 45, 80, 120])
def test_tables_of_any_width_lose_no_digit(data: Path, calibrator: Path, width: int) -> None:
    """Every number of a wide terminal is whole in a narrow one."""
    out = data.parent / "results"
    succeed("compare", data, "--methods", "ts,isotonic", "--surfaces", "--patch-size", 6, "--out", out)
    for average in ("images", "pixels"):
        wide, narrow = (run("table", out, "--average", average, width=each).stdout for each in (400, width))
        assert sorted(numbers_in(narrow)) == sorted(numbers_in(wide))
        assert max(map(len, narrow.splitlines())) <= width


def numbers_in(text: str) -> list[str]:
    """Decimal numbers with what is written against them, such as a standard deviation."""
    return re.findall(r"[-+\d(),.\[\]]*\d\.\d[-+\d(),.\[\]]*", text)


def test_table_against_another_reference(data: Path, calibrator: Path) -> None:
    results = data.parent / "results"
    succeed("evaluate", data, "--calibrators", calibrator, "--out", results, "--floor", "--patch-size", 6)
    shown = " ".join(succeed("table", results, "--reference", "UC", "--test", "wilcoxon", "--floor").split())
    assert "UC is significantly better (paired Wilcoxon" in shown
    assert "floor: what the method would score" in shown


def test_evaluate_takes_several_calibrators_at_once(data: Path, calibrator: Path) -> None:
    other = data.parent / "other"
    succeed("fit", data, "--method", "ts", "--split", "test", "--out", other)
    separate = ("--calibrators", calibrator, "--calibrators", other)
    for options in (("--calibrators", calibrator, other), separate):
        found = succeed_json("evaluate", data, *options, "--patches", "2")
        assert found["settings"]["methods"] == ["UC", "ts", "other"]  # two of one method are told apart by folder
        assert found["settings"]["patches"] == 2


def test_evaluate_options_reach_the_protocol(data: Path) -> None:
    options = {"bins": 7, "form": "equations", "patch-size": 5, "patches": 3, "seed": 4, "background": 1}
    flat = [text for name, value in options.items() for text in (f"--{name}", value)]
    found = succeed_json("evaluate", data, *flat, "--ignore-index", "-1", "2")["settings"]
    assert {name: found[name.replace("-", "_")] for name in options} == options
    assert found["ignore_index"] == [-1, 2]


def test_evaluate_warns_of_fitted_cases(data: Path, calibrator: Path) -> None:
    result = done("evaluate", data, "--split", "fit", "--calibrators", calibrator, "--json")
    assert "TS was fitted on 1 of these 1 cases" in result.stderr.replace("\n", " ")
    assert json.loads(result.stdout)["settings"]["warnings"]


def test_diagnose(data: Path) -> None:
    found = succeed_json("diagnose", data)
    assert [image["name"] for image in found["images"]] == ["scene-000", "scene-001", "scene-002"]
    shown = succeed("diagnose", data)
    assert " ".join(found["advice"].split()) in " ".join(shown.split())
    assert found["dataset"]["state"] in shown
    assert found["dataset"]["spread"] is None
    assert "-: too few pixels or errors" in " ".join(shown.split())


def test_demo_tells_the_whole_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.data.sample.brain.find_spec", lambda name: None)
    shown = succeed("demo", "--out", tmp_path / "demo")
    assert "pip install segcal[demo]" in " ".join(shown.split())
    assert re.findall(r"^(\d)\. ", shown, flags=re.MULTILINE) == [*"1234567"]
    assert re.search(r"\$ ls .*data\n+images  labels  logits  segcal\.json  segcal\.toml  splits\.json\n", shown)
    said = " ".join(shown.split())
    assert "warning" not in said, "the demo has nothing to apologise for"
    recommended = " ".join(str(recommend(Results.load(tmp_path / "demo" / "results"))).split())
    assert recommended.startswith("Use LTS (local temperature scaling): it lowers the NLL of UC by ")
    assert said.count(recommended) == 2, "by evaluate and at the end"
    assert said.endswith(recommended)
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {
        *("data", "ts", "lts", "probs", "results", "page.html")
    }
    results = Results.load(tmp_path / "demo" / "results")
    assert results.methods == ("UC", "TS", "LTS")
    worst = results.frame.query("region == 'local-max' and metric == 'ece'").groupby("method").value.mean()
    assert worst["LTS"] < 0.6 * worst["TS"] < worst["UC"], "the story that the demo tells"
    for command in re.findall(r"\$ segcal (\w+)", shown):
        assert command in COMMANDS
    small = simulated(4, size=(12, 12))
    parts = {"fit": small[:1], "validation": small[3:], "test": small[1:3]}
    monkeypatch.setattr("segcal.data.sample.load_sample", lambda name: parts)
    places = succeed_json("demo", "--out", tmp_path / "demo")  # a second time replaces the first
    assert places["page"] == str(tmp_path / "demo" / "page.html")
    assert places["recommendation"]["baseline"] == "UC"
    assert set(Results.load(tmp_path / "demo" / "results").frame.case) == {"scene-001", "scene-002"}


# --------------------------------------------------------------------------------------------------------------------
# learned methods


QUICK = ("--epochs", 2, "--set", "learning_rate=1e-3", "batch_size=2", "--seed", 1, "--device", "cpu")


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    """Five cases with images, of which three are to fit, one is to choose the weights on and one is to test."""
    cases = simulated(5, num_classes=3, size=(12, 14), contrast=2.0)
    write_folder(tmp_path / "data", {"fit": cases[:3], "validation": cases[3:4], "test": cases[4:]})
    return tmp_path / "data"


@pytest.mark.parametrize("method", ["lts", "ibts"])
def test_learned_methods_are_fitted_and_applied(learned: Path, method: str) -> None:
    saved, checkpoints = learned.parent / method, learned.parent / "checkpoints"
    options = ("--set", "positivity=softplus", f"checkpoint={checkpoints}", "cosine=true", "--logits-only")
    report = succeed_json("fit", learned, "--method", method, "--out", saved, *QUICK, *options)
    fitted = segcal.load(saved)
    assert (fitted.method, fitted.config()["positivity"], fitted.config()["image_channels"]) == (method, "softplus", 0)
    assert (report["steps"], report["cases"]) == (2, 3)
    assert set(fitted.fit_report_.names) == {f"scene-00{k}" for k in range(3)}
    assert everything(checkpoints)
    nll = mean_nll(fitted, open_folder(learned, split="validation")[0])
    assert report["details"]["validation_nll"] == pytest.approx(nll, rel=1e-5)
    for dtype in ("float32", "float16"):
        out = learned.parent / dtype
        succeed("apply", saved, learned, "--out", out, "--temperature", "--dtype", dtype)
        for k in range(5):
            probs, logits = np.load(out / f"scene-00{k}.npy"), np.load(learned / "logits" / f"scene-00{k}.npy")
            assert probs.dtype == dtype
            np.testing.assert_array_equal(probs.argmax(0), logits.argmax(0))
            heat = np.load(out / "temperature" / f"scene-00{k}.npy")
            assert heat.shape == (12, 14)
            assert (heat > 0).all()
            assert (np.ptp(heat) == 0) == (method == "ibts")


def test_auto_tells_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_among_few(monkeypatch)
    cases = simulated(5, num_classes=3, size=(16, 14), contrast=2.0)
    write_folder(tmp_path / "data", {"fit": cases})
    unlimited = ("--epochs", 1, "--set", "time_limit=none")
    result = done("fit", tmp_path / "data", "--method", "auto", "--out", tmp_path / "auto", *unlimited)
    shown = result.stdout
    assert result.stderr.startswith("auto compares ts")
    found = segcal.load(tmp_path / "auto").fit_report_.details
    words = " ".join(shown.split())
    assert found["why"] in words
    for name, score in found["scores"].items():
        told = f"{score['nll']:.4f}" if score["nll"] is not None else "given up after the first of 5 folds"
        assert re.search(rf"{re.escape(name)}\W+{told}", words)
    assert f"{found['scores']['lts']['numbers']:,}" in words
    few = succeed_json(
        *("fit", tmp_path / "data", "--method", "auto", "--out", tmp_path / "auto"),
        *("--set", "candidates=ts,ets,classwise"),
    )
    assert list(few["details"]["scores"]) == ["ts", "ets", "classwise"]
    assert few["details"]["chosen"] in few["details"]["scores"]
    asked = ("fit", tmp_path / "data", "--method", "auto", "--out", tmp_path / "auto", "--set")
    assert "candidates must be among ts, ets" in refuse(*asked, "candidates=best")
    words = refuse(*asked, f"checkpoint={tmp_path}")
    assert "'auto' has no setting 'checkpoint'; the settings are bounds, candidates, time_limit, epochs" in words


def mean_nll(calibrator: Calibrator, case: segcal.Case) -> float:
    with torch.no_grad():
        calibrated = calibrator(torch.as_tensor(np.array(case.logits))[None])
    truth = torch.as_tensor(np.array(case.labels)).long()[None]
    return float(torch.nn.functional.cross_entropy(calibrated, truth))


def test_learned_methods_see_images_and_settings(learned: Path) -> None:
    """The schedule reaches the training: with a cosine the same run ends elsewhere; images are looked at."""
    found = []
    for k, options in enumerate([(), (), ("--set", "cosine=true"), ("--set", "flips=true", "crop=8")]):
        succeed("fit", learned, "--method", "lts", "--out", learned.parent / str(k), *QUICK, *options)
        found.append(segcal.load(learned.parent / str(k)))
    assert found[0].config()["image_channels"] == 1
    weights = [calibrator.tree.of_logits.weight for calibrator in found]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[3])


def test_bad_learning_in_one_sentence(learned: Path) -> None:
    """Nothing but the sentence: no bar, no empty line."""
    before = everything(learned.parent)
    out = ("--out", learned.parent / "out")
    for arguments, words in (
        (("ts", "--epochs", 3), "'ts' has no setting 'epochs'; the settings are bounds"),
        (("vector", "--set", "cosine=true"), "'vector' has no setting 'cosine'; there are no settings"),
        (("lts", "--set", "positivty=exp"), "'lts' has no setting 'positivty'; the settings are bounds, positivity"),
        (("lts", "--set", "positivty=exp"), "; did you mean 'positivity'?"),
        (("lts", "--set", "positivity=tanh"), "'positivity' must be relu, softplus or exp, got 'tanh'"),
        (("lts", "--set", "flips=maybe"), "the setting 'flips' must be true or false, got 'maybe'"),
        (("lts", "--set", "bounds=1"), "the setting 'bounds' must be 2 numbers with a comma between them, got '1'"),
        (("lts", "--set", "epochs"), "--set needs KEY=VALUE, got 'epochs'"),
        (("lts", "--epochs", 0), "epochs and batch_size must be at least 1"),
        (("lts", "--validation", "dev"), "got 'dev'; present: 'fit', 'validation', 'test'"),
        (("ibts", "--device", "abacus"), "device 'abacus' cannot be used"),
    ):
        assert words in refuse("fit", learned, "--method", *arguments, *out)
    assert everything(learned.parent) == before


def test_reference_is_checked_before_measuring(data: Path, calibrator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.evaluation.run.evaluate", lambda *_, **__: pytest.fail("it was measured"))
    line = refuse("evaluate", data, "--calibrators", calibrator, "--reference", "LTS")
    assert "reference must be one of UC, TS, got 'LTS'" in line


NETWORKS = """
from torch import nn
def build():
    return nn.Conv2d(2, 3, 3, padding=1)
def build_nothing():
    return None
value = 3
"""


def test_export(data: Path, calibrator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    folder = data.parent
    (folder / "my_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    shown = succeed("export", calibrator, "--out", folder / "ts.onnx", "--size", 16, 12)
    assert "differs from PyTorch by at most" in " ".join(shown.split())  # lines break where the path is long
    found = succeed_json(
        "export", calibrator, "--out", "both.onnx", "--network", "my_networks:build", "--image-channels", 2
    )
    assert found["out"] == "both.onnx"
    assert found["difference"] < 1e-5
    before = everything(folder)
    assert {"ts.onnx", "both.onnx"} <= before
    for network, words in (
        ("my_networks", "MODULE:FUNCTION"),
        ("my_networks:missing", "MODULE:FUNCTION"),
        ("my_networks:value", "MODULE:FUNCTION"),
        ("no_such_networks:build", "No module named 'no_such_networks'"),
        (":build", "MODULE:FUNCTION"),
        ("my_networks:build_nothing", "must return an nn.Module, got NoneType"),
    ):
        assert words in refuse("export", calibrator, "--out", "out.onnx", "--network", network)
    assert "give image_channels" in refuse("export", calibrator, "--out", "x.onnx", "--network", "my_networks:build")
    assert everything(folder) == before
    assert str(folder) not in sys.path


# --------------------------------------------------------------------------------------------------------------------
# mistakes


def logits_file(data: Path) -> Path:
    return data / "logits" / f"{BAD}.npy"


def set_logit(value: float) -> Callable[[Path], None]:
    def spoil(data: Path) -> None:
        logits = np.load(logits_file(data))
        logits[1, 2, 3] = value
        np.save(logits_file(data), logits)

    return spoil


def set_label(data: Path) -> None:
    (data / "labels" / f"{BAD}.png").unlink()
    labels = np.zeros((16, 14), np.int64)
    labels[2, 3] = 3
    np.save(data / "labels" / f"{BAD}.npy", labels)


def cut_labels(data: Path) -> None:
    (data / "labels" / f"{BAD}.png").unlink()
    np.save(data / "labels" / f"{BAD}.npy", np.zeros((16, 13), np.int64))


def drop_labels(data: Path) -> None:
    (data / "labels" / f"{BAD}.png").unlink()


def truncate_npz(data: Path) -> None:
    logits = np.load(logits_file(data))
    logits_file(data).unlink()
    path = logits_file(data).with_suffix(".npz")
    np.savez_compressed(path, logits=logits)
    path.write_bytes(path.read_bytes()[:-40])


def truncate_npy(data: Path) -> None:
    logits_file(data).write_bytes(logits_file(data).read_bytes()[:-40])


def pickle_npy(data: Path) -> None:
    np.save(logits_file(data), np.array([{"a": 1}], dtype=object), allow_pickle=True)


def plain_pickle(data: Path) -> None:
    logits_file(data).write_bytes(pickle.dumps([1, 2, 3]))


def drop_class(data: Path) -> None:
    np.save(logits_file(data), np.load(logits_file(data))[:2])


SPOILS: dict[str, tuple[Callable[[Path], None], str]] = {
    "nan": (set_logit(np.nan), r"logits must be finite,.* got nan at \(1, 2, 3\)"),
    "infinity": (set_logit(np.inf), r"logits must be finite,.* got inf at \(1, 2, 3\)"),
    "label": (set_label, r"labels must be in 0..2, got 3 at \(2, 3\)"),
    "shape": (cut_labels, r"labels must have shape \(16, 14\).*got \(16, 13\)"),
    "no labels": (drop_labels, "must have one label file, got none"),
    "cut npz": (truncate_npz, "must be a readable .npz file, got a damaged or incomplete one"),
    "cut npy": (truncate_npy, "must be a readable .npy file, got a damaged or incomplete one"),
    "pickled npy": (pickle_npy, "got pickled objects, which are never loaded"),
    "pickle": (plain_pickle, "must"),
    "classes": (drop_class, r"num_classes=3.*got \(2, 16, 14\)"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILS.values(), ids=SPOILS.keys())
@pytest.mark.parametrize("command", ["fit", "apply", "evaluate", "diagnose"])
def test_bad_data_in_one_sentence(
    data: Path, calibrator: Path, command: str, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(data)
    if command == "apply" and spoil in (drop_labels, cut_labels, set_label):
        pytest.skip("apply reads no labels")
    before, out = everything(data.parent), data.parent / "out"
    arguments = {
        "fit": ("fit", data, "--method", "ts", "--split", "test", "--out", out),
        "apply": ("apply", calibrator, data, "--out", out),
        "evaluate": ("evaluate", data, "--calibrators", calibrator, "--out", out),
        "diagnose": ("diagnose", data),
    }[command]
    line = refuse(*arguments)
    assert re.search(words, line), line
    assert BAD in line
    kept = {path for path in everything(data.parent) if path.startswith("out.unfinished")}
    assert everything(data.parent) - kept == before
    if command != "evaluate":  # apply keeps the case before the bad one for the next run; evaluate if it got there
        assert bool(kept) == (command == "apply")


@pytest.mark.parametrize("command", ["apply", "evaluate"])
def test_calibrator_of_other_class_count(data: Path, command: str) -> None:
    other = data.parent / "four"
    cases = simulated(1, num_classes=4, size=(8, 8))
    segcal.create("ts", 4).fit(cases).save(other)
    arguments = {"apply": ("apply", other, data), "evaluate": ("evaluate", data, "--calibrators", other)}[command]
    line = refuse(*arguments, "--out", data.parent / "out")
    assert "num_classes" in line
    assert "4" in line
    assert not (data.parent / "out").exists()


@pytest.mark.parametrize("command", ["fit", "apply", "evaluate"])
def test_unwritable_output(data: Path, calibrator: Path, command: str) -> None:
    (data.parent / "file").write_text("kept")
    arguments = {
        "fit": ("fit", data, "--method", "ts"),
        "apply": ("apply", calibrator, data),
        "evaluate": ("evaluate", data),
    }[command]
    before = everything(data.parent)
    for out, words in ((data.parent / "file" / "out", "cannot write to"), (data.parent / "file", "is a file")):
        assert words in refuse(*arguments, "--out", out)
    assert everything(data.parent) == before
    assert (data.parent / "file").read_text() == "kept"


def test_foreign_output_is_kept(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    assert "did not write" in refuse("fit", data, "--method", "ts", "--out", tmp_path / "mine")
    assert everything(tmp_path / "mine") == {"thesis.tex"}


def test_input_is_never_replaced(data: Path, calibrator: Path) -> None:
    """Data and calibrators that segcal wrote could be replaced, but not by what is made from them."""
    before = everything(data.parent)
    for arguments in (
        ("fit", data, "--method", "ts", "--out", data),
        ("apply", calibrator, data, "--out", data),
        ("apply", calibrator, data, "--out", calibrator),
        ("evaluate", data, "--calibrators", calibrator, "--out", calibrator),
        ("evaluate", data, "--out", f"{data}/../data/"),
        ("evaluate", data, "--page", data / "logits" / "scene-001.npy"),
        ("evaluate", data, "--page", data / "page.html"),
        ("diagnose", data, "--maps", data / "maps"),
    ):
        assert "is read from" in refuse(*arguments)
    assert everything(data.parent) == before


def test_a_page_that_cannot_be_written_is_refused_before_measuring(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segcal.evaluation.folders.evaluate_folder", None)
    (tmp_path / "file").touch()
    assert "is a file; choose" in refuse("evaluate", data, "--page", tmp_path / "file" / "sub" / "page.html")
    real = os.access
    monkeypatch.setattr("segcal.files.guards.os.access", lambda path, mode: not mode & os.W_OK and real(path, mode))
    assert "no permission to write" in refuse("evaluate", data, "--page", tmp_path / "new" / "page.html")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit", "DATA", "--out", "OUT", "--method", "telepathy"), "method must be one of ts"),
        (("fit", "nowhere", "--out", "OUT"), "the data folder 'nowhere' must exist"),
        (("fit", "DATA", "--out", "OUT", "--split", "dev"), "got 'dev'; present: 'fit', 'test'"),
        (("fit", "DATA", "--out", "OUT", "--scores", "odds"), "'odds' is not one of 'logits', 'probabilities'"),
        (("fit", "DATA", "--out", "OUT", "--scores", "probabilities"), "probabilities must be in 0..1"),
        (("fit", "DATA", "--out", "OUT", "--background", "3"), "background must be a class in 0..2"),
        (("fit", "DATA", "--out", "OUT", "--ignore-index", "0", "1", "2"), "no labelled pixel to fit on"),
        (("fit", "DATA", "--out", "OUT", "--num-classes", "5"), "num_classes=5"),
        (("apply", "nowhere", "DATA", "--out", "OUT"), "segcal.json' is missing"),
        (("apply", "DATA", "DATA", "--out", "OUT"), "is not a saved calibrator"),
        (("apply", "TS", "DATA", "--out", "OUT", "--dtype", "int8"), "dtype must be one of float32, float16"),
        (("evaluate", "DATA", "--out", "OUT", "--reference", "LTS"), "reference must be one of UC, got 'LTS'"),
        (("evaluate", "DATA", "--out", "OUT", "--form", "table"), "form must be one of tables, equations, marginal"),
        (("evaluate", "DATA", "--out", "OUT", "--test", "t"), "test must be one of wilcoxon, paper, got 't'"),
        (("evaluate", "DATA", "--out", "OUT", "--interval", "t"), "interval must be one of percentile, bca, got 't'"),
        (("table", "DATA", "--out", "OUT"), "holds no results"),
        (("evaluate", "DATA", "--out", "OUT", "--bins", "0"), "bins must be at least 1"),
        (("evaluate", "DATA", "--out", "OUT", "--patch-size", "0"), "patch_size must be at least 1"),
        (("evaluate", "DATA", "--out", "OUT", "--calibrators", "TS", "TS"), "must have different names"),
        (("diagnose", "DATA", "--labels", "nowhere"), "the labels folder 'nowhere' must exist"),
    ],
)
def test_bad_settings_in_one_sentence(data: Path, calibrator: Path, arguments: tuple[str, ...], words: str) -> None:
    before = everything(data.parent)
    places = {"DATA": data, "TS": calibrator, "OUT": data.parent / "out"}
    assert words in refuse(*(places.get(argument, argument) for argument in arguments))
    assert everything(data.parent) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit",), "missing argument 'data'"),
        (("fit", "DATA"), "missing option '--out'"),
        (("fti", "DATA"), "no such command 'fti'. Did you mean 'fit'?"),
        (("fit", "DATA", "--out", "x", "--seed"), "option '--seed' requires an argument"),
        (("fit", "DATA", "--out", "x", "--epoch", "3"), "no such option: --epoch; did you mean --epochs?"),
        (("fit", "DATA", "--out", "x", "--epochs", "x"), "invalid value for '--epochs': "),
        (("fit", "DATA", "--out", "x", "--method", "lst"), "got 'lst'; did you mean 'lts'?"),
        (("compare", "DATA", "--methods", "ts,isotonc"), "got 'isotonc'; did you mean 'isotonic'?"),
        (("compare", "DATA", "--methods", "ts,beta", "--epochs", "3"), "none of ts, beta has a setting 'epochs'"),
    ],
)
def test_bad_usage_in_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    assert words in refuse(*arguments)


def test_paths_are_not_markup(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "x[red]"
    assert str(out) in succeed("fit", data, "--method", "ts", "--out", out).replace("\n", "")


def test_folders_of_another_kind_are_kept(data: Path, calibrator: Path) -> None:
    before = everything(data.parent)
    line = refuse("evaluate", data, "--out", calibrator)
    assert "holds a calibrator, which results must not replace" in line
    assert "ends in .html or .htm, got '.npy'" in refuse("evaluate", data, "--page", data.parent / "page.npy")
    assert everything(data.parent) == before


# --------------------------------------------------------------------------------------------------------------------
# as a program of its own


def test_a_reader_that_has_had_enough_is_no_mistake(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `segcal fit DATA | head -1`, where printing fails."""

    def closed(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("segcal.cli.fit.print_report", closed)
    result = run("fit", data, "--method", "ts", "--out", data.parent / "ts")
    assert result.exit_code == 1
    assert result.stderr == ""
    assert segcal.load(data.parent / "ts").fitted


def program(*arguments: object, command: tuple[str, ...] = ("-m", "segcal")) -> subprocess.CompletedProcess[str]:
    source = Path(segcal.__file__).parents[1]
    strict = {"PYTHONWARNINGS": "error"} if LAUNCHER[1] not in command else {}  # a launcher may have remarks of its own
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(source), "PATH": "", "COLUMNS": "200", "OMP_NUM_THREADS": "1", **strict},
    )


def test_program_runs(data: Path, tmp_path: Path) -> None:
    done = program("fit", data, "--method", "ts", "--out", tmp_path / "ts", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["cases"] == 1
    assert segcal.load(tmp_path / "ts").fitted


def test_program_refuses(data: Path, tmp_path: Path) -> None:
    set_logit(np.nan)(data)
    before = everything(tmp_path)
    done = program("fit", data, "--method", "ts", "--split", "test", "--out", tmp_path / "ts")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(rf"segcal: logits must be finite,.* got nan at .* of case '{BAD}'; .*", line)
    assert everything(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_program_cleans_up_when_it_is_terminated(data: Path, calibrator: Path) -> None:
    """SIGTERM while the first case is written: no folder, no temporary one, no lock."""
    code = (
        "import os, signal, sys\nfrom segcal.cli import main\nfrom segcal.calibrators import tempered\n"
        "tempered.scaled_probabilities = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\nmain()"
    )
    before = everything(data.parent)
    arguments = ["apply", calibrator, data, "--out", data.parent / "probs"]
    source = str(Path(segcal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, check=False, env={"PYTHONPATH": source}
    )
    assert done.returncode == 128 + 15, done.stderr
    assert everything(data.parent) == before


LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
METHODS: dict[str, tuple[object, ...]] = {
    "lts": QUICK,
    "cts": (),
    "auto": ("--set", "candidates=ts,cts,lts", "time_limit=none", *QUICK),
}


def test_two_processes_fit_what_one_does(tmp_path: Path) -> None:
    cases = simulated(6, num_classes=3, size=(12, 14), contrast=2.0)
    write_folder(tmp_path / "data", {"fit": cases[:5], "validation": cases[5:]})
    options = {name: ("fit", tmp_path / "data", "--method", name, *settings) for name, settings in METHODS.items()}
    done = program(*options["lts"], "--out", tmp_path / "lts-2", command=(*LAUNCHER, "-m", "segcal"))
    _assert_done(done, "lts")
    others = [[*map(str, options[name]), "--out", str(tmp_path / f"{name}-2")] for name in ("cts", "auto")]
    done = program(json.dumps(others), command=(*LAUNCHER, str(run_commands.__file__)))  # to start processes once
    _assert_done(done, "cts", "auto")
    for name, asked in options.items():
        succeed(*asked, "--out", tmp_path / f"{name}-1")
        two, one = (segcal.load(tmp_path / f"{name}-{count}") for count in (2, 1))
        for key, value in one.state_dict().items():
            assert torch.allclose(two.state_dict()[key].float(), value.float(), rtol=0, atol=1e-5), (name, key)
        assert two.fit_report_.nll_after == pytest.approx(one.fit_report_.nll_after, abs=1e-6), name
        assert set(two.fit_report_.names) == set(one.fit_report_.names), name
    assert two.fit_report_.details["scores"]["lts"]["seconds"] > 0, "it was tried by auto, the last of them"


def _assert_done(done: subprocess.CompletedProcess[str], *methods: str) -> None:
    """Without an error, and told once, by the first of the processes."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert [done.stdout.count(f"{method}: NLL") for method in methods] == [1] * len(methods)
    assert done.stdout.count("saved in") == len(methods)
