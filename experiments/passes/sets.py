"""Sets of passes that are compared, by the names of the tables, and the views that they need."""

from __future__ import annotations

OTHERS = "other networks"
"""Stands for the passes of networks that were trained with other seeds."""

_SCALED_2D = ("mirror:1", "scale:0.75", "scale:1.25")
_MIRRORED_SCALED = ("mirror:1+scale:0.75", "mirror:1+scale:1.25")
_BRIGHTNESS = ("brightness:0.7", "brightness:1.3")
_MIRRORS_3D = ("mirror:2", "mirror:1", "mirror:0", "mirror:1,2", "mirror:0,2", "mirror:0,1", "mirror:0,1,2")
_SCALED_3D = ("mirror:2", "scale:0.9", "scale:1.1")
_BOTH_3D = ("mirror:2", "scale:0.75", "scale:1.25", "mirror:2+scale:0.75", "mirror:2+scale:1.25")

SETS: dict[int, dict[str, tuple[str, ...]]] = {
    2: {
        "mirror": _SCALED_2D[:1],
        "mirror, scale 0.75": _SCALED_2D[:2],
        "mirror, scales": _SCALED_2D,
        "mirror, scales, both": (*_SCALED_2D, *_MIRRORED_SCALED),
        "mirror, brightness": ("mirror:1", *_BRIGHTNESS),
        "all views": (*_SCALED_2D, *_MIRRORED_SCALED, *_BRIGHTNESS),
        "other networks": (OTHERS,),
        "all views, other networks": (*_SCALED_2D, *_MIRRORED_SCALED, *_BRIGHTNESS, OTHERS),
    },
    3: {
        "mirror": _MIRRORS_3D[:1],
        "mirror, scales": _SCALED_3D,
        "mirror, scales, both": _BOTH_3D,
        "3 mirrors": _MIRRORS_3D[:3],
        "5 mirrors": _MIRRORS_3D[:5],
        "7 mirrors": _MIRRORS_3D,
        "all views": (*_MIRRORS_3D, *_SCALED_3D[1:]),
        "other networks": (OTHERS,),
        "3 mirrors, other networks": (*_MIRRORS_3D[:3], OTHERS),
    },
}
"""Views of each set by the number of spatial axes, from few passes to many."""


CHAINS: dict[str, tuple[tuple[str, ...], dict[int, str]]] = {
    "CamVid, mean of four tasks: views, then a network": (
        ("camvid, 0001TP", "camvid, Seq05VD", "camvid-0001TP", "camvid-Seq05VD"),
        {
            1: "mirror",
            2: "mirror, scale 0.75",
            3: "mirror, scales",
            5: "mirror, scales, both",
            7: "all views",
            8: "all views, other networks",
        },
    ),
    "Hippocampus, flips in training: mirrors": (
        ("hippocampus-mirrored",),
        {1: "mirror", 3: "3 mirrors", 5: "5 mirrors", 7: "7 mirrors"},
    ),
}
"""Tasks, and the set of each number of passes, from the most useful pass on."""


def views(dims: int) -> tuple[str, ...]:
    """Return every view that a set needs.

    >>> views(3)[:2]
    ('mirror:2', 'scale:0.9')
    """
    return tuple(dict.fromkeys(view for own in SETS[dims].values() for view in own if view != OTHERS))


POOL, FREE, SINGLE = "POOL ", "free labels ", " of one pass"
FOLDS = "folds"
"""Stands for the folds of nnU-Net, of `experiments.nnunet`, whose mean is the first pass."""
PLAIN = {"UC": None, "TS": "ts", "CTS": "cts"}
MEAN_ROWS = (*PLAIN, "TS" + SINGLE, "CTS" + SINGLE, POOL + "7 mirrors")
"""Rows of a mean of passes: those that end in `SINGLE` are fitted on the scores of the first pass alone."""
FOLD_ROWS = ("TS of single folds", "CTS of single folds", POOL + FOLDS)
"""Rows of the mean of nnU-Net's folds: fitted on its cross-validation, which a single fold predicts, and the pool."""


def methods(dims: int) -> tuple[str, ...]:
    """Return the rows of the tables: no calibration, TS, CTS, and `pool` with each set of passes.

    >>> methods(2)[:4]
    ('UC', 'TS', 'CTS', 'POOL mirror')
    """
    return (*PLAIN, *(POOL + name for name in SETS[dims]), POOL + FREE + "all views")
