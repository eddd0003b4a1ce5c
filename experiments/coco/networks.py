"""Segmentation networks of torchvision, of transformers, or of your own, and the scores that they give."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from experiments.datasets.voc import CLASSES
from segcal.integrations.predict import import_network
from segcal.types import Image, InputError

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class OfUnitImages(nn.Module):
    """A network that takes pictures in 0..1, so that a calibrator beside it sees them like that too.

    Args:
        network: Takes pictures of the mean and standard deviation of ImageNet.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network  # so that its parts can be asked for

    def forward(self, image: Image) -> Any:
        """Return the output of the network."""
        return self.network(self._normalised(image))

    def coarse(self, image: Image) -> Tensor:
        """The scores before they are interpolated to the size of the image, where the network lets us have them."""
        inner = self.network
        if hasattr(inner, "backbone") and hasattr(inner, "classifier"):  # torchvision interpolates inside
            found = inner.classifier(inner.backbone(self._normalised(image))["out"])
        else:
            found = self(image)
            found = found["out"] if isinstance(found, Mapping) and "out" in found else getattr(found, "logits", found)
        if not isinstance(found, Tensor):
            raise InputError(f"the network must give scores as a tensor, got {type(found).__name__}")
        return found

    def _normalised(self, image: Image) -> Image:
        mean, std = (image.new_tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _STD))
        return (image - mean) / std


def load_network(name: str, weights: str | None = None) -> OfUnitImages:
    """The network called `torchvision:NAME`, `transformers:NAME`, or MODULE:FUNCTION that returns one.

    Args:
        name: As above, for example `torchvision:fcn_resnet101`.
        weights: A file, .safetensors or a state dict of PyTorch; without it, the pretrained weights that the library
            finds in the user's cache or downloads.
    """
    library, _, kind = name.partition(":")
    if library == "torchvision":
        models = _import("torchvision.models.segmentation", "torchvision")
        if not hasattr(models, kind):
            raise InputError(f"torchvision has no segmentation network '{kind}'; try fcn_resnet101")
        arguments = (
            {"weights": None, "weights_backbone": None, "num_classes": len(CLASSES), "aux_loss": True}
            if weights
            else {"weights": "COCO_WITH_VOC_LABELS_V1"}
        )
        network = getattr(models, kind)(**arguments)
    elif library == "transformers":
        network = _import("transformers", "transformers").AutoModelForSemanticSegmentation.from_pretrained(kind)
    else:
        network = import_network(name)
    if weights:
        network.load_state_dict(_read(Path(weights)))
    return OfUnitImages(network).eval()


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"'{path}' is missing; give the file of the network's weights")
    if path.suffix == ".safetensors":
        return load_file(path)
    found: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this network needs {package}, which is not installed; `pip install {package}`") from error
