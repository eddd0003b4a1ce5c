"""Transformers models with calibrated logits, their image processors, and calibrators in folders of the Hub."""

from __future__ import annotations

import json
import logging
import re
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import segcal
from segcal.evaluation.run import evaluate
from segcal.integrations.outputs import read_output, resized
from segcal.types import InputError
from support.networks import CLASSES, Convolution, batch_of, cases_of, fitted

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: make test-integrations")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-integrations")

from segcal.integrations.hugging_face import CalibratedSegmenter, HubCalibrator  # noqa: E402

SIZE = (64, 96)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A SegFormer whose logits are a quarter of the image's size, with random weights."""
    torch.manual_seed(0)
    config = transformers.SegformerConfig(
        num_labels=CLASSES,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        id2label={0: "sky", 1: "road", 2: "tree"},
    )
    return transformers.SegformerForSemanticSegmentation(config).eval()


@pytest.mark.parametrize("method", ["ts", "lts"])
def test_the_image_processor_works_as_before(network: Any, method: str) -> None:
    images, labels = batch_of(2, SIZE, channels=3)
    model = CalibratedSegmenter(network, fitted(network, (images, labels), method)).eval()
    processor = transformers.SegformerImageProcessor()
    with torch.no_grad():
        output, plain = model(pixel_values=images), network(pixel_values=images)
    assert plain.logits.shape[2:] == (16, 24)
    assert output.logits.shape == (2, CLASSES, *SIZE)
    for own, other in zip(
        processor.post_process_semantic_segmentation(output, target_sizes=[SIZE] * 2),
        processor.post_process_semantic_segmentation(plain, target_sizes=[SIZE] * 2),
        strict=True,
    ):
        assert torch.equal(own, other)  # the labels are those of the model alone
    (scored, _) = processor.post_process_semantic_segmentation(output, return_segmentation_scores=True)
    probs = scored.segmentation_scores.softmax(0)
    with torch.no_grad():
        torch.testing.assert_close(probs, model.predict_proba(images)[0])
        assert torch.equal(output.logits, model.logits(images))
    assert not torch.allclose(output.logits.softmax(1), resized(plain.logits, SIZE).softmax(1), atol=1e-3)
    assert model.config.id2label[1] == "road"


def test_labels_are_kept_at_another_size(network: Any) -> None:
    """A local method is applied at the size that the labels are wanted at."""
    images, labels = batch_of(1, SIZE, channels=3)
    model = CalibratedSegmenter(network, fitted(network, (images, labels), "lts")).eval()
    processor, wanted = transformers.SegformerImageProcessor(), (50, 70)
    with torch.no_grad():
        found = processor.post_process_semantic_segmentation(model(images, size=wanted), target_sizes=[wanted])
        plain = processor.post_process_semantic_segmentation(network(images), target_sizes=[wanted])
        assert model.predict_proba(images, size=wanted).shape == (1, CLASSES, *wanted)
    assert torch.equal(found[0], plain[0])


def test_mistakes_at_another_size(network: Any) -> None:
    """The sentences are those that are raised at the size of the image."""
    images, labels = batch_of(1, SIZE, channels=3)
    calibrator = fitted(network, (images, labels))
    with pytest.raises(InputError, match=r"logits .* must have 3 spatial axes .* got shape \(1, 3, 16, 24\)"):
        CalibratedSegmenter(network, calibrator)(images, size=(8, 8, 8))

    class Queries(nn.Module):
        """Returns what Mask2Former does: no logits of classes."""

        def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"class_queries_logits": image.new_zeros(1, 8, CLASSES + 1)}

    for size in (None, (8, 8)):
        with pytest.raises(InputError, match=r"must return logits .* got dict with 'class_queries_logits'"):
            CalibratedSegmenter(Queries(), calibrator)(images, size=size)


@pytest.fixture
def segmenter(network: Any) -> CalibratedSegmenter:
    return CalibratedSegmenter(network, fitted(network, batch_of(2, SIZE, channels=3))).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_a_pipeline(segmenter: CalibratedSegmenter, dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    """The masks are those of the model alone."""
    processor, picture = transformers.SegformerImageProcessor(), Image.effect_noise((70, 50), 90).convert("RGB")
    options = {"image_processor": processor, "device": "cpu"}
    plain = transformers.pipeline("image-segmentation", model=deepcopy(segmenter.network).to(dtype), **options)
    with caplog.at_level(logging.WARNING, logger="transformers"):
        run = transformers.pipeline("image-segmentation", model=deepcopy(segmenter).to(dtype), **options)
    assert not caplog.records
    found, expected = run(picture), plain(picture)
    assert [part["label"] for part in found] == [part["label"] for part in expected]
    wrong = sum(
        int((np.asarray(one["mask"]) != np.asarray(other["mask"])).sum())
        for one, other in zip(found, expected, strict=True)
    )
    assert wrong <= 0.01 * 70 * 50 * len(found)  # both are interpolated, in another order
    assert (run.model.dtype, run.model.device) == (dtype, torch.device("cpu"))
    assert "CalibratedSegmenter" in repr(run.model)


def test_loss_and_tuples(segmenter: CalibratedSegmenter) -> None:
    images, labels = batch_of(2, SIZE, channels=3)
    labels[:, :3] = segmenter.config.semantic_loss_ignore_index
    with torch.no_grad():
        output, plain = segmenter(pixel_values=images, labels=labels), segmenter.network(images, labels=labels)
        assert torch.equal(output.loss, nn.functional.cross_entropy(output.logits, labels, ignore_index=255))
        assert output.loss < plain.loss
        loss, logits = segmenter(images, labels, return_dict=False)
        (alone,) = segmenter(images, return_dict=False)
        states = segmenter(images, output_hidden_states=True).hidden_states
    assert torch.equal(loss, output.loss)
    assert torch.equal(logits, output.logits)
    assert torch.equal(alone, logits)
    assert len(states) == 2


def test_saved_with_its_model(segmenter: CalibratedSegmenter, tmp_path: Path) -> None:
    segmenter.save_pretrained(tmp_path / "model")
    loaded = CalibratedSegmenter.from_pretrained(tmp_path / "model").eval()
    images, _ = batch_of(1, SIZE, channels=3)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, segmenter(images).logits)
    alone = transformers.AutoModelForSemanticSegmentation.from_pretrained(tmp_path / "model")
    assert type(alone) is type(segmenter.network)


def test_masks_and_their_classes() -> None:
    """The labels are those of the scores of mask classification, which the processor of Mask2Former computes."""
    torch.manual_seed(0)
    classes, masks = torch.randn(2, 6, CLASSES + 1), torch.randn(2, 6, 384, 384)
    output = SimpleNamespace(class_queries_logits=classes, masks_queries_logits=masks)
    logits = read_output(output)
    processor = transformers.Mask2FormerImageProcessor()
    for own, other in zip(logits, processor.post_process_semantic_segmentation(output), strict=True):
        assert torch.equal(own.argmax(0), other)
    scores = torch.einsum("bqc,bqhw->bchw", classes.softmax(-1)[..., :-1], masks.sigmoid())
    torch.testing.assert_close(logits.softmax(1), scores / scores.sum(1, keepdim=True))


def test_mask2former_is_calibrated() -> None:
    torch.manual_seed(0)
    backbone = transformers.SwinConfig(
        image_size=64, embed_dim=12, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.Mask2FormerConfig(
        backbone_config=backbone, num_labels=CLASSES, hidden_dim=32, mask_feature_size=32, feature_size=32,
        encoder_layers=1, decoder_layers=2, num_attention_heads=2, num_queries=5, encoder_feedforward_dim=16,
        dim_feedforward=16,
    )  # fmt: skip
    network = transformers.Mask2FormerForUniversalSegmentation(config).eval()
    images, labels = batch_of(2, (64, 64), channels=3)
    calibrated = segcal.calibrate(network, [(images, labels)], "vector")
    model = CalibratedSegmenter(network, calibrated.calibrator).eval()
    with torch.no_grad():
        logits, plain = model(images).logits, resized(read_output(network(images)), (64, 64))
    assert segcal.nll(logits, labels) < segcal.nll(plain, labels)


def test_saved_for_the_hub_and_loaded(tmp_path: Path) -> None:
    cases = cases_of(4, (20, 20))
    network, batch = Convolution(), batch_of(2, (20, 20))
    calibrator = fitted(network, batch, "lts")
    results = evaluate(cases[2:], {"UC": None, "LTS": calibrator}, num_classes=CLASSES, patch_size=10)
    HubCalibrator(calibrator, results).save_pretrained(tmp_path / "repository")
    files = {path.name for path in (tmp_path / "repository").iterdir()}
    assert files == {"README.md", "config.json", "reliability.png", "segcal.json", "weights.safetensors"}
    assert json.loads((tmp_path / "repository" / "config.json").read_text()) == {"method": "lts", "num_classes": 3}
    loaded = HubCalibrator.from_pretrained(tmp_path / "repository")
    logits = torch.randn(2, CLASSES, 9, 11)
    assert torch.equal(loaded.calibrator.predict_proba(logits), calibrator.predict_proba(logits))
    assert torch.equal(loaded(logits), calibrator(logits))
    card = (tmp_path / "repository" / "README.md").read_text()
    assert "library_name: segcal" in card
    assert "![Reliability diagrams](reliability.png)" in card
    assert "| LTS" in card
    assert "without changing a predicted label" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    found: dict[str, Any] = {}
    exec(code.replace("USER/REPOSITORY", str(tmp_path / "repository")), found)
    assert found["probabilities"].shape == (1, CLASSES, 64, 64)


def test_names_of_patients_are_not_published(tmp_path: Path) -> None:
    calibrator = fitted(Convolution(), batch_of(2, (16, 16)))
    assert calibrator.fit_report_.names
    HubCalibrator(calibrator).save_pretrained(tmp_path / "repository")
    text = (tmp_path / "repository" / "segcal.json").read_text()
    assert json.loads(text)["report"]["names"] == []
    assert not json.loads(text)["report"]["fingerprints"]
    assert not (tmp_path / "repository" / "reliability.png").exists()
    assert HubCalibrator.from_pretrained(tmp_path / "repository").calibrator.fit_report_.pixels == 512


@pytest.mark.parametrize("name", ["segcal.json", "weights.safetensors"])
def test_files_of_somebody_else_are_not_replaced(tmp_path: Path, name: str) -> None:
    repository = HubCalibrator(fitted(Convolution(), batch_of(2, (16, 16))))
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=f"holds a '{name}' of somebody else"):
        repository.save_pretrained(tmp_path)
    assert (tmp_path / name).read_text() == "{}"


def test_pushing_uploads_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network: the two calls of the Hub's client are recorded."""
    import huggingface_hub

    uploaded: dict[str, Any] = {}

    class Created:
        repo_id = "me/lts"

    def upload(self: Any, *, folder_path: Path, **options: Any) -> str:
        uploaded.update(options, files={path.name for path in Path(folder_path).iterdir()})
        uploaded["card"] = (Path(folder_path) / "README.md").read_text()
        return "https://hub/commit"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: Created())
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    calibrator = fitted(Convolution(), batch_of(2, (16, 16)))
    assert HubCalibrator(calibrator).push_to_hub("me/lts", private=True) == "https://hub/commit"
    assert uploaded["repo_id"] == "me/lts"
    assert 'HubCalibrator.from_pretrained("me/lts")' in uploaded["card"]
    assert uploaded["files"] == {"README.md", "config.json", "segcal.json", "weights.safetensors"}
