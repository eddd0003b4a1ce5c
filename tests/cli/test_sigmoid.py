"""The commands on sigmoid heads as a user meets them: one channel with masks of 0 and 255, and overlapping channels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import segcal
from segcal.cli.app import app
from segcal.evaluation.results import Results


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result.stdout if status == 0 else result.stderr


def run_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json"), parse_constant=pytest.fail)


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
    message = run("fit", data, "--out", ts, status=2)
    assert "[channels] and foreground = 255 in segcal.toml" in message
    (data / "segcal.toml").write_text("background = 0\n[channels]\nforeground = 255\n")
    run("fit", data, "--out", ts)
    assert segcal.load(ts).num_classes == 1
    written = run_json("apply", ts, data, "--out", tmp_path / "probs", "--temperature", "--dtype", "float16")
    assert written["changed"] == 0
    probs, scores = np.load(tmp_path / "probs" / "c0.npy"), np.load(data / "logits" / "c0.npy")
    assert (probs.shape, probs.dtype) == (scores.shape, np.float16)
    np.testing.assert_array_equal(probs > 0.5, scores > 0)
    assert np.load(tmp_path / "probs" / "temperature" / "c0.npy").shape == scores.shape[1:]
    out, page = tmp_path / "results", tmp_path / "page.html"
    run("evaluate", data, "--calibrators", ts, "--out", out, "--page", page, "--patches", "2")
    results = Results.load(out)
    assert results.settings["class_names"] == ["not foreground", "foreground"]
    run("report", out, "--out", tmp_path / "again.html")
    found = run_json("diagnose", data, "--maps", tmp_path / "maps")
    assert found["dataset"]["state"] == "overconfident"
    assert (tmp_path / "maps" / "c1.png").exists()
    compared = run_json("compare", data, "--methods", "ts,lts", "--epochs", "1", "--patches", "0")
    assert [row["method"] for row in compared["methods"]] == ["TS", "LTS"]


def test_overlapping_channels(tmp_path: Path) -> None:
    data, ts = folder_of(tmp_path / "data", 2), tmp_path / "ts"
    assert "activation='sigmoid' if they overlap" in run("evaluate", data, status=2)
    assert "--activation must be softmax or sigmoid, got 'tanh'" in run(
        "evaluate", data, "--activation", "tanh", status=2
    )
    (data / "segcal.toml").write_text('activation = "sigmoid"\nclasses = ["whole", "core"]\n')
    assert "channel 1" in run("fit", data, "--out", ts)
    assert run_json("apply", ts, data, "--out", tmp_path / "probs", "--temperature")["changed"] == 0
    assert (tmp_path / "probs" / "temperature" / "core" / "c0.npy").exists()
    (data / "splits.json").write_text('{"test": ["c0", "c1"]}')
    options = ("--patches", "2", "--cases", "c0")
    pages = ("--out", tmp_path / "results", "--page", tmp_path / "page.html")
    shown = run("evaluate", data, "--calibrators", ts, *pages, *options)
    assert "mean over 2 channels: whole, core" in shown
    assert list(Results.load(tmp_path / "results").channels) == ["whole", "core"]
    assert '"whole"' in (tmp_path / "page.html").read_text()
    found = run_json("diagnose", data, "--maps", tmp_path / "maps", "--limits")
    assert set(found["channels"]) == {"whole", "core"}
    assert (tmp_path / "maps" / "core" / "c0.npy").exists()
    assert "channel whole" in run("diagnose", data)
    assert "decisions need exclusive classes, got sigmoid channels" in run("decide", data, status=2)
    rows = run_json("compare", data, "--methods", "ts", "--patches", "0")["methods"]
    assert rows[0]["parameters"] == 2


def test_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    channels = 2  # each of which is what a single channel is
    random = np.random.default_rng(0)
    scores = random.normal(scale=3, size=(channels, 8, 8)).astype(np.float32)
    case = segcal.Case("a", scores, (scores + random.logistic(size=scores.shape) > 0).astype(np.uint8))
    segcal.create("ts", channels, activation="sigmoid").fit([case]).save(tmp_path / "ts")
    assert run_json("export", tmp_path / "ts", "--out", tmp_path / "ts.onnx")["difference"] < 1e-5
