"""Tables of the guide: each measured on a little data, against what users of the library would compute themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import segcal
from experiments.choices import __main__ as command
from experiments.choices import decisions, pooling, settling
from experiments.choices.__main__ import main, table_of
from experiments.datasets.coarse import open_coarse
from experiments.datasets.voc import CLASSES, VOID
from segcal.calibrators import local
from segcal.data.sample.brain import has_template
from segcal.evaluation.decisions import decide, new_volumes
from support.voc_tree import write_voc

SHOWN = [CLASSES.index(name) for name in decisions.SHOWN]


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voc(tmp_path_factory.mktemp("voc"), SHOWN, 24)


def test_a_division_is_what_decide_and_its_rules_give(
    voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decisions, "DIVISIONS", 1)
    assert main(["measure", "decisions", "--voc", str(voc), "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "decisions.csv").set_index(["class", "rule", "asked"])["mean"]
    order = np.random.default_rng(0).permutation(24)
    cases = list(open_coarse(voc))
    fit, test = ([cases[k] for k in half] for half in (order[:12], order[12:]))
    for risk, level in ((0.1, 0.8), (0.2, 0.9)):
        about = {"num_classes": 21, "ignore_index": VOID, "background": 0, "risk": risk, "level": level}
        found = decide(fit, {"UC": None}, **about)  # type: ignore[arg-type]
        limits, volumes = found.threshold("UC"), new_volumes(test, {"UC": None}, found).set_index(["case", "label"])
        for name, label in zip(decisions.SHOWN, SHOWN, strict=True):
            missed, inside = [], []
            for case in test:
                own = np.asarray(case.labels) == label
                probs = torch.as_tensor(case.logits).double().softmax(0)[label][torch.from_numpy(own)]
                missed += [float((probs < limits[label]).double().mean())] if own.any() else []
                row = volumes.loc[case.name, str(label)]
                inside.append(row["low"] <= own.sum() <= row["high"])
            assert rows[name, "risk", risk] == pytest.approx(np.mean(missed), abs=1e-6)
            assert rows[name, "level", level] == pytest.approx(np.mean(inside), abs=1e-6)
    assert main(["table", "decisions", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("| background | 2")


def test_training_that_settles_is_compared_with_all_epochs(
    voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = segcal.load_sample()
    few = {"fit": sample["fit"][:3], "validation": sample["validation"][:2]}
    monkeypatch.setattr(settling, "load_sample", lambda _: few)
    monkeypatch.setattr(settling, "_VOC", (4, 2))
    monkeypatch.setattr(local, "_PATIENCE", 2)
    monkeypatch.setattr(local, "_PATIENCE_STEPS", 5)
    assert main(["measure", "settling", "--voc", str(voc), "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "settling.csv")
    assert rows["data"].tolist() == ["bundled scenes, 5 x 96 x 96", "bundled brains, 5 x 96 x 96", "VOC, 21 x 10 x 12"]
    assert rows[["fit", "validation"]].to_numpy().tolist() == [[3, 2], [3, 2], [4, 2]]
    assert (rows["all"] <= rows["ts"]).all(), "TS is among the states that are compared"
    assert (rows["epochs all"] == 200).all()
    assert (rows["epochs settled"] >= 5).all()
    assert (rows["epochs early"] >= 20).all()
    first = rows.iloc[0]
    assert f"| {first['settled']:.4f} ({first['epochs settled']}) |" in table_of("settling", tmp_path)


@pytest.mark.skipif(not has_template(), reason="needs the extra demo")
def test_variants_of_the_pool_keep_labels_and_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_FIT", range(1)), ("_TEST", range(1, 2)), ("_EVERY", 40), ("_SHOWN", ("mirror",))):
        monkeypatch.setattr(pooling, name, value)
    assert main(["measure", "pooling", "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "pooling.csv", keep_default_na=False)
    assert len(rows) == 1 + 6
    assert rows["nll"].is_unique
    assert table_of("pooling", tmp_path).startswith("| NLL, % of `ts` | mirror |")
    fit = pooling._voxels(range(1), ("original", "mirror:2", "scale:1.1"))
    labels = fit.logits[0].argmax(dim=0)
    for name, pool in pooling._variants(fit):
        pooled = pool(fit.logits)
        assert (pooled.gather(0, labels[None]) >= pooled.amax(dim=0) - 1e-5).all(), name


def test_all_published_tables_are_printed_where_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table"]) == 0
    assert capsys.readouterr().out == "\n\n".join(map(table_of, command.CHOICES)) + "\n"


def test_bad_input_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["measure", "decisions", "--out", str(tmp_path)]) == 2
    assert "--voc" in capsys.readouterr().err
    monkeypatch.setattr(command, "MEASURED", tmp_path)
    assert main(["table", "decisions"]) == 2
    assert "run `python -m experiments.choices measure decisions` first" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["table", "decision"])
    assert "must be one of decisions, pooling, settling, got 'decision'" in capsys.readouterr().err
