"""A network and its calibrator as one module: from image to calibrated probabilities."""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name

from torch import nn

from segcal.calibrators import Calibrator, FitReport
from segcal.integrations.outputs import logits_of
from segcal.integrations.passes import PassRunner, Wanted
from segcal.types import Image, InputError, Logits, Passes, Probs, public


@public
class CalibratedModel(nn.Module):
    """Image to calibrated probabilities; with a method that preserves labels, they keep the labels of the network.

    The network may return any output that `segcal.integrations.outputs` reads; logits of another resolution are
    interpolated to the size of the image. The calibrator receives the image as the network does, so fit it on such
    images: `segcal.calibrate` and `segcal.predict_cases` do so.

    Args:
        network: Any segmentation network.
        calibrator: A fitted calibrator.
        passes: Further passes over each image, as they were when the calibrator was fitted (see `segcal.calibrate`).
            They are run only if the calibrator uses them.
    """

    def __init__(self, network: nn.Module, calibrator: Calibrator, passes: Wanted = None) -> None:
        super().__init__()
        self.network, self.calibrator = network, calibrator
        self.passes = PassRunner(passes if calibrator.fitted and calibrator.uses_passes else None)

    @property
    def fit_report_(self) -> FitReport:
        """The report of the calibrator's fit: NLL before and after, seconds, warnings."""
        return self.calibrator.fit_report_

    def logits(self, image: Image) -> Logits:
        """Return calibrated logits `[B, L, *S]`; the network's own are `logits_of(network(image), image)`."""
        calibrated: Logits = self.calibrator(*self._seen(image))
        return calibrated

    def forward(self, image: Image) -> Probs:
        """Return calibrated probabilities `[B, L, *S]`."""
        return self.calibrator.predict_proba(*self._seen(image))

    def _seen(self, image: Image) -> tuple[Logits, Image, Passes | None]:
        """Return what the calibrator is given."""
        passes = self.passes(self.network, image, image.shape[2:])
        return logits_of(self.network(image), image), image, passes


def import_network(text: str) -> nn.Module:
    """Return the network that MODULE:FUNCTION returns; modules of the working folder are found too."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        network = resolve_name(text)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"a network is named as MODULE:FUNCTION that returns it, got '{text}' ({error})") from error
    finally:
        sys.path.pop(0)
    if not isinstance(network, nn.Module):
        raise InputError(f"'{text}' must return an nn.Module, got {type(network).__name__}")
    return network
