"""Methods side by side: the same images for all, costs that are measured, and one that fails loses nobody's work."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import segcal
from segcal.calibrators import Calibrator, EnsembleTemperatureScaling, Learned, TemperatureScaling
from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.evaluation.compare import PAPER, Comparison, compare, memory_growth
from segcal.evaluation.portraits import load_portraits
from segcal.evaluation.results import Results
from segcal.types import Case, InputError
from support import references
from support.commands import done, refuse, succeed, succeed_json
from support.scenes import simulated

CLASSES = 3
QUICK = ("--epochs", 1, "--patches", 2, "--patch-size", 6, "--device", "cpu")
PROTOCOL: dict[str, Any] = {"num_classes": CLASSES, "patches": 2, "patch_size": 6}


class Biased(Calibrator):
    """Adds 1 to the logits of class 0, and so moves labels."""

    method = "biased"
    preserves_labels = False
    bias: torch.Tensor

    def __init__(self, num_classes: int, **settings: Any) -> None:
        super().__init__(num_classes, **settings)
        self.register_buffer("bias", torch.zeros(num_classes))

    def _learn(self, stream: Any, *, validation: Any, settings: Any) -> Learned:
        self.bias[0] = 1.0
        return Learned(1, 1.0, 1.0, warnings=("it is biased",))

    def _map(self, logits: Any, image: Any = None) -> Any:
        return logits + self.bias.view(-1, *[1] * (logits.ndim - 2))


class Failing(TemperatureScaling):
    """Cannot be fitted."""

    error: Exception = InputError("these data are not to my taste; bring others")

    def _learn(self, stream: Any, *, validation: Any = None, settings: Any = None) -> Learned:
        raise self.error


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return simulated(6, num_classes=CLASSES, size=(14, 12), contrast=2.0, seed=5)


@pytest.fixture
def data(cases: list[Case], tmp_path: Path) -> Path:
    write_folder(tmp_path / "data", {"fit": cases[:2], "validation": cases[2:3], "test": cases[3:]})
    return tmp_path / "data"


@pytest.fixture(scope="module")
def told(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """The data, and the output and words of a comparison of the paper's methods, which are the default."""
    home = tmp_path_factory.mktemp("told")
    write_folder(home / "data", {"fit": cases[:2], "validation": cases[2:3], "test": cases[3:]})
    shown = succeed("compare", home / "data", "--reference", "lts", "--out", home / "out", *QUICK)
    return home / "data", home / "out", shown


# --------------------------------------------------------------------------------------------------------------------
# as a function


def test_all_are_fitted_on_the_same_cases_and_measured_on_the_same_others(cases: list[Case]) -> None:
    built = {name: segcal.create(name.lower(), CLASSES) for name in ("TS", "LTS")}
    found = compare(iter(cases[:2]), iter(cases[3:]), built, fit_settings={"epochs": 1}, **PROTOCOL)
    assert found.results.methods == ("UC", "TS", "LTS")
    for name, calibrator in found.calibrators.items():
        assert calibrator is built[name]
        assert calibrator.fit_report_.names == tuple(case.name for case in cases[:2])
    alone = segcal.create("ts", CLASSES).fit(cases[:2])
    again = segcal.evaluate(cases[3:], {"UC": None, "TS": alone}, **PROTOCOL).to_frame()
    ours = found.results.to_frame()
    assert ours[ours.method != "LTS"].reset_index(drop=True).equals(again)


@pytest.mark.parametrize("background", [None, 0])
def test_changed_labels_are_counted_where_accuracy_is_measured(cases: list[Case], background: int | None) -> None:
    tested = [Case(c.name, c.logits, np.where(np.asarray(c.image)[0] > 0.9, 7, c.labels)) for c in cases]
    built = {"TS": segcal.create("ts", CLASSES, ignore_index=7), "Biased": Biased(CLASSES)}
    found = compare(cases[:1], tested, built, ignore_index=7, background=background, **PROTOCOL)
    changed = pixels = 0
    gains: dict[str, list[float]] = {"accuracy": [], "miou": []}
    for case in tested:
        labels, logits = np.asarray(case.labels), np.asarray(case.logits)
        near = references.boundary(np.where(labels == 7, -1, labels))
        moved = logits + np.array([1.0, 0, 0], np.float32)[:, None, None]
        inside = [
            at
            for at in np.ndindex(*labels.shape)
            if labels[at] != 7 and (background is None or labels[at] != background or near[at])
        ]
        raw, new = ([int(scores[(slice(None), *at)].argmax()) for at in inside] for scores in (logits, moved))
        truth = [int(labels[at]) for at in inside]
        changed, pixels = changed + sum(a != b for a, b in zip(raw, new, strict=True)), pixels + len(inside)
        gains["accuracy"].append(np.mean(np.equal(new, truth)) - np.mean(np.equal(raw, truth)))
        gains["miou"].append(_iou(new, truth) - _iou(raw, truth))
    frame = found.to_frame().set_index("method")
    assert changed > 10
    assert frame.changed["Biased"] == changed / pixels
    assert frame.accuracy["Biased"] == pytest.approx(np.mean(gains["accuracy"]), abs=1e-12)
    assert frame.miou["Biased"] == pytest.approx(np.mean(gains["miou"]), abs=1e-12)
    assert (frame.changed["TS"], frame.accuracy["TS"], frame.miou["TS"]) == (0, 0, 0)
    assert list(frame.keeps_labels) == [True, False]


def _iou(predicted: list[int], truth: list[int]) -> float:
    return references.mean_iou(np.array(predicted), np.array(truth), CLASSES)


def test_costs_are_those_of_the_fit(cases: list[Case]) -> None:
    found = compare(cases[:1], cases[3:], {"TS": segcal.create("ts", CLASSES), "B": Biased(CLASSES)}, **PROTOCOL)
    frame = found.to_frame().set_index("method")
    assert list(frame.parameters) == [1, CLASSES]
    assert all(frame.seconds[name] == fitted.fit_report_.seconds for name, fitted in found.calibrators.items())
    assert (frame.memory >= 0).all()
    assert segcal.create("lts", 11, image_channels=3).learned == 8 * (25 * 11 + 1) + 25 * 3 + 1 + 1


def test_memory_is_the_peak_and_not_what_is_left() -> None:
    size = 80_000_000
    for _ in range(2):  # what the first freed must not make the second look small
        with memory_growth() as growth:
            held = np.ones(size, np.uint8)
            del held
        assert growth.peak == pytest.approx(size, rel=0.1)
    with memory_growth() as growth:
        pass
    assert growth.peak == pytest.approx(0, abs=size / 10)


def test_memory_is_unknown_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("segcal.evaluation.compare._PROCESS", tmp_path / "nowhere")
    with memory_growth() as growth:
        pass
    assert growth.peak is None


@pytest.mark.parametrize("error", [Failing.error, RuntimeError("out of memory"), ZeroDivisionError("oh")], ids=repr)
def test_one_that_fails_loses_nobody_elses_work(
    cases: list[Case], error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Failing, "error", error)
    found = compare(cases[:1], cases[3:], {"F": Failing(CLASSES), "TS": segcal.create("ts", CLASSES)}, **PROTOCOL)
    assert found.results.methods == ("UC", "TS")
    row = found.records()[0]
    assert str(error) in row.pop("failure")
    assert row.pop("method") == "F"
    assert set(row.values()) == {None}
    found.save(tmp_path / "out")
    assert not (tmp_path / "out" / "f").exists()


def test_a_slip_in_a_program_is_not_hidden(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "error", TypeError("a slip"))
    with pytest.raises(TypeError):
        compare(cases[:1], cases[3:], {"F": Failing(CLASSES), "TS": segcal.create("ts", CLASSES)}, **PROTOCOL)


def test_none_left_is_an_error(cases: list[Case]) -> None:
    with pytest.raises(InputError, match="none of 2 methods could be fitted; A says: these data are not to my taste"):
        compare(cases[:1], cases[3:], {"A": Failing(CLASSES), "B": Failing(CLASSES)}, **PROTOCOL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"calibrators": {}}, "at least one method"),
        ({"calibrators": {"uc": TemperatureScaling(CLASSES)}}, "that is not UC.*got 'uc'"),
        ({"calibrators": {"../ts": TemperatureScaling(CLASSES)}}, "letters, digits.*got '../ts'"),
        ({"calibrators": {"a": Failing(CLASSES), "A": Failing(CLASSES)}}, "different names, got a, A"),
        ({"calibrators": {"Floor": Failing(CLASSES)}}, "cannot be called .Floor."),
        ({"fit_settings": {"epochs": 2}}, "none of the methods has the setting 'epochs'"),
        ({"fit_settings": {"watch": print}}, "none of the methods has the setting 'watch'"),
        ({"fit_cases": []}, "at least one case"),
        ({"test_cases": []}, "at least one case"),
        ({"bins": 0}, "bins must be at least 1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_fitted(
    cases: list[Case], changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "error", AssertionError("it was fitted"))
    usual = {"fit_cases": cases[:1], "test_cases": cases[3:], "calibrators": {"F": Failing(CLASSES)}}
    with pytest.raises(InputError, match=message):
        compare(**{**usual, **PROTOCOL, **changes})


def test_bad_test_cases_are_found_before_anything_is_fitted(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "error", AssertionError("it was fitted"))
    stray = Case("the-odd-one", cases[4].logits, np.full((14, 12), 9))
    with pytest.raises(InputError, match="'the-odd-one'"):
        compare(cases[:1], [cases[3], stray], {"F": Failing(CLASSES)}, **PROTOCOL)


@pytest.mark.parametrize("wrong", [["ts"], "ts", {"TS": "ts"}], ids=str)
def test_names_of_methods_are_refused_with_the_remedy(cases: list[Case], wrong: Any) -> None:
    with pytest.raises(InputError, match=r"must be unfitted calibrators by name, got (list|str); .*segcal\.create"):
        compare(cases[:1], cases[3:], wrong, **PROTOCOL)


def test_saved_is_whole_and_readable(cases: list[Case], tmp_path: Path) -> None:
    found: Comparison = compare(cases[:1], cases[3:], {"TS": segcal.create("ts", CLASSES)}, **PROTOCOL)
    found.save(tmp_path / "out")
    found.save(tmp_path / "out")  # replaces what segcal wrote
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == found.records()
    assert Results.load(tmp_path / "out").to_frame().equals(found.results.to_frame())
    kept = segcal.load(tmp_path / "out" / "ts")
    assert torch.equal(kept.state_dict()["inverse_temperature"], found.calibrators["TS"].inverse_temperature)


# --------------------------------------------------------------------------------------------------------------------
# as a command


def test_the_command_tells_everything(told: tuple[Path, Path, str]) -> None:
    _, out, shown = told
    results = Results.load(out)
    assert results.methods == ("UC", *(name.upper() for name in PAPER))
    for method in results.methods:
        cell = results.table(reference="LTS").cells[(method, "ece", "all")]
        assert f"{100 * cell.mean:.2f}({100 * cell.std:.2f})" in shown
    assert "LTS is significantly better" in " ".join(shown.split())
    costs = shown[shown.index("Cost, and effect on labels") :]
    for record in json.loads((out / "comparison.json").read_text()):
        line = re.search(rf"^{record['method']} .*$", costs, re.MULTILINE)
        assert line is not None
        assert f"{record['parameters']:,}" in line.group()
        assert f"{record['seconds']:.1f}" in line.group()
        assert ("kept" in line.group()) == record["keeps_labels"]
        assert ("%" in line.group()) != record["keeps_labels"]
    names = {f"scene-00{k}" for k in (3, 4, 5)}
    assert set(results.to_frame().case) == names


def test_what_is_saved_is_what_evaluate_measures(told: tuple[Path, Path, str]) -> None:
    data, out, _ = told
    folders = [str(out / method) for method in PAPER]
    options = ["--patches", "2", "--patch-size", "6", "--json"]
    again = succeed("evaluate", data, "--calibrators", *folders, *options)
    before = json.loads(Results.load(out).to_frame().to_json(orient="records", double_precision=15))
    assert json.loads(again)["images"] == before


def test_methods_beyond_the_paper_can_be_compared(data: Path) -> None:
    """All of them except `auto`, which fits others."""
    out, cases = data.parent / "out", open_folder(data).select("test")
    methods = [method for method in segcal.methods() if method not in (*PAPER, "auto")]
    arguments = ("--methods", ",".join(methods), "--patches", 0, "--out", out)
    found = succeed_json("compare", data, *arguments)
    assert found["settings"]["methods"] == ["UC", *(row["method"] for row in found["methods"])]
    assert [row["method"] for row in found["methods"]] == [method.upper() for method in methods]
    for row in found["methods"]:
        assert row["failure"] is None, row["method"]
        calibrator, moved = segcal.load(out / row["method"].lower()), []
        for case in cases:
            logits, image = torch.tensor(np.array(case.logits))[None], torch.tensor(np.array(case.image))[None]
            moved.append((calibrator(logits, image).argmax(1) != logits.argmax(1)).flatten())
        changed = torch.cat(moved)
        assert row["changed"] == int(changed.sum()) / len(changed), row["method"]
        assert not (row["keeps_labels"] and changed.any())
        assert row["parameters"] == calibrator.learned


def test_page_table_and_figure_of_what_is_saved(data: Path) -> None:
    home = data.parent
    out, page, again, table = home / "out", home / "page.html", home / "again.html", home / "table.md"
    options = ("--patch-sizes", 4, 6, "--floor", "--test", "wilcoxon", "--reference", "ibts", *QUICK)
    pages = ("--out", out, "--page", page, "--cases", "scene-004")
    shown = succeed("compare", data, "--methods", "ts,ibts", *pages, *options)
    assert f"shown in {page}" in shown.replace("\n", "")
    assert "floor" in shown
    assert [portrait.name for portrait in load_portraits(out)] == ["scene-004"]
    for arguments in (
        ["report", out, "--out", again],
        ["table", out, "--reference", "IBTS", "--test", "wilcoxon", "--floor", "--out", table],
        ["figure", "temperature", out, "--out", home / "temperature.png"],
    ):
        succeed(*arguments)
    assert again.read_bytes() == page.read_bytes()
    assert "IBTS" in table.read_text()


def test_json_is_the_results_with_the_costs(data: Path) -> None:
    found = succeed_json("compare", data, "--methods", "ts", "ibts", "--out", data.parent / "out", *QUICK)
    saved = Results.load(data.parent / "out")
    assert found.pop("recommendation")["method"] == "TS"
    assert {name: value for name, value in found.items() if name != "methods"} == saved.to_dict()
    assert [row["method"] for row in found["methods"]] == ["TS", "IBTS"]
    assert all(math.isfinite(row["seconds"]) for row in found["methods"])


def test_options_reach_training_and_protocol(data: Path) -> None:
    out = data.parent / "out"
    options = ("--epochs", 3, "--set", "learning_rate=0.01", "--logits-only", "--seed", 4)
    options += ("--bins", 7, "--background", 1)
    splits = ("--fit-split", "test", "--validation", "fit", "--test-split", "validation")
    succeed("compare", data, "--methods", "lts", "--out", out, "--ignore-index", 0, 9, *options, *splits)
    lts, settings = segcal.load(out / "lts"), Results.load(out).settings
    assert lts.fit_report_.steps == 3
    assert lts.fit_report_.names == ("scene-003", "scene-004", "scene-005")
    assert lts.fit_report_.details["validation_nll"] is not None
    config = lts.config()
    assert (config["image_channels"], config["background"], config["ignore_index"]) == (0, 1, (0, 9))
    assert (settings["seed"], settings["bins"], settings["background"]) == (4, 7, 1)
    folder = open_folder(data, ignore_index=(0, 9), background=1)
    again = segcal.create("lts", CLASSES, ignore_index=(0, 9), background=1)
    again.fit(folder.select("test"), validation=folder.select("fit"), epochs=3, learning_rate=0.01, seed=4)
    assert torch.equal(again.tree.of_logits.weight, lts.tree.of_logits.weight)


def test_a_failure_has_its_row_and_the_rest_is_saved(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnsembleTemperatureScaling, "_learn", Failing._learn)
    monkeypatch.setattr(EnsembleTemperatureScaling, "error", Failing.error, raising=False)
    out = data.parent / "out"
    result = done("compare", data, "--methods", "ets,ibts", "--reference", "ETS", "--out", out, *QUICK)
    assert re.search(r"^ETS +could not be fitted", result.stdout, re.MULTILINE)
    assert "ETS could not be fitted: these data are not to my taste" in " ".join(result.stderr.split())
    assert "the reference ETS could not be fitted" in " ".join(result.stderr.split())
    assert Results.load(out).methods == ("UC", "IBTS")
    assert segcal.load(out / "ibts").method == "ibts"
    line = refuse("compare", data, "--methods", "ets", "--out", data.parent / "none")
    assert "none of 1 methods could be fitted; ETS says: these data are not to my taste" in line
    assert not (data.parent / "none").exists()


def test_mistakes_in_one_sentence(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.evaluation.compare.measured_fit", lambda *_: pytest.fail("it was fitted"))
    foreign = data.parent / "foreign"
    foreign.mkdir()
    (foreign / "mine.txt").touch()
    for options, words in (
        (("--methods", "ts,telepathy"), "method must be one of ts"),
        (("--methods", "ts,ts"), "methods must have different names, got ts, ts"),
        (("--methods", "uc"), "UC, which stands for the uncalibrated scores"),
        (("--methods", "ts", "--epochs", 3), "'ts' has no setting 'epochs'"),
        (("--methods", "ts", "--reference", "LTS"), "reference must be one of UC, TS, got 'LTS'"),
        (("--methods", "ts", "--test-split", "dev"), "got 'dev'"),
        (("--methods", "ts", "--bins", 0), "bins must be at least 1"),
        (("--methods", "ts", "--test", "guess"), "test must be one of"),
        (("--methods", "ts", "--cases", "nobody"), "'nobody'"),
        (("--methods", "ts", "--page", foreign), "is a folder"),
        (("--methods", "ts", "--out", data), "cannot be written to"),
        (("--methods", "ts", "--out", foreign), "holds files that segcal did not write"),
    ):
        assert words in refuse("compare", data, *options)
    np.save(data / "logits" / "scene-004.npy", np.full((CLASSES, 14, 12), np.nan, np.float32))
    assert "'scene-004'" in refuse("compare", data, "--methods", "ts")
    assert {path.name for path in data.parent.iterdir()} == {"data", "foreign"}
