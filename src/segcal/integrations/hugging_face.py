"""Hugging Face: transformers models with calibrated logits, and calibrators on the Hub."""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.calibrators import Calibrator, load
from segcal.calibrators.saving import WEIGHTS
from segcal.files import MARKER
from segcal.files.guards import checksum, kind_of, listed_files
from segcal.integrations import needs_extra
from segcal.integrations.calibrate import CalibratedModel
from segcal.integrations.outputs import read_output, resized
from segcal.integrations.predict import device_of
from segcal.tables import markdown_table
from segcal.text import counted
from segcal.types import Image, InputError, Labels, Logits, Passes, Probs

with needs_extra("hf"):
    from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download

with needs_extra("hf"):
    import transformers
    from transformers.modeling_outputs import SemanticSegmenterOutput
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES

if TYPE_CHECKING:
    from segcal.evaluation.results import Results

FIGURE = "reliability.png"
CALIBRATOR = "calibrator"
"""Folder of the calibrator beside the files of its transformers model."""


class CalibratedSegmenter(CalibratedModel):
    """A transformers segmentation model whose output has calibrated logits, as its image processor expects them.

    `transformers.pipeline("image-segmentation", model=..., image_processor=...)` and
    `processor.post_process_semantic_segmentation(model(**inputs), target_sizes=...)` work as with the model alone. The
    logits have the size of `pixel_values`, where the labels are those of the model. The processor interpolates them to
    `target_sizes`; to keep the labels of a local method there too, ask for that `size` at once.

    Args:
        network: Any transformers model that returns `.logits`, such as SegFormer, UPerNet, DPT, BEiT or MobileViT; or
            masks and their classes, such as Mask2Former (see `segcal.integrations.outputs`).
        calibrator: A fitted calibrator.
    """

    @property
    def config(self) -> Any:
        """The configuration of the transformers model, with its `id2label`."""
        return self.network.config

    @property
    def device(self) -> torch.device:
        """The device of the transformers model."""
        return device_of(self.network)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the transformers model."""
        return next(self.network.parameters()).dtype

    def can_generate(self) -> bool:
        """Return False: pipelines ask every model whether it generates text."""
        return False

    def forward(  # type: ignore[override]
        self,
        pixel_values: Image,
        labels: Labels | None = None,
        size: tuple[int, ...] | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> SemanticSegmenterOutput | tuple[Tensor, ...]:
        """Return calibrated logits `[B, L, *S]` at `size` or at that of the image, and their loss if there are labels.

        Further inputs are given to the transformers model. With `return_dict=False` the output is a tuple.
        """
        output = self.network(pixel_values, **inputs)
        calibrated = self.calibrator(*_at(output, pixel_values, size))
        found = SemanticSegmenterOutput(
            loss=None if labels is None else self._loss(calibrated, labels),
            logits=calibrated,
            hidden_states=getattr(output, "hidden_states", None),
            attentions=getattr(output, "attentions", None),
        )
        return found.to_tuple() if return_dict is False else found

    def predict_proba(self, pixel_values: Image, size: tuple[int, ...] | None = None) -> Probs:
        """Return calibrated probabilities `[B, L, *S]`, at `size` or at that of the image."""
        return self.calibrator.predict_proba(*_at(self.network(pixel_values), pixel_values, size))

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:
        """Save the transformers model, as its own `save_pretrained` does, and the calibrator in a folder inside."""
        network: Any = self.network
        network.save_pretrained(save_directory, **options)
        self.calibrator.save(Path(save_directory) / CALIBRATOR)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """Load what `save_pretrained` saved; options are those of the transformers model's `from_pretrained`."""
        config = transformers.AutoConfig.from_pretrained(folder)
        network = getattr(transformers, config.architectures[0]).from_pretrained(folder, **options)
        return cls(network, load(Path(folder) / CALIBRATOR))

    def _loss(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy of labels, at their size, as transformers models compute it."""
        logits, ignored = resized(logits, labels.shape[1:]), getattr(self.config, "semantic_loss_ignore_index", 255)
        if self.calibrator.activation == "softmax":
            return F.cross_entropy(logits, labels, ignore_index=ignored)
        valid = (labels >= 0) & (labels != ignored)
        return F.binary_cross_entropy_with_logits(logits[:, 0][valid], labels[valid].to(logits.dtype))


def _at(output: Any, image: Image, size: tuple[int, ...] | None) -> tuple[Logits, Image]:
    """Return the logits in an output and the image, both at `size`; the logits are interpolated once."""
    wanted = tuple(image.shape[2:] if size is None else size)
    return resized(read_output(output), wanted), resized(image, wanted)


# pipelines log an error for classes that are not listed
MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES["segcal"] = CalibratedSegmenter.__name__


_CARD = """\
---
{{ card_data }}
---

# {{ name }} for {{ calibrator.num_classes }} classes

Turns the logits of a semantic segmentation network into calibrated probabilities, with \
[segcal](https://arxiv.org/abs/2008.05105){{ ", without changing a predicted label" if calibrator.preserves_labels }}.
{% if report %}
Fitted on {{ counted(report.cases, "image") }} ({{ counted(report.pixels, "pixel") }}): mean NLL \
{{ "%.4f" | format(report.nll_before) }} before and {{ "%.4f" | format(report.nll_after) }} after.
{% endif %}{% if table %}
![Reliability diagrams]({{ figure }})

{{ table }}
{% endif %}
```python
import torch
from segcal.integrations.hugging_face import HubCalibrator

calibrator = HubCalibrator.from_pretrained("{{ repo_id }}").calibrator
logits = torch.randn(1, {{ calibrator.num_classes }}{{ space }})  # the output of your network, [B, L, *S]
{% if channels -%}
image = torch.randn(1, {{ channels }}{{ space }})  # the image that the network was given
{% endif -%}
probabilities = calibrator.predict_proba(logits{{ ", image" if channels }})
```

"""
"""Model card as a Jinja template."""


class HubCalibrator(  # type: ignore[call-arg]  # keywords of the mixin
    nn.Module,
    PyTorchModelHubMixin,
    library_name="segcal",
    model_card_template=_CARD,
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

    def forward(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Logits:
        """Return calibrated logits."""
        calibrated: Tensor = self.calibrator(logits, image, passes)
        return calibrated

    def _save_pretrained(self, save_directory: Path) -> None:
        taken = [name for name in (MARKER, WEIGHTS) if (save_directory / name).exists()]
        own = (listed_files(save_directory) or {}).get(WEIGHTS) == checksum(save_directory / WEIGHTS)
        if taken and not (own and kind_of(save_directory) == "method"):
            raise InputError(f"'{save_directory}' holds a '{taken[0]}' of somebody else; choose another folder")
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
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        if Path(model_id).is_dir():
            return cls(load(model_id))
        known = ("revision", "cache_dir", "force_download", "local_files_only", "token")
        chosen = {name: options[name] for name in known if name in options}
        return cls(load(snapshot_download(model_id, allow_patterns=[MARKER, WEIGHTS], **chosen)))

    def push_to_hub(self, repo_id: str, *, model_card_kwargs: dict[str, Any] | None = None, **options: Any) -> str:
        """Upload the calibrator and its card, whose code loads it from this repository."""
        card = {"repo_id": repo_id, **(model_card_kwargs or {})}
        address: str = super().push_to_hub(repo_id, model_card_kwargs=card, **options)
        return address

    def generate_model_card(self, *_: Any, repo_id: str = "USER/REPOSITORY", **__: Any) -> ModelCard:
        """Return the model card: what it is, how it was fitted, how well it does, how to load it."""
        return super().generate_model_card(
            repo_id=repo_id,
            calibrator=self.calibrator,
            name=type(self.calibrator).__name__,
            report=getattr(self.calibrator, "fit_report_", None),
            figure=FIGURE,
            table=None if self.results is None else str(markdown_table(self.results.table())),
            channels=getattr(self.calibrator, "image_channels", 0),
            space=", 64" * (getattr(self.calibrator, "spatial_dims", None) or 2),
            counted=counted,
        )
