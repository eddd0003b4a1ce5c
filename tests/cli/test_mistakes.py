"""Mistakes of users: one sentence for each, and nothing written; warnings: one line each, and results all the same."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import segcal
from segcal.data.folders.writer import write_folder
from support.commands import done, everything, refuse, succeed
from support.scenes import simulated

BAD = "scene-001"  # the case that is spoilt


def logits_file(data: Path) -> Path:
    return data / "logits" / f"{BAD}.npy"


def set_nan(data: Path) -> None:
    logits = np.load(logits_file(data))
    logits[1, 2, 3] = np.nan
    np.save(logits_file(data), logits)


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


def truncate_npy(data: Path) -> None:
    logits_file(data).write_bytes(logits_file(data).read_bytes()[:-40])


def drop_class(data: Path) -> None:
    np.save(logits_file(data), np.load(logits_file(data))[:2])


SPOILS: dict[str, tuple[Callable[[Path], None], str]] = {  # one of each kind; tests/data has the others
    "nan": (set_nan, r"logits must be finite,.* got nan at \(1, 2, 3\)"),
    "label": (set_label, r"labels must be in 0..2, got 3 at \(2, 3\)"),
    "shape": (cut_labels, r"labels must have shape \(16, 14\).*got \(16, 13\)"),
    "no labels": (drop_labels, "must have one label file, got none"),
    "cut npy": (truncate_npy, "must be a readable .npy file, got a damaged or incomplete one"),
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


def test_wrong_references_and_pages_are_refused_before_measuring(
    data: Path, calibrator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segcal.evaluation.run.evaluate_folder", None)
    line = refuse("evaluate", data, "--calibrators", calibrator, "--reference", "LTS")
    assert "reference must be one of UC, TS, got 'LTS'" in line
    (tmp_path / "file").touch()
    assert "is a file; choose" in refuse("evaluate", data, "--page", tmp_path / "file" / "sub" / "page.html")
    real = os.access
    monkeypatch.setattr("segcal.files.guards.os.access", lambda path, mode: not mode & os.W_OK and real(path, mode))
    assert "no permission to write" in refuse("evaluate", data, "--page", tmp_path / "new" / "page.html")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit", "DATA", "--out", "OUT", "--method", "telepathy"), "method must be one of ts"),
        (("fit", "nowhere", "--out", "OUT"), "the data folder 'nowhere' does not exist"),
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
        (("diagnose", "DATA", "--labels", "nowhere"), "the labels folder 'nowhere' does not exist"),
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


PROBABILITIES = "warning: the logits look like probabilities"


@pytest.fixture(scope="module")
def probabilities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Probabilities in a folder that should hold logits."""
    folder = tmp_path_factory.mktemp("warnings") / "data"
    cases = simulated(3, num_classes=3, size=(16, 14), contrast=2.0)
    probs = [replace(case, logits=torch.as_tensor(case.logits).softmax(0).numpy()) for case in cases]
    write_folder(folder, {"fit": probs[:1], "test": probs[1:]})
    return folder


def test_probabilities_are_warned_of_once_in_a_command(probabilities: Path, tmp_path: Path) -> None:
    fitted = done("fit", probabilities, "--method", "ts", "--out", tmp_path / "ts", "--json")
    assert fitted.stderr.replace("\n", " ").count(PROBABILITIES) == 1
    assert json.loads(fitted.stdout)
    measured = done("evaluate", probabilities, "--calibrators", tmp_path / "ts", "--split", "fit", "--json")
    shown = " ".join(measured.stderr.split())
    assert shown.count(PROBABILITIES) == 1
    assert shown.count("TS was fitted on this case") == 1
    assert "Traceback" not in shown
    assert "UserWarning" not in shown


def test_declared_probabilities_are_fine(probabilities: Path) -> None:
    assert "look like" not in done("diagnose", probabilities, "--scores", "probabilities").stderr
