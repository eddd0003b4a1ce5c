"""The data sets of the experiment: where their volumes lie, how many there are, how they are split and trained on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from experiments.datasets.splits import shuffled_parts
from experiments.lpba40.recipes import Data
from experiments.lpba40.tiling import CENTRE, PATCH
from segcal.fusion.registration import Pair, RegistrationSettings
from segcal.types import InputError


@dataclass(frozen=True)
class Preset:
    """A data set with its split and its training.

    Args:
        data: Data set; the volumes of LPBA40 are aligned with a template and equalised.
        sizes: Atlases, validation targets and test targets of a fold, of the first volumes in alphabetical order.
        folds: 2 repeats the experiment with the roles of the two halves exchanged, which covers every volume.
        registration: How atlases are registered.
        features: Feature maps of VoteNet+ at full resolution.
        depth: How often VoteNet+ halves the resolution.
        epochs: Of the training of VoteNet+.
        batch_size: Of the training of VoteNet+.
        patch: Side of the training patches, with at least 5 % foreground, and of the patches that tile a volume.
        centre: Side of the part of each patch that is kept in prediction.
        tolerance: Of the surface Dice, in mm.
        local_epochs: Of the training of IBTS and LTS with segcal's settings.
        paper_epochs: Of their training with `preset="paper"`.
        patch_size: Side of the Local patches, about a third of the volume as in the paper; None leaves Table 1 out.
    """

    data: Data
    sizes: tuple[int, int, int]
    folds: int
    registration: RegistrationSettings = field(default_factory=RegistrationSettings)
    features: int = 16
    depth: int = 3
    epochs: int = 40
    batch_size: int = 16
    patch: int = PATCH
    centre: int = CENTRE
    tolerance: float = 1.0
    local_epochs: int = 30
    paper_epochs: int = 100
    patch_size: int | None = 24


PRESETS = {
    "lpba40": Preset(
        "lpba40",
        (17, 3, 20),
        2,
        registration=RegistrationSettings(shrink=(4, 2, 1), iterations=(40, 20, 10)),
        epochs=500,
        batch_size=4,
        patch_size=72,
    ),
    "hippocampus": Preset("hippocampus", (17, 3, 20), 2),
    "mouse_brain": Preset(
        "mouse_brain",
        (6, 2, 9),
        1,
        registration=RegistrationSettings(shrink=(4, 2, 1), iterations=(40, 20, 10)),
        batch_size=4,
        epochs=40,
        tolerance=0.15,
        local_epochs=20,
        patch_size=None,
    ),
}
"""The paper's protocol on its own data, on 40 hippocampus volumes, and on 17 mouse brains."""


def small(preset: Preset) -> Preset:
    """Return the protocol in a form that a CPU finishes in a minute, on few small volumes: its numbers mean nothing."""
    return replace(
        preset,
        sizes=(2, 1, 2),
        folds=1,
        registration=RegistrationSettings(affine_iterations=3, iterations=(5, 3)),
        features=2,
        depth=1,
        epochs=1,
        batch_size=2,
        patch=10,
        centre=6,
        local_epochs=1,
        paper_epochs=1,
        patch_size=8,
    )


class Fold(NamedTuple):
    """The roles of the volumes, by name. Every atlas is registered to every other volume of the fold."""

    number: int
    atlases: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    def pairs(self, targets: tuple[str, ...]) -> list[Pair]:
        """Every atlas with each of the targets, except with itself."""
        return [Pair(atlas, target) for target in targets for atlas in self.atlases if atlas != target]

    @property
    def all_pairs(self) -> list[Pair]:
        """All pairs to register: 272 to train on, 51 to validate and 340 to test on in the paper's protocol."""
        return self.pairs(self.atlases) + self.pairs(self.validation) + self.pairs(self.test)

    @property
    def halves(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Calibration fits on one half of the test targets and is tested on the other: (fit, test), twice."""
        middle = (len(self.test) + 1) // 2
        one, other = self.test[:middle], self.test[middle:]
        return (one, other), (other, one)


def folds_of(names: list[str], preset: Preset) -> list[Fold]:
    """One fold, or two whose test targets cover all volumes."""
    atlases, validation, test = preset.sizes
    if preset.folds == 2 and atlases + validation != test:
        raise InputError(f"two folds need as many test targets as other volumes, got sizes {preset.sizes}")
    here, there = shuffled_parts(names, (atlases + validation, test))
    folds = [Fold(0, here[:atlases], here[atlases:], there)]
    return folds if preset.folds == 1 else [*folds, Fold(1, there[:atlases], there[atlases:], here)]
