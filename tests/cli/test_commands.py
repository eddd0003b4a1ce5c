"""The commands as users type them: what they print and write."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import segcal
from segcal.cli.app import COMMANDS
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.evaluation.recommendation import recommend
from segcal.evaluation.results import Results
from support.commands import done, everything, refuse, run, succeed, succeed_json
from support.fits import mean_nll
from support.scenes import simulated

QUICK = ("--epochs", 2, "--set", "learning_rate=1e-3", "batch_size=2", "--seed", 1, "--device", "cpu")


def test_fit_saves_a_calibrator_of_a_split(data: Path, tmp_path: Path) -> None:
    shown = succeed("fit", data, "--method", "ts", "--out", tmp_path / "new" / "ts")
    assert re.search(r"ts: NLL \d\.\d{4} -> \d\.\d{4} nats on 1 case \(224 pixels\)", shown)
    report = segcal.load(tmp_path / "new" / "ts").fit_report_
    assert report.names == ("scene-000",)
    assert f"  temperature {report.details['temperature']:.4g}\n" in shown
    found = succeed_json("fit", data, "--method", "ts", "--out", tmp_path / "ts", "--split", "test")
    report = segcal.load(tmp_path / "ts").fit_report_
    assert (found["method"], found["cases"], found["details"]) == ("ts", 2, report.details)
    assert found["nll_after"] == report.nll_after <= found["nll_before"]


def test_fit_settings_reach_the_calibrator(data: Path, tmp_path: Path) -> None:
    options = ("--ignore-index", "2", "7", "--background", "0", "--num-classes", "3", "--set", "bounds=1,50")
    succeed("fit", data, "--method", "ts", "--out", tmp_path / "ts", *options)
    config = segcal.load(tmp_path / "ts").config()
    assert (config["ignore_index"], config["background"], config["num_classes"]) == ((2, 7), 0, 3)
    assert tuple(config["bounds"]) == (1.0, 50.0)


def test_fit_settings_of_contextual_scaling(data: Path, tmp_path: Path) -> None:
    options = ("--method", "cts", "--set", "features=false", "loss=nll+brier", "sharpen=true", "--split", "test")
    succeed("fit", data, *options, "--out", tmp_path / "cts")
    config = segcal.load(tmp_path / "cts").config()
    assert [config[name] for name in ("features", "classes", "loss")] == [False, True, "nll+brier"]
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
    shutil.rmtree(data / "labels")
    shown = succeed("apply", calibrator, data, "--out", data.parent / "probs", "--split", "test")
    assert "2 cases, 448 pixels, every predicted label kept" in shown


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
    tables = {"images", "pooled", "cases", "curves", "bins", "volumes"}
    assert set(found) == {"settings", "skipped", "recommendation", *tables}
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


def test_evaluate_takes_options_and_names_of_classes(data: Path) -> None:
    (data / "segcal.toml").write_text('classes = ["sky", "road", "car"]\n')
    options = {"bins": 7, "form": "equations", "patch-size": 5, "patches": 3, "seed": 4, "background": 1}
    flat = [text for name, value in options.items() for text in (f"--{name}", value)]
    page = data.parent / "page.html"
    found = succeed_json("evaluate", data, *flat, "--ignore-index", "-1", "2", "--page", page)
    assert {name: found["settings"][name.replace("-", "_")] for name in options} == options
    assert found["settings"]["ignore_index"] == [-1, 2]
    assert found["settings"]["class_names"] == ["sky", "road", "car"]
    assert {row["label"] for row in found["curves"]} == {"", "sky", "road", "car"}
    assert '"classes":["sky","road","car"]' in page.read_text()


@pytest.mark.parametrize("name", ["table.tex", "table.md", "rows.csv", "rows.parquet", "all.json"])
def test_table_shows_and_writes_saved_results(made: Path, tmp_path: Path, name: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    results, out = made / "results", tmp_path / "new" / name
    shown = succeed("table", results, "--out", out)
    assert shown.partition("saved in")[0] == succeed("table", results)
    assert f"saved in {out}" in "".join(shown.splitlines())
    assert out.stat().st_size > 100
    if name == "all.json":
        written = json.loads(out.read_text())
        assert written.pop("signature").startswith("written by segcal")
        assert written == succeed_json("table", results)


@pytest.mark.parametrize("average", ["images", "pixels"])
def test_tables_of_any_width_lose_no_digit(made: Path, average: str) -> None:
    """Every number of a wide terminal is whole in a narrow one."""
    out = made / "results"
    wide = sorted(numbers_in(run("table", out, "--average", average, width=400).stdout))
    for width in (20, 45, 80, 120):
        narrow = run("table", out, "--average", average, width=width).stdout
        assert sorted(numbers_in(narrow)) == wide
        assert max(map(len, narrow.splitlines())) <= width


def numbers_in(text: str) -> list[str]:
    """Decimal numbers with what is written against them, such as a standard deviation."""
    return re.findall(r"[-+\d(),.\[\]]*\d\.\d[-+\d(),.\[\]]*", text)


def test_table_against_another_reference(made: Path) -> None:
    shown = " ".join(succeed("table", made / "results", "--reference", "UC", "--test", "wilcoxon", "--floor").split())
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


def test_evaluate_warns_of_fitted_cases(data: Path, calibrator: Path) -> None:
    result = done("evaluate", data, "--split", "fit", "--calibrators", calibrator, "--json")
    assert "TS was fitted on this case" in result.stderr.replace("\n", " ")
    found = json.loads(result.stdout)
    assert found["settings"]["warnings"]
    shown = " ".join(succeed("evaluate", data, "--split", "fit", "--calibrators", calibrator).split())
    assert found["recommendation"]["reason"] in shown
    assert "recommendation" not in succeed_json("evaluate", data)


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
    result = done("demo", "--out", tmp_path / "demo")
    assert result.stderr == "", "the demo has nothing to apologise for"
    shown = result.stdout
    assert "pip install segcal[demo]" in " ".join(shown.split())
    assert re.findall(r"^(\d)\. ", shown, flags=re.MULTILINE) == [*"1234567"]
    assert re.search(r"\$ ls .*data\n+images  labels  logits  segcal\.json  segcal\.toml  splits\.json\n", shown)
    said = " ".join(shown.split())
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


def test_learned_methods_are_fitted_and_applied(learned: Path) -> None:
    saved, checkpoints = learned.parent / "lts", learned.parent / "checkpoints"
    options = ("--set", "positivity=softplus", f"checkpoint={checkpoints}", "cosine=true", "--logits-only")
    report = succeed_json("fit", learned, "--method", "lts", "--out", saved, *QUICK, *options)
    fitted = segcal.load(saved)
    assert (fitted.method, fitted.config()["positivity"], fitted.config()["image_channels"]) == ("lts", "softplus", 0)
    assert (report["steps"], report["cases"]) == (2, 3)
    assert set(fitted.fit_report_.names) == {f"scene-00{k}" for k in range(3)}
    assert everything(checkpoints)
    nll = mean_nll(fitted, open_folder(learned, split="validation"))
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
            assert np.ptp(heat) > 0


@pytest.mark.usefixtures("few_strengths")
def test_auto_tells_what_it_took(tmp_path: Path) -> None:
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
        (("lts", "--set", "positivty=exp"), "; did you mean 'positivity'?"),
        (("lts", "--set", "positivity=tanh"), "'positivity' must be relu, softplus or exp, got 'tanh'"),
        (("lts", "--set", "epochs"), "--set needs KEY=VALUE, got 'epochs'"),
        (("lts", "--epochs", 0), "epochs and batch_size must be at least 1"),
        (("lts", "--validation", "dev"), "got 'dev'; present: 'fit', 'validation', 'test'"),
        (("ibts", "--device", "abacus"), "device 'abacus' cannot be used"),
    ):
        assert words in refuse("fit", learned, "--method", *arguments, *out)
    assert everything(learned.parent) == before


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
