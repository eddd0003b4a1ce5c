"""Hugging Face: transformers models with calibrated logits, and calibrators on the Hub."""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from segcal.calibrators import Calibrator, load
from segcal.calibrators.saving import WEIGHTS
from segcal.files import MARKER
from segcal.integrations.calibrated_model import CalibratedModel
from segcal.integrations.extras import needs_extra
from segcal.integrations.outputs import read_output, resized
from segcal.types import Image, Logits, Probs

with needs_extra("hf"):
    from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download
    from transformers.modeling_outputs import SemanticSegmenterOutput

if TYPE_CHECKING:
    from segcal.evaluation.results import Results

FIGURE = "reliability.png"


class CalibratedSegmenter(CalibratedModel):
    """A transformers segmentation model whose output has calibrated logits, as its image processor expects them.

    `processor.post_process_semantic_segmentation(model(**inputs), target_sizes=...)` works as with the model alone. The
    logits have the size of `pixel_values`, where the labels are those of the model. The processor interpolates them to
    `target_sizes`; to keep the labels of a local method there too, ask for that `size` at once.

    Args:
        network: Any transformers model that returns `.logits`, such as SegFormer, UPerNet, DPT, BEiT or MobileViT.
        calibrator: A fitted calibrator.
    """

    @property
    def config(self) -> Any:
        """The configuration of the transformers model, with its `id2label`."""
        return self.network.config

    def forward(  # type: ignore[override]
        self, pixel_values: Image, size: tuple[int, ...] | None = None, **_: Any
    ) -> SemanticSegmenterOutput:
        """Return calibrated logits `[B, L, *S]`, at `size` or at that of the image."""
        logits, image = self._at(pixel_values, size)
        return SemanticSegmenterOutput(logits=self.calibrator(logits, image))

    def predict_proba(self, pixel_values: Image, size: tuple[int, ...] | None = None) -> Probs:
        """Return calibrated probabilities `[B, L, *S]`, at `size` or at that of the image."""
        logits, image = self._at(pixel_values, size)
        return self.calibrator.predict_proba(logits, image)

    def _at(self, image: Image, size: tuple[int, ...] | None) -> tuple[Logits, Image]:
        """Return the model's own logits and the image, both at `size`; the logits are interpolated once."""
        wanted = tuple(image.shape[2:] if size is None else size)
        return resized(read_output(self.network(image)).logits, wanted), resized(image, wanted)


class HubCalibrator(  # type: ignore[call-arg]  # keywords of the mixin
    nn.Module,
    PyTorchModelHubMixin,
    library_name="segcal",
    pipeline_tag="image-segmentation",
    tags=["calibration", "uncertainty", "semantic-segmentation"],
    paper_url="https://arxiv.org/abs/2008.05105",
):
    """A calibrator with `save_pretrained`, `push_to_hub` and `from_pretrained`.

    The repository holds what `Calibrator.save` writes (JSON and safetensors, no pickle) without the names of the cases
    it was fitted on, which may be names of patients; and a model card with the figures of the fit and, with `results`,
    the reliability diagram before and after.

    Args:
        calibrator: A fitted calibrator.
        results: Result of `segcal.evaluate` on images that it was not fitted on.
    """

    def __init__(self, calibrator: Calibrator, results: Results | None = None) -> None:
        super().__init__()
        self.calibrator, self.results = calibrator, results
        self._hub_mixin_config = {"method": calibrator.method, "num_classes": calibrator.num_classes}

    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return calibrated logits."""
        calibrated: Tensor = self.calibrator(logits, image)
        return calibrated

    def _save_pretrained(self, save_directory: Path) -> None:
        anonymous = deepcopy(self.calibrator)
        if hasattr(anonymous, "fit_report_"):
            anonymous.fit_report_ = replace(anonymous.fit_report_, names=(), fingerprints=())
        with TemporaryDirectory() as temporary:
            anonymous.save(Path(temporary) / "saved")
            for name in (MARKER, WEIGHTS):
                shutil.copyfile(Path(temporary) / "saved" / name, save_directory / name)
        if self.results is not None:
            from segcal.report.figures import write_figure  # noqa: PLC0415  (matplotlib is needed for this only)

            write_figure("reliability", self.results, save_directory / FIGURE)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        **_: Any,
    ) -> Self:
        if Path(model_id).is_dir():
            return cls(load(model_id))
        folder = snapshot_download(
            model_id,
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
            allow_patterns=[MARKER, WEIGHTS],
        )
        return cls(load(folder))

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        """Return the model card: what it is, how it was fitted, how well it does, how to load it."""
        info: Any = self._hub_mixin_info
        front = info.model_card_data.to_yaml()
        return ModelCard(f"---\n{front}\n---\n\n{_card_text(self.calibrator, self.results)}")


def _card_text(calibrator: Calibrator, results: Results | None) -> str:
    lines = [
        f"# {type(calibrator).__name__} for {calibrator.num_classes} classes",
        "",
        "Turns the logits of a semantic segmentation network into calibrated probabilities, with "
        "[segcal](https://arxiv.org/abs/2008.05105)"
        + (", without changing a predicted label." if calibrator.preserves_labels else "."),
        "",
    ]
    if (report := getattr(calibrator, "fit_report_", None)) is not None:
        lines += [
            f"Fitted on {report.cases} images ({report.pixels:,} pixels): mean NLL {report.nll_before:.4f} before and "
            f"{report.nll_after:.4f} after.",
            "",
        ]
    if results is not None:
        from segcal.tables import markdown_table  # noqa: PLC0415

        lines += [f"![Reliability diagrams]({FIGURE})", "", markdown_table(results.table()), ""]
    lines += [
        "```python",
        "from segcal.integrations.hugging_face import HubCalibrator",
        "",
        'calibrator = HubCalibrator.from_pretrained("USER/REPOSITORY").calibrator',
        "probabilities = calibrator.predict_proba(logits)  # [B, L, *S]",
        "```",
        "",
    ]
    return "\n".join(lines)
