"""Schema of the settings that are saved with results: which there are, and what each must be."""

from __future__ import annotations

from segcal.files.schema import FLAG, NUMBER, PLAIN, TABLE, TEXT, WHOLE, list_of, optional, record, table_of

_FIT = record(
    {
        "cases": WHOLE,
        "pixels": WHOLE,
        "nll_before": NUMBER,
        "nll_after": NUMBER,
        "steps": WHOLE,
        "seconds": NUMBER,
        "converged": FLAG,
        "warnings": list_of(TEXT),
        "details": TABLE,
    },
    {"learned": WHOLE, "preserves_labels": FLAG},
)
_BACKGROUND = record({"class": WHOLE, "name": TEXT, "fraction": NUMBER, "scores": table_of(table_of(NUMBER))})

SETTINGS = record(
    {
        "methods": list_of(TEXT),
        "warnings": list_of(TEXT),
        "num_classes": WHOLE,
    },
    {
        "channels": list_of(TEXT),
        "regions": list_of(TEXT),
        "activation": TEXT,
        "ignore_index": list_of(WHOLE),
        "background": optional(WHOLE),
        "bins": WHOLE,
        "form": TEXT,
        "ace_edges": TEXT,
        "boundary_width": WHOLE,
        "boundary_ball": FLAG,
        "patch_size": optional(WHOLE),
        "patches": WHOLE,
        "patch_margin": WHOLE,
        "patch_sizes": list_of(WHOLE),
        "patch_rule": TEXT,
        "seed": WHOLE,
        "repetitions": WHOLE,
        "interval": TEXT,
        "floor": FLAG,
        "surfaces": FLAG,
        "surface_tolerance": NUMBER,
        "limits": FLAG,
        "class_names": optional(list_of(TEXT)),
        "segcal": TEXT,
        "date": TEXT,
        "versions": table_of(TEXT),
        "baseline": TEXT,
        "fits": table_of(_FIT),
        "unnamed_background": _BACKGROUND,
        "surface_background": TEXT,
        "surface_unit": TEXT,
        "presentation": record({}, {"reference": optional(TEXT), "test": TEXT, "average": TEXT}),
        "dataset": TEXT,
    },
)
"""Settings of saved results."""

_NUMBERS = optional(list_of(NUMBER))
_INTERVALS = optional(list_of(list_of(optional(NUMBER), 2)))

CHOICE = record({"chosen": TEXT, "why": TEXT, "scores": table_of(table_of(PLAIN))})
"""Details of a fit that chose among several methods."""

INFLUENCES = record(
    {},
    {
        "features": optional(list_of(TEXT)),
        "coefficients": _NUMBERS,
        "coefficient_intervals": _INTERVALS,
        "class_offsets": _NUMBERS,
        "class_offset_intervals": _INTERVALS,
        "class_shares": _NUMBERS,
        "words": optional(list_of(TEXT)),
    },
)
"""Details of a fit whose temperature follows features or classes."""
