"""The blocks of docs/guide/integrations.md that need packages run, each after the shared ones, in an empty folder.

Such a block is marked `py`, and its first line names the packages; blocks marked `python` run in `tests/test_docs.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import segcal

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "integrations.md"
FENCES = re.compile(r"^```(python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [(kind, code) for kind, code in FENCES.findall(PAGE.read_text(encoding="utf-8"))]
SHARED = next(code for kind, code in BLOCKS if kind == "python")
NEEDY = [code for kind, code in BLOCKS if kind == "py"]


def packages_of(code: str) -> list[str]:
    return code.splitlines()[0].removeprefix("# ").split(", ")


def test_there_are_blocks() -> None:
    assert len(NEEDY) >= 8
    assert all(code.startswith("# ") for code in NEEDY)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", NEEDY, ids=lambda code: packages_of(code)[-1])
def test_block_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in packages_of(code):
        pytest.importorskip(package, reason=f"{package} is not installed: make test-integrations")
    monkeypatch.chdir(tmp_path)
    exec(compile(f"{SHARED}\n{code}", str(PAGE), "exec"), {"__name__": "page"})


def test_configuration_of_a_bundle_runs(tmp_path: Path) -> None:
    """The JSON of the page in an evaluator of MONAI: calibrated labels, and the ECE of the network's logits."""
    pytest.importorskip("monai", reason="monai is not installed: make test-integrations")
    pytest.importorskip("ignite", reason="pytorch-ignite is not installed: make test-integrations")
    from monai.bundle import ConfigParser
    from monai.engines import SupervisedEvaluator

    from segcal.integrations.monai import CalibrationHandler

    (text,) = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    parser = ConfigParser({**json.loads(f"{{{text}}}"), "bundle_root": str(tmp_path)})
    torch.manual_seed(0)
    network, images, labels = (
        torch.nn.Conv2d(1, 5, 3, padding=1),
        torch.rand(4, 1, 16, 16),
        torch.randint(5, (4, 16, 16)),
    )
    segcal.create("ts", num_classes=5).fit(list(segcal.predict_cases(network, [(images, labels)]))).save(
        tmp_path / "ts"
    )
    postprocessing, metrics = (parser.get_parsed_content(name) for name in ("postprocessing", "additional_metrics"))
    accuracy = CalibrationHandler(5, "logits", metric="accuracy", output_transform=metrics["val_ece"]._output_transform)
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=[{"image": images[k : k + 2], "label": labels[k : k + 2].unsqueeze(1)} for k in (0, 2)],
        network=network,
        postprocessing=postprocessing,
        key_val_metric={"val_accuracy": accuracy},
        additional_metrics=metrics,
    )
    evaluator.run()
    with torch.no_grad():
        logits = network(images)
    assert evaluator.state.metrics["val_ece"] == pytest.approx(segcal.ece(logits, labels))
    for item, scores in zip(evaluator.state.output, logits[2:], strict=True):
        assert torch.equal(item["pred"][0].long(), scores.argmax(0))
