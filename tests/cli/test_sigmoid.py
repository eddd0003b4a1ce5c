"""The commands on sigmoid heads as a user meets them: one channel with masks of 0 and 255, and overlapping channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import segcal
from segcal.evaluation.results import Results
from support.commands import done, refuse, succeed, succeed_json


def folder_of(root: Path, channels: int) -> Path:
    """Three small images; the masks of one channel are pictures of 0 and 255."""
    random = np.random.default_rng(0)
    for part in ("logits", "labels"):
        (root / part).mkdir(parents=True)
    for k in range(3):
        scores = random.normal(scale=3, size=(channels, 4, 5)).repeat(4, 1).repeat(3, 2).astype(np.float32)
        scores += random.normal(size=scores.shape).astype(np.float32)
        masks = (scores / 2 + random.logistic(size=scores.shape) > 0).astype(np.uint8)
        np.save(root / "logits" / f"c{k}.npy", scores)
        if channels == 1:
            Image.fromarray(255 * masks[0]).save(root / "labels" / f"c{k}.png")
        else:
            np.save(root / "labels" / f"c{k}.npy", masks)
    return root


def test_one_channel_from_the_first_error_to_the_page(tmp_path: Path) -> None:
    data, ts = folder_of(tmp_path / "data", 1), tmp_path / "ts"
    message = refuse("fit", data, "--method", "ts", "--out", ts)
    assert "[channels] and foreground = 255 in segcal.toml" in message
    (data / "segcal.toml").write_text("background = 0\n[channels]\nforeground = 255\n")
    succeed("fit", data, "--method", "ts", "--out", ts)
    assert segcal.load(ts).num_classes == 1
    written = succeed_json("apply", ts, data, "--out", tmp_path / "probs", "--temperature", "--dtype", "float16")
    assert written["changed"] == 0
    probs, scores = np.load(tmp_path / "probs" / "c0.npy"), np.load(data / "logits" / "c0.npy")
    assert (probs.shape, probs.dtype) == (scores.shape, np.float16)
    np.testing.assert_array_equal(probs > 0.5, scores > 0)
    assert np.load(tmp_path / "probs" / "temperature" / "c0.npy").shape == scores.shape[1:]
    out, page = tmp_path / "results", tmp_path / "page.html"
    succeed("evaluate", data, "--calibrators", ts, "--out", out, "--page", page, "--patches", "2")
    results = Results.load(out)
    assert results.settings["class_names"] == ["not foreground", "foreground"]
    succeed("report", out, "--out", tmp_path / "again.html")
    found = succeed_json("diagnose", data, "--maps", tmp_path / "maps")
    assert found["dataset"]["state"] == "overconfident"
    assert (tmp_path / "maps" / "c1.png").exists()
    rules = succeed_json("decide", data, "--calibrators", ts, "--risk", "0.4")
    assert [(row["method"], row["label"]) for row in rules["thresholds"]] == [
        ("UC", "foreground"),
        ("TS", "foreground"),
    ]
    compared = succeed_json("compare", data, "--methods", "ts,lts", "--epochs", "1", "--patches", "0")
    assert [row["method"] for row in compared["methods"]] == ["TS", "LTS"]


def test_overlapping_channels(tmp_path: Path) -> None:
    data, ts = folder_of(tmp_path / "data", 2), tmp_path / "ts"
    assert "activation='sigmoid' if they overlap" in refuse("evaluate", data)
    assert "'tanh' is not one of 'softmax', 'sigmoid'" in refuse("evaluate", data, "--activation", "tanh")
    (data / "segcal.toml").write_text('activation = "sigmoid"\nclasses = ["whole", "core"]\n')
    assert "channel core" in succeed("fit", data, "--method", "ts", "--out", ts)
    assert succeed_json("apply", ts, data, "--out", tmp_path / "probs", "--temperature")["changed"] == 0
    assert (tmp_path / "probs" / "temperature" / "core" / "c0.npy").exists()
    (data / "splits.json").write_text('{"test": ["c0", "c1"]}')
    options = ("--patches", "2", "--cases", "c0")
    pages = ("--out", tmp_path / "results", "--page", tmp_path / "page.html")
    shown = succeed("evaluate", data, "--calibrators", ts, *pages, *options)
    assert "mean over 2 channels: whole, core" in shown
    assert list(Results.load(tmp_path / "results").channels) == ["whole", "core"]
    assert '"whole"' in (tmp_path / "page.html").read_text()
    found = succeed_json("diagnose", data, "--maps", tmp_path / "maps", "--limits")
    assert set(found["channels"]) == {"whole", "core"}
    assert (tmp_path / "maps" / "core" / "c0.npy").exists()
    assert "channel whole" in succeed("diagnose", data)
    (data / "splits.json").unlink()
    rules = ("--risk", "0.4", "--level", "0.6", "--out", tmp_path / "rules", "--page", tmp_path / "rules.html")
    said = succeed("decide", data, "--calibrators", ts, *rules)
    assert "TS      core     pixels" in said
    assert '"curves":{"whole":{"pixels":{"UC":' in (tmp_path / "rules.html").read_text()
    learned = succeed_json("decide", data, "--calibrators", ts, "--risk", "0.4")
    assert [row["label"] for row in learned["thresholds"]] == ["whole", "core"] * 2
    assert all(row["threshold"] > 0 for row in learned["thresholds"])
    new = succeed_json("decide", data, "--rules", tmp_path / "rules", "--calibrators", ts)["volumes"]
    assert [row["label"] for row in new] == ["whole", "core"] * 3
    rows = succeed_json("compare", data, "--methods", "ts", "--patches", "0")["methods"]
    assert rows[0]["parameters"] == 2


def test_warnings_name_the_channels(tmp_path: Path) -> None:
    """One temperature per channel lifts the core, whose scores are too confident, above the whole."""
    random = np.random.default_rng(3)
    for part in ("logits", "labels"):
        (tmp_path / "data" / part).mkdir(parents=True)
    for k in range(3):
        whole = random.normal(scale=2, size=(32, 32))
        core, uniform = whole - random.exponential(size=whole.shape), random.random(whole.shape)
        masks = np.stack([uniform < 1 / (1 + np.exp(-z)) for z in (whole, core)]).astype(np.uint8)
        np.save(tmp_path / "data" / "logits" / f"c{k}.npy", np.stack([whole, 3 * core - 4]).astype(np.float32))
        np.save(tmp_path / "data" / "labels" / f"c{k}.npy", masks)
    (tmp_path / "data" / "segcal.toml").write_text('activation = "sigmoid"\nclasses = ["whole", "core"]\n')
    for command in (
        ("fit", "--method", "ts", "--out", tmp_path / "ts"),
        ("compare", "--methods", "ts", "--patches", "0"),
    ):
        said = " ".join(done(command[0], tmp_path / "data", *command[1:]).stderr.split())
        assert "'core' lies within 'whole', but after calibration" in said


def test_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    channels = 2  # each of which is what a single channel is
    random = np.random.default_rng(0)
    scores = random.normal(scale=3, size=(channels, 8, 8)).astype(np.float32)
    case = segcal.Case("a", scores, (scores + random.logistic(size=scores.shape) > 0).astype(np.uint8))
    segcal.create("ts", channels, activation="sigmoid").fit([case]).save(tmp_path / "ts")
    assert succeed_json("export", tmp_path / "ts", "--out", tmp_path / "ts.onnx", "--size", 16, 16)["difference"] < 1e-5
